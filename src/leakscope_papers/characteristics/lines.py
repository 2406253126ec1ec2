"""Which cells of a run form one line of a characteristic, the line's name, and the accuracies under its defence."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.scenario.attackers import handles_private_heads
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.scenario.components import KINDS, describe_field
from leakscope.scenario.settings import DataChoice
from leakscope.store import Run
from leakscope.sweep.objects import data_of
from leakscope.training import Training, training_of
from leakscope.training.file import TrainingData

DEFENDED = ("defences", "client.on_model", "client.on_data")
KNOWS_DEFENCE = "knowledge.defence"


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of a run that differ only in one strength, by strength; `values` is the defence without it."""

    run: Run
    along: str
    cells: tuple[tuple[float, Cell], ...]

    @property
    def settings(self) -> CellSettings:
        """Return the settings of the first cell."""
        return read_settings(self.cells[0][1].settings)

    @property
    def values(self) -> list[Mapping[str, object]]:
        """Return the components of the defence, without the strength that varies."""
        plain = _without(self.cells[0][1].settings, self.along)
        client = cast(Mapping[str, Mapping[str, object] | None], plain["client"])
        heads = [] if client["on_model"] is None else [{"name": "spn", **client["on_model"]}]
        policies = [] if client["on_data"] is None else [{"name": "policy", **client["on_data"]}]
        return [*cast(list[Mapping[str, object]], plain["defences"]), *heads, *policies]


def lines_of(run: Run, along: str | None = None) -> list[Line]:
    """Return the lines of a run along a strength: the named one, or the only one."""
    cells = [cell for cell in run.cells() if not cell.baseline]
    strength = _along(run, cells, along)
    groups: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        key = json.dumps(_without(cell.settings, strength), sort_keys=True)
        groups.setdefault(key, []).append((float(str(cell.axes[strength])), cell))
    return [Line(run, strength, tuple(sorted(group, key=lambda pair: pair[0]))) for group in groups.values()]


def _along(run: Run, cells: Sequence[Cell], named: str | None) -> str:
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    able = [
        axis for axis in axes if axis.startswith(DEFENDED) and all(_is_number(cell.axes.get(axis)) for cell in cells)
    ]
    if named is None and len(able) == 1:
        return able[0]
    if named in able:
        return str(named)
    message = f"those of this run: {', '.join(able) or 'none'}"
    if any(" + " in axis and any(field.startswith(DEFENDED) for field in axis.split(" + ")) for axis in axes):
        message += "; a zip changes other fields with a strength, and cannot be used"
    wanted = "--along names one" if named is None else f"--along {named!r} is not one"
    raise InputError(
        f"{run.directory}: a characteristic goes along one strength of a defence, a number in every cell "
        f"(grid: {{defences.0.sigma: [...]}}); {wanted}; {message}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without(settings: Mapping[str, object], path: str) -> dict[str, object]:
    """Return the settings without the value at a path and without titles."""
    plain = copy.deepcopy(dict(settings))
    plain.pop("name", None)
    *way, last = path.split(".")
    place: object = plain
    for word in way:
        place = place[int(word)] if isinstance(place, list) else cast(dict[str, object], place)[word]
    cast(dict[str, object], place).pop(last)
    return plain


def name_lines(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return (defence, attacker) of every line, made unique by the settings that differ, then by the run."""
    values = [line.values for line in lines]
    named = [(defence_name(value, values), _attacker(line)) for line, value in zip(lines, values, strict=True)]
    return [
        name if named.count(name) == 1 else (name[0], f"{name[1]}, {line.run.directory.name}")
        for name, line in zip(named, lines, strict=True)
    ]


def defence_name(defence: Sequence[Mapping[str, object]], among: Sequence[Sequence[Mapping[str, object]]]) -> str:
    """Return the names of a defence's components, each with the settings in which other defences of these names differ."""
    names = [piece["name"] for piece in defence]
    alike = [other for other in among if [piece["name"] for piece in other] == names]
    words = []
    for place, piece in enumerate(defence):
        differing = [key for key in piece if any(other[place].get(key) != piece[key] for other in alike)]
        words.append(" ".join([str(piece["name"]), *(f"{key}={piece[key]}" for key in differing)]))
    return " + ".join(words) or "no defence"


def _attacker(line: Line) -> str:
    settings, axes = line.settings, line.cells[0][1].axes
    attack = str(settings.recipe.settings.get("label") or settings.recipe.name)
    if settings.knowledge.defence:
        knows = "knows the defence"
    elif settings.client.on_model is not None and handles_private_heads(settings.recipe.name):
        knows = "knows that there is a head"
    else:
        knows = "does not know"
    others = [f"{axis} {value}" for axis, value in axes.items() if axis not in ("attack", KNOWS_DEFENCE, line.along)]
    return ", ".join([attack, knows, *others])


AccuracyOf = Callable[[CellSettings, float], tuple[float, int | None]]


def training_under(training: Training, settings: CellSettings) -> Training:
    """Return the training with the defence of a cell; refused if it has one already, or another network or data."""
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
    changed = training_of({**training.plain, "defences": defences, "client": {**training.plain["client"], **guards}})  # type: ignore[dict-item]
    return replace(changed, file=replace(changed.file, source=training.file.source))


def _looks(data: TrainingData | DataChoice) -> dict[str, object]:
    sentences = {name: getattr(data, name) for name in ("length", "shortest", "words")}
    given = {name: value for name, value in sentences.items() if value is not None}
    return {"name": data.name, "size": data.size, "scaling": data.scaling, **given}


def _words(plain: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def folder_of(under: Training) -> str:
    """Return a folder name for a training under a defence, independent of its number of rounds."""
    text = json.dumps(under.decisive, sort_keys=True)
    names = [str(KINDS["defences"].describe(defence)["name"]) for defence in under.defences]
    names += [name for name in ("on_model", "on_data") if getattr(under.client, name) is not None]
    return "-".join([*names, hashlib.sha256(text.encode()).hexdigest()[:10]])


def shares_alike(training: Training, settings: CellSettings) -> bool:
    """Return whether clients of both send a gradient, or both send locally trained weights."""
    return (training.client.local is None) == (settings.client.local is None)


def guessing(settings: CellSettings) -> float:
    """Return the accuracy of uniform guessing on the data of a cell."""
    return 1 / data_of(settings.data).classes


def read_accuracies(path: Path) -> dict[float, tuple[float, int | None]]:
    """Return accuracy and number of test images (or None) by strength, from a CSV file with a header."""
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
    """Return the accuracies of a file by strength; refused for lines of several defences, because their accuracies differ."""
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
