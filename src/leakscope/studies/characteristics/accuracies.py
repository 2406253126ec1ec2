"""Accuracies under the defences of a run: how a training gets them, and those of a file."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.core.errors import InputError
from leakscope.scenario.cell import read_settings
from leakscope.studies.characteristics.lines import Line, defence_name
from leakscope.sweep.objects import data_of
from leakscope.training import Training, training_of

AccuracyOf = Callable[[Mapping[str, Any], float], tuple[float, int | None]]


def defence_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a cell's client defends it."""
    client = settings["client"]
    return {"defences": settings["defences"], "on_model": client["on_model"], "on_data": client["on_data"]}


def training_under(training: Training, settings: Mapping[str, Any]) -> Training:
    """Return the training with the defence of a cell; refused where it has one of its own, or trains another network or data."""
    given, source = copy.deepcopy(dict(training.settings)), training.file.source or "the training"
    if any(defence_of(given).values()):
        raise InputError(f"{source} has a defence of its own: leave it out, that of every cell of the run is put in")
    for what, mine, other in (
        ("model", dict(given["model"]), dict(settings["model"])),
        ("data", _looks(given["data"]), _looks(settings["data"])),
    ):
        if json.dumps(mine, sort_keys=True) != json.dumps(other, sort_keys=True):
            raise InputError(
                f"{source} trains {what} ({_said(mine)}), the run attacks ({_said(other)}): a characteristic needs both of one"
            )
    defence = defence_of(settings)
    given["defences"] = defence["defences"]
    given["client"] |= {name: defence[name] for name in ("on_model", "on_data")}
    changed = training_of(given)
    return replace(changed, file=replace(changed.file, source=training.file.source))


def _looks(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in ("name", "size", "scaling")}


def _said(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def folder_of(under: Training) -> str:
    """Return a name for a training under a defence: the same for the same training, however many rounds it has."""
    beside = ("name", "rounds", "checkpoints")
    text = json.dumps({name: value for name, value in under.settings.items() if name not in beside}, sort_keys=True)
    client = under.federation.client
    names = [str(piece["name"]) for piece in under.settings["defences"]]
    names += ["on_model"] * (client.on_model is not None) + ["on_data"] * (client.on_data is not None)
    return "-".join([*names, hashlib.sha256(text.encode()).hexdigest()[:10]])


def shares_alike(training: Training, settings: Mapping[str, Any]) -> bool:
    """Return whether clients of both send a gradient, or both what local training made of their weights."""
    return (training.federation.client.local is None) == (read_settings(settings).client.local is None)


def guessing(settings: Mapping[str, Any]) -> float:
    """Return the accuracy of a model that guesses, on the data of a cell."""
    return 1 / data_of(read_settings(settings).data).classes


def read_accuracies(path: Path) -> dict[float, tuple[float, int | None]]:
    """Return accuracy and number of test pictures (or None) by strength, from a CSV with a line of heads."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the accuracies {path} ({error})") from None
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if not {"strength", "accuracy"} <= set(rows.fieldnames or ()):
        raise InputError(f"{path} needs columns strength and accuracy (and tests), got {rows.fieldnames}")
    accuracies: dict[float, tuple[float, int | None]] = {}
    for row in rows:
        try:
            strength, accuracy = float(row["strength"]), float(row["accuracy"])
            tests = int(row["tests"]) if row.get("tests") else None
        except (TypeError, ValueError):
            raise InputError(f"{path}, line {rows.line_num}: {row} is not a strength, an accuracy and tests") from None
        if not 0 <= accuracy <= 1 or (tests is not None and tests < 1):
            raise InputError(
                f"{path}, line {rows.line_num}: accuracy must be a share in [0, 1] over at least one test, got {row}"
            )
        if strength in accuracies:
            raise InputError(f"{path}, line {rows.line_num}: strength {strength:g} has an accuracy already")
        accuracies[strength] = (accuracy, tests)
    return accuracies


def accuracies_from(path: Path, lines: Sequence[Line]) -> AccuracyOf:
    """Return the accuracies of a file, asked for by strength; refused for lines of several defences, whose accuracies differ."""
    known = read_accuracies(path)
    defences = list(dict.fromkeys(defence_name(line.values, [other.values for other in lines]) for line in lines))
    if len(defences) > 1:
        raise InputError(f"{path} has one accuracy a strength, and the run has several defences: {'; '.join(defences)}")

    def accuracy(settings: Mapping[str, Any], strength: float) -> tuple[float, int | None]:
        del settings
        for value, accuracy_and_n in known.items():
            if math.isclose(value, strength, rel_tol=1e-9):
                return accuracy_and_n
        raise InputError(f"{path} has no accuracy for strength {strength:g}; it has {', '.join(map(str, known))}")

    return accuracy
