"""What is measured of a cell, against a slow and obvious count over records."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.metrics.interval import estimate_mean, estimate_rate
from leakscope_papers.measure_names import bounds_of, title_of
from leakscope_papers.measures import CONVERGED, MEASURES, NONE, RATES, Value, measure, with_top_inside
from leakscope_papers.scored import Scored, score_cells

OUTCOMES = ("converged", "exhausted", "stalled", "diverged")
sample = st.fixed_dictionaries(
    {
        "mse": st.floats(0, 1),
        "psnr": st.floats(0, 120) | st.just(math.inf),
        "ssim": st.floats(-1, 1) | st.just(math.nan),
        "recovered": st.booleans(),
        "label_correct": st.sampled_from((-1, 0, 1)),
    }
)
trial = st.fixed_dictionaries(
    {
        "cell": st.integers(0, 2),
        "outcome": st.sampled_from(OUTCOMES),
        "iterations": st.integers(0, 300),
        "mismatch": st.floats(0, 2) | st.just(math.nan),
        "learned.alpha": st.floats(0, 1) | st.just(math.nan),
        "learned.similarity_loss": st.floats(0, 2) | st.just(math.nan),
        "samples": st.lists(sample, max_size=3),
    }
)
TRIAL = ("cell", "outcome", "iterations", "mismatch", "learned.alpha", "learned.similarity_loss")
EMPTY = {"mse": math.nan, "psnr": math.nan, "ssim": math.nan, "recovered": False, "label_correct": -1}


def columns(trials: list[dict[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return trials as a stored run gives them: one row a sample, one for a trial without any."""
    rows: list[dict[str, Any]] = []
    for number, each in enumerate(trials):
        own = {"trial": f"t{number}", **{k: each.get(k, math.nan) for k in TRIAL}}
        rows += [own | {"sample": i} | s for i, s in enumerate(each["samples"])] or [own | {"sample": -1} | EMPTY]
    texts = ("trial", "outcome")
    return {name: np.array([row[name] for row in rows], dtype=object if name in texts else None) for name in rows[0]}


def same(ours: float, slow: float | None) -> bool:
    return math.isnan(ours) if slow is None else ours == pytest.approx(slow)


@settings(deadline=None)  # the first call imports scipy
@given(trials=st.lists(trial, min_size=1, max_size=8), cap=st.none() | st.integers(0, 300))
def test_every_measure_is_the_slow_one(trials: list[dict[str, Any]], cap: int | None) -> None:
    scored = score_cells(columns(trials))
    assert set(scored) == {each["cell"] for each in trials}
    for place, cell in scored.items():
        own = [each for each in trials if each["cell"] == place]
        assert cell.trials == len(own)
        hits = [e for e in own if e["outcome"] == "converged" and (cap is None or e["iterations"] <= cap)]
        steps = [float(e["iterations"]) for e in hits]
        every = [s for e in own for s in e["samples"]]
        among = [s for e in hits for s in e["samples"]] if hits else every
        ends = [e["learned.similarity_loss"] for e in own if not math.isnan(e["learned.similarity_loss"])]
        alphas = [e["learned.alpha"] for e in own if not math.isnan(e["learned.alpha"])]
        named = [s for s in every if s["label_correct"] >= 0]
        slow: dict[str, float | None] = {
            "iterations_mean": fmean(steps) if steps else None,
            "iterations_min": min(steps, default=None),
            "iterations_max": max(steps, default=None),
            "iterations_variance": variance(steps) if len(steps) > 1 else None,
            "asr_convergence": len(hits) / len(own),
            "asr_content": fmean(s["recovered"] for s in every) if every else None,
            "asr_label": fmean(s["label_correct"] for s in named) if named else None,
            "label_minus_content": fmean(s["label_correct"] - s["recovered"] for s in named) if named else None,
            "mse": fmean(s["mse"] for s in among) if among else None,
            "mse_all": fmean(s["mse"] for s in every) if every else None,
            "psnr": fmean(min(s["psnr"], 100.0) for s in every) if every else None,
            "similarity_loss": fmean(ends) if ends else None,
            "similarity_loss_error": stdev(ends) / len(ends) ** 0.5 if len(ends) > 1 else None,
            "final_alpha": fmean(alphas) if alphas else None,
            "final_alpha_deviation": stdev(alphas) if len(alphas) > 1 else None,
            "alpha_inside": fmean(0 < alpha < 1 for alpha in alphas) if alphas else None,
            "recovery_rate": fmean(s["mse"] <= 0.005 for s in every) if every else None,
        }
        for name, over in (("ssim", among), ("ssim_all", every)):
            known = [s["ssim"] for s in over if not math.isnan(s["ssim"])]
            slow[name] = fmean(known) if known else None
        found = measure(cell, cap)
        for name, value in slow.items():
            assert same(found[name].estimate.value, value), name
        at_the_end = {"steady_share", "close_of_moving", "change_over_value"}
        assert {*slow, "psnr_error", *at_the_end, *(f"image_{name}" for name in at_the_end)} == set(MEASURES)


