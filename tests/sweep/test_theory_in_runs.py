"""Theorem 2.2 on its way through a sweep of `linear_system`: norms, condition, bound and error in every record where there are any."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.record import Record
from leakscope.scenario import scenario_of
from leakscope.store import Run
from sweeper import sweep

ALWAYS = {"norm_b", "norm_e", "norm_inverse_e", "condition", "condition_2", "error"}


def records(directory: Path, **changed: Any) -> list[tuple[Any, Record]]:
    """Return the settings of the cell and the record of every attack of a small run."""
    plain: dict[str, Any] = {
        "data": "digits",
        "model": {"name": "mlp", "hidden": [16], "activation": "sigmoid"},
        "weights": {"name": "uniform", "a": 0.3},
        "defences": [{"name": "gaussian_noise", "sigma": 0}],
        "attacks": [{"name": "linear_system"}],
        "knowledge": {"defence": False},
        "trials": 8,
        "baselines": [],
        **changed,
    }
    assert sweep(directory, scenario_of(plain)).left == 0
    run = Run.open(directory)
    settings = {cell.id: cell.settings for cell in run.cells()}
    return [(settings[record.cell], record) for record in run.records()]


def test_the_error_stays_under_the_bound_and_without_condition_2_there_is_none(tmp_path: Path) -> None:
    found = records(tmp_path / "run", grid={"defences.0.sigma": [0, 0.001, 10]})
    assert len(found) == 24
    for settings, record in found:
        sigma, told = settings["defences"][0]["sigma"], record.learned
        assert set(told) >= ALWAYS
        assert all(math.isfinite(value) for value in told.values())
        assert told["condition"] == pytest.approx(1)  # one unit for every input
        assert (told["norm_inverse_e"] < 1) == bool(told["condition_2"])
        assert ("error_bound" in told) == bool(told["condition_2"])
        if "error_bound" in told:
            assert told["error"] <= told["error_bound"] + 1e-12
        assert (told["norm_e"] == 0) == (told["error"] == 0) == (sigma == 0)
    held = {settings["defences"][0]["sigma"]: record.learned["condition_2"] for settings, record in found}
    assert held[0.001] == 1
    assert min(r.learned["condition_2"] for s, r in found if s["defences"][0]["sigma"] == 10) == 0


def test_the_error_is_that_of_the_picture_which_the_attack_gave(tmp_path: Path) -> None:
    """Digits are not scaled, so the solution is the picture, and the relative error is that of its pixels before they are cut."""
    run = tmp_path / "run"
    found = records(run, defences=[{"name": "gaussian_noise", "sigma": 0.003}])
    for _, record in found:
        kept = Run.open(run).tensors(record.trial)
        apart = (kept["inputs"] - kept["truth"]).double().norm() / kept["truth"].double().norm()
        assert record.learned["error"] == pytest.approx(float(apart), rel=1e-3)


def test_one_who_knows_what_was_sent_has_the_system_of_what_was_sent(tmp_path: Path) -> None:
    changed = {"defences": [{"name": "sparsify", "share": 0.3}], "knowledge": {"defence": True}}
    for _, record in records(tmp_path / "run", **changed):
        assert record.learned["norm_e"] == pytest.approx(0, abs=1e-12)  # of the pairs that it takes nothing is missing


def test_other_attacks_and_weight_updates_have_no_theory(tmp_path: Path) -> None:
    local = {"local": {"epochs": 1, "batch_size": 1, "rate": 0.1}}
    kinds = [{"name": "linear_system"}, {"name": "analytic"}]
    for number, changed in enumerate(({"attacks": kinds[1:]}, {"attacks": kinds[:1], "client": local})):
        for _, record in records(tmp_path / str(number), defences=[], trials=2, **changed):
            assert record.learned == {}
