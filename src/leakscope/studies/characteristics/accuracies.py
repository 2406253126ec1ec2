"""Accuracies under the defences of a run: how a training gets them, and those of a file."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.scenario.cell import CellSettings
from leakscope.scenario.pieces import KINDS, describe_field
from leakscope.scenario.settings import DataChoice
from leakscope.studies.characteristics.lines import Line, defence_name
from leakscope.sweep.objects import data_of
from leakscope.training import Training, training_of
from leakscope.training.file import BESIDE, TrainingData

AccuracyOf = Callable[[CellSettings, float], tuple[float, int | None]]


def training_under(training: Training, settings: CellSettings) -> Training:
    """Return the training with the defence of a cell; refused where it has one already, or trains another network or data."""
    source, client = training.file.source or "the training", training.client
    if training.defences or client.on_model or client.on_data:
        raise InputError(f"{source} has a defence of its own: leave it out, that of every cell of the run is put in")
    for what, trained, attacked in (
        ("model", training.model.plain(), settings.model.plain()),
        ("data", _looks(training.data), _looks(settings.data)),
    ):
        if json.dumps(trained, sort_keys=True) != json.dumps(attacked, sort_keys=True):
            raise InputError(
                f"{source} trains {what} ({_words(trained)}), the run attacks ({_words(attacked)}): "
                "a characteristic needs both of one"
            )
    defences = [KINDS["defences"].describe(defence) for defence in settings.client.defences]
    guards = {name: describe_field(name, getattr(settings.client, name)) for name in ("on_model", "on_data")}
    changed = training_of({**training.plain, "defences": defences, "client": {**training.plain["client"], **guards}})
    return replace(changed, file=replace(changed.file, source=training.file.source))


def _looks(data: TrainingData | DataChoice) -> dict[str, object]:
    return {"name": data.name, "size": data.size, "scaling": data.scaling}


def _words(plain: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def folder_of(under: Training) -> str:
    """Return a name for a training under a defence: the same for the same training, however many rounds it has."""
    decisive = {name: value for name, value in under.plain.items() if name not in BESIDE}
    text = json.dumps(decisive, sort_keys=True)
    names = [str(KINDS["defences"].describe(defence)["name"]) for defence in under.defences]
    names += [name for name in ("on_model", "on_data") if getattr(under.client, name) is not None]
    return "-".join([*names, hashlib.sha256(text.encode()).hexdigest()[:10]])


def shares_alike(training: Training, settings: CellSettings) -> bool:
    """Return whether clients of both send a gradient, or both what local training made of their weights."""
    return (training.client.local is None) == (settings.client.local is None)


def guessing(settings: CellSettings) -> float:
    """Return the accuracy of a model that guesses, on the data of a cell."""
    return 1 / data_of(settings.data).classes


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

    def accuracy(settings: CellSettings, strength: float) -> tuple[float, int | None]:
        del settings
        for value, accuracy_and_n in known.items():
            if math.isclose(value, strength, rel_tol=1e-9):
                return accuracy_and_n
        raise InputError(f"{path} has no accuracy for strength {strength:g}; it has {', '.join(map(str, known))}")

    return accuracy