@pytest.mark.slow
@settings(deadline=None)
@given(trials=st.lists(trial.map(lambda each: {**each, "cell": 0}), min_size=1, max_size=8))
def test_success_never_falls_with_the_cap(trials: list[dict[str, Any]]) -> None:
    (cell,) = score_cells(columns(trials)).values()
    rates = [measure(cell, cap)["asr_convergence"].estimate.value for cap in (0, 10, 100, 300)]
    assert rates == sorted(rates)
    assert rates[-1] == measure(cell)["asr_convergence"].estimate.value


def test_intervals_are_those_of_the_metrics_room_and_successes_are_named() -> None:
    steps = [3, 5, 9, 300]
    trials = [
        {
            "cell": 0,
            "outcome": "converged" if n < 300 else "exhausted",
            "iterations": n,
            "samples": [EMPTY | {"mse": n / 1000}],
        }
        for n in steps
    ]
    (cell,) = score_cells(columns(trials)).values()
    found = measure(cell)
    counted = torch.tensor([[True], [True], [True], [False]])
    whole = estimate_mean(torch.tensor(steps)[:, None], counted, within=(0.0, math.inf))
    assert found["iterations_mean"].estimate == whole
    assert whole.low == 0  # 5.67 - 7.59
    assert found["iterations_mean"].over == found["mse"].over == f"3 of 4 {CONVERGED}"
    assert found["asr_convergence"].estimate == estimate_rate(counted, torch.ones(4, 1, dtype=torch.bool))
    assert measure(cell, 2)["mse"].over.endswith("none converged")
    assert measure(cell, 2)["iterations_mean"].over == "no trial converged"
    assert not measure(cell, 2)["iterations_mean"].has_number


def test_the_error_of_psnr_is_that_of_the_means_of_the_trials() -> None:
    means = ([20.0, 30.0], [10.0, 12.0], [40.0, 41.0])
    trials = [
        {"cell": 0, "outcome": "exhausted", "iterations": 9, "samples": [EMPTY | {"psnr": value} for value in own]}
        for own in means
    ]
    (cell,) = score_cells(columns(trials)).values()
    expected = stdev(fmean(own) for own in means) / 3**0.5
    assert measure(cell)["psnr_error"].estimate.value == pytest.approx(expected)


def test_runs_that_rest_are_steady_and_runs_that_move_are_not() -> None:
    (cell,) = score_cells(
        columns([{"cell": 0, "outcome": "exhausted", "iterations": 4, "samples": [EMPTY]} for _ in range(2)])
    ).values()
    trace = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.5], [1.0, 0.9, 0.8, 0.7, 0.6]])
    at = torch.arange(5).expand(2, 5)
    settled = Scored(
        **{name: getattr(cell, name) for name in Scored.__dataclass_fields__} | {"trace": trace, "trace_at": at}
    )
    found = measure(settled)
    assert found["steady_share"].estimate.value == pytest.approx(3 / 8)  # four points a run, the first of run 0 moves
    assert found["close_of_moving"].estimate.value == 0
    assert found["change_over_value"].estimate.value == pytest.approx(1.0)
    assert not measure(cell)["steady_share"].has_number


