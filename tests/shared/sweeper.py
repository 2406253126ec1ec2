"""A small sweep that a test may run, kill and run again, and example files at a small size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from leakscope.scenario import Scenario, scenario_of
from leakscope.scenario.components import ATTACKERS, file_fields
from leakscope.scenario.text import read_text
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


def kind_of(path: Path) -> str:
    """Return what a YAML file of a user is, by the fields that only one kind has."""
    fields = set(yaml.safe_load(path.read_text(encoding="utf-8")))
    return "training" if "partition" in fields else "audit" if "minutes" in fields else "scenario"


def short_example(path: Path) -> dict[str, Any]:
    """Return an example file with as little work as possible: the same data, network, attacks and fields, fewer of each."""
    data: dict[str, Any] = read_text(path.read_text(encoding="utf-8")).data  # type: ignore[assignment]
    kind = kind_of(path)
    if kind == "training":
        data["data"]["examples"] = 40
        data["partition"]["clients"] = min(10, data["partition"]["clients"])
        for local in filter(None, [data.get("client", {}).get("local")]):
            local["epochs"] = 1
        return data | {"rounds": 2, "checkpoints": [1], "evaluate": 2}
    if kind == "audit":
        return data
    shorter = {"iterations": 1, "tries": 1, "starts": 2}
    for field in {"attack", "attacks"} & set(data):
        written = data[field] if field == "attacks" else [data[field]]
        named = [{"name": each} if isinstance(each, str) else each for each in written]
        known = [file_fields(ATTACKERS[each["name"]], frozenset()) for each in named]
        short = [each | {k: v for k, v in shorter.items() if k in f} for each, f in zip(named, known, strict=True)]
        data[field] = short if field == "attacks" else short[0]
    for axes in (data.get("grid", {}), data.get("zip", {})):
        for name in axes:
            axes[name] = axes[name][:2]
    return data | {"trials": 1, "seeds": [0], "precision": {"form": "native"}}
