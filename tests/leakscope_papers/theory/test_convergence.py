"""The convergence estimate on curves whose answer is known, against a slow loop, and on a run of the engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.analysis.convergence import image_curve
from leakscope.core.errors import InputError
from leakscope.scenario import scenario_of
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.engines import serial
from leakscope_papers.theory.convergence import change_ratios, histogram, shares


def counted(ratios: Tensor) -> Tensor:
    return ratios[~ratios.isnan()]


def slow(values: list[float], at: list[int], window: int, floor: float) -> list[float]:
    """The estimate as the formula reads, one pair after the other."""
    last = max(at)
    found = []
    for (a, va), (b, vb) in zip(
        list(zip(at, values, strict=True)), list(zip(at, values, strict=True))[1:], strict=False
    ):
        if a < 0 or b < 0 or b <= last - window or vb < floor:
            continue
        change = abs(vb - va) / (b - a)
        found.append(-math.inf if change == 0 else math.log10(change / vb))
    return found


@settings(deadline=None, max_examples=80)
@given(
    values=st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=12),
    gaps=st.lists(st.integers(1, 7), min_size=12, max_size=12),
    unreached=st.integers(0, 5),
    window=st.integers(1, 15),
    floor=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_agrees_with_a_slow_loop(
    values: list[float], gaps: list[int], unreached: int, window: int, floor: float
) -> None:
    at = torch.tensor(gaps[: len(values)]).cumsum(0)
    at[len(values) - min(unreached, len(values) - 1) :] = -1
    curve = torch.tensor(values, dtype=torch.float64)
    ratios = change_ratios(curve[None], at[None], window=window, floor=floor)
    expected = slow(values, at.tolist(), window, floor)
    assert counted(ratios).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.999])
def test_a_curve_that_decays_by_a_fixed_share_has_one_value(rate: float) -> None:
    at = torch.arange(50)
    ratios = change_ratios((rate ** at.double())[None], at[None])
    assert ratios.shape == (1, 49)
    assert counted(ratios).tolist() == pytest.approx([math.log10(1 / rate - 1)] * 10)


def test_gaps_give_the_mean_change_per_iteration() -> None:
    line = 100.0 - torch.arange(91).double()
    every, some = torch.arange(91), torch.tensor([0, 30, 60, 90])
    dense = change_ratios(line[None], every[None], window=1)
    wide = change_ratios(line[some][None], some[None], window=1)
    assert counted(dense).tolist() == pytest.approx([-1.0])
    assert counted(wide).tolist() == pytest.approx([-1.0])


def test_flat_resting_and_small_curves() -> None:
    at = torch.arange(12).expand(4, 12)
    values = torch.stack([torch.ones(12), torch.rand(12), torch.full((12,), 1e-9), 2.0 ** -torch.arange(12)])
    ratios = change_ratios(values, at, floor=1e-6, resting=torch.tensor([False, True, False, False]))
    assert bool((counted(ratios[0]) == -math.inf).all())
    assert bool((counted(ratios[1]) == -math.inf).all())
    assert bool(ratios[2].isnan().all())
    found = shares(ratios)
    assert (found.steady.value, found.close.value, found.moving.value) == pytest.approx((2 / 3, 0.0, 1 / 3))
    assert (found.steady.n, found.steady.trials, found.left_out) == (30, 3, 1)
    assert found.settled.value == pytest.approx(2 / 3)
    assert found.settled.n == 3
    assert histogram(ratios)["none"] == 20
    assert histogram(ratios)["1e0"] == 10


def test_shares_add_up_and_split_at_the_papers_line() -> None:
    ratios = torch.tensor([[-math.inf, -7.0, -4.0], [-2.0, math.nan, -3.5]])
    found = shares(ratios)
    assert [found.steady.value, found.close.value, found.moving.value] == pytest.approx([0.4, 0.4, 0.2])
    assert sum(histogram(ratios).values()) == 5
    assert found.settled.value == 0.5


def test_a_stored_run_of_the_mixing_settings_has_both_curves(tmp_path: Path) -> None:
    """Dense layer, MSE, equal labels, L-BFGS at .05: trace and image MSE of a run give both estimates, ten points each."""
    told: dict[str, Any] = {
        "data": {"name": "digits", "samples": 2, "mix": "equal"},
        "model": "linear",
        "client": {"loss": "mse"},
        "knowledge": {"labels": True},
        "attack": {
            "name": "matching", "iterations": 20, "threshold": 0, "optimiser": {"name": "lbfgs", "rate": 0.05, "inner": 1},
            "film_end": True,
        },
        "trials": 2,
        "baselines": [],
        "precision": {"form": "native"},
    }  # fmt: skip
    run_scenario(scenario_of(told), tmp_path / "run", engine=serial, measure=False)
    run = Run.open(tmp_path / "run")
    for record in run.records():
        kept = run.tensors(record.trial)
        gradient = change_ratios(kept["trace"][None], kept["trace_at"][None])
        assert int((~gradient.isnan()).sum()) == 10
        images = kept["image_mse"]
        picture = change_ratios(images[None], kept["snapshots_at"][None])
        assert int((~picture.isnan()).sum()) == 10
        assert float(images[-1]) == pytest.approx(record.samples[0].mse / 2 + record.samples[1].mse / 2)
        coarse = image_curve(kept["truth"], kept["snapshots"], kept["pairing"])
        assert images.tolist() == pytest.approx(coarse.tolist(), abs=1e-3)


@pytest.mark.parametrize(
    ("values", "window", "floor"),
    [(torch.zeros(3), 10, 0.0), (torch.zeros(1, 3), 0, 0.0), (torch.zeros(1, 3), 1, -1.0)],
)
def test_what_makes_no_sense_is_refused(values: Tensor, window: int, floor: float) -> None:
    with pytest.raises(InputError, match="change_ratios needs"):
        change_ratios(values, values.long(), window=window, floor=floor)
    with pytest.raises(InputError, match="shares needs"):
        shares(torch.zeros(1, 1), steady=0.1, sufficient=0.01)
