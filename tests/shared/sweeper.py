"""A small sweep that a test may run, kill and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from leakscope.scenario import Scenario, scenario_of
from leakscope.store import Run
from leakscope.sweep import Done, run_scenario
from leakscope.sweep.engines import serial

ONE_STEP = {"name": "lbfgs", "inner": 1}  # an iteration of one evaluation, not of up to 20
SMALL: dict[str, Any] = {
    "name": "small",
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "weights": {"name": "uniform", "a": 0.3},
    "attacks": [{"name": name, "iterations": 1, "optimiser": ONE_STEP} for name in ("cpl", "dlg")],
    "defences": [{"name": "gaussian_noise", "sigma": 0}],
    "knowledge": {"defence": False},
    "trials": 3,
    "seeds": [0, 1],
    "baselines": ["class_mean"],
    "precision": {"form": "native", "chunk": 3},
    "grid": {"defences.0.sigma": [0, 0.01]},
}


def small(**changed: Any) -> Scenario:
    return scenario_of({**SMALL, **changed})


def sweep(directory: Path, scenario: Scenario | None = None, **settings: Any) -> Done:
    torch.set_num_threads(1)
    settings = {"engine": serial, "measure": False, **settings}
    return run_scenario(scenario or small(), directory, **settings)


def content(directory: Path) -> dict[str, Any]:
    """Return everything a run holds that must not depend on how it came about: records without times, all tensors."""
    run = Run.open(directory)
    found: dict[str, Any] = {}
    for record in run.records():
        tensors = {name: value.numpy().tobytes() for name, value in run.tensors(record.trial).items()}
        plain = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "seconds"}
        assert record.trial not in found
        found[record.trial] = (repr(plain), tensors)
    return found