def test_the_image_mse_has_measures_of_its_own_and_leaves_out_what_is_far_below_recovery() -> None:
    (cell,) = score_cells(
        columns([{"cell": 0, "outcome": "exhausted", "iterations": 4, "samples": [EMPTY]} for _ in range(3)])
    ).values()
    at = torch.arange(5).expand(3, 5)
    still, moving = torch.ones(3, 5), torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.5], [1.0, 0.9, 0.8, 0.7, 0.6], [4e-6] * 5])
    filmed = replace(cell, trace=still, trace_at=at, image_mse=moving, image_mse_at=at)
    found = measure(filmed)
    assert found["steady_share"].estimate.value == 1
    assert found["image_steady_share"].estimate.value == pytest.approx(3 / 8)  # the third run is under the floor
    assert found["image_steady_share"].estimate.trials == 2
    assert found["image_close_of_moving"].estimate.value == 0
    assert found["image_change_over_value"].estimate.value == pytest.approx(1.0)
    assert not any(
        measure(replace(filmed, image_mse=None))[name].has_number for name in MEASURES if name.startswith("image_")
    )


@settings(deadline=None)
@given(trials=st.lists(trial.map(lambda each: {**each, "cell": 0}), min_size=2, max_size=8))
def test_no_interval_leaves_what_its_measure_can_be(trials: list[dict[str, Any]]) -> None:
    (cell,) = score_cells(columns(trials)).values()
    for name, value in measure(cell).items():
        own, (least, greatest) = value.estimate, bounds_of(name)
        assert math.isnan(own.low) or least <= own.low <= own.value <= own.high <= greatest + 1e-9, name


def test_the_error_of_a_mean_is_made_before_its_interval_is_cut() -> None:
    values = [99.0, 40.0, 100.0, 100.0]
    trials = [
        {
            "cell": 0,
            "outcome": "exhausted",
            "iterations": 9,
            "learned.similarity_loss": 2 * (v < 50),
            "samples": [EMPTY | {"psnr": v}],
        }
        for v in values
    ]
    (cell,) = score_cells(columns(trials)).values()
    found = measure(cell)
    assert found["psnr"].estimate.high == 100
    assert found["psnr_error"].estimate.value == pytest.approx(stdev(values) / 2)
    assert found["similarity_loss"].estimate.low == 0
    assert found["similarity_loss_error"].estimate.value == pytest.approx(stdev([0.0, 2.0, 0.0, 0.0]) / 2)


def test_a_number_knows_whether_attacks_were_left_out_of_it() -> None:
    said = {"3 of 4 trials that converged": (True, True), "4 of 4 trials that converged": (True, False)}
    said |= {"": (False, False), "everything attacked, as none converged": (False, False)}
    for over, (of_successes, of_some) in said.items():
        value = Value(NONE, over)
        assert (value.of_successes, value.of_some) == (of_successes, of_some)


def test_alpha_is_told_by_its_mean_its_spread_and_how_often_it_ends_inside() -> None:
    alphas = [0.0, 0.5, 0.7, 1.0, math.nan]
    trial = {"cell": 0, "outcome": "exhausted", "iterations": 4, "samples": [EMPTY, EMPTY]}
    (before,) = score_cells(columns([trial] * 3)).values()
    assert not any(
        measure(before)[name].has_number for name in ("final_alpha", "final_alpha_deviation", "alpha_inside")
    )
    (cell,) = score_cells(columns([trial | {"learned.alpha": alpha} for alpha in alphas])).values()
    found = {name: value.estimate for name, value in measure(cell).items()}
    assert found["final_alpha"].value == pytest.approx(fmean(alphas[:4]))
    assert found["final_alpha_deviation"].value == pytest.approx(stdev(alphas[:4]))
    assert found["alpha_inside"].value == 0.5
    assert {found[name].n for name in ("final_alpha", "final_alpha_deviation", "alpha_inside")} == {4}


def test_old_rows_get_the_share_of_tops_inside_from_their_places() -> None:
    assert with_top_inside({"best_alpha": [0.0, 0.5, 1.0, None]})["top_inside"] == [0.0, 1.0, 0.0, None]
    assert with_top_inside({"best_alpha": [0.0], "top_inside": [1.0]})["top_inside"] == [1.0]
    assert with_top_inside({"psnr": [1.0]}) == {"psnr": [1.0]}


def test_every_measure_has_words() -> None:
    assert all(title_of(name) for name in (*MEASURES, *RATES))
    assert title_of("top_five") == "top five"
