"""Characteristics (PPC) of one's own runs: any defence that a sweep varies, against any attack of it.

A run is a sweep along one strength of a defence (`defences.0.sigma`, `client.on_model.alpha2`, ...). Cells that differ in nothing but
that strength are one line. Distances come from what the run stored; the ratio of biases from the first round of its clients, played
once more with the defence and without it, which costs no attack; accuracies from a training of the same network on the same data
under the same defence, or from a file. Tracing asks for the owners of the attacked pictures themselves, split into equal parts.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.analysis.characteristic import Characteristic, Example, Point, Rule, bias_ratio, measured
from leakscope.core.errors import InputError
from leakscope.core.record import Cell, Record
from leakscope.core.types import direction
from leakscope.experiments.scenario.attackers import made_for_heads
from leakscope.experiments.sweep.chunk import Chunk, played
from leakscope.experiments.sweep.trials import Trial
from leakscope.experiments.sweep.world import make_world
from leakscope.experiments.training import Training, training_of
from leakscope.inference.tracing import trace
from leakscope.metrics import Estimate, clean
from leakscope.store import Run

DEFENDED = ("defences", "client.on_model", "client.on_data")
AT_ONCE = 32  # clients played at once for the ratio
TOLD = "knowledge.defence"
RMSE, MEMBERSHIP, TRACING = "rMSE", "membership", "tracing"
AccuracyOf = Callable[[Mapping[str, Any], float], tuple[float, int | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of a run that differ in one strength alone, by strength; `values` are the defence without it."""

    run: Run
    along: str
    cells: tuple[tuple[float, Cell], ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings of the first cell."""
        return self.cells[0][1].settings

    @property
    def values(self) -> list[Any]:
        """Return the pieces of the defence, without the strength that the line goes along."""
        plain = _without(self.settings, self.along)
        client = plain["client"]
        heads = [] if client["on_model"] is None else [{"name": "spn", **client["on_model"]}]
        policies = [] if client["on_data"] is None else [{"name": "policy", **client["on_data"]}]
        return [*plain["defences"], *heads, *policies]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Characteristics by attack and distance, examples of their regions, and what was left out and why."""

    curves: tuple[Characteristic, ...]
    examples: tuple[Example, ...]
    notes: tuple[str, ...]


# -- which cells belong together


def lines_of(run: Run, along: str | None = None) -> list[Line]:
    """Return the lines of a run along a strength: the one named, or the only one there is."""
    cells = [cell for cell in run.cells() if not cell.baseline]
    strength = _along(run, cells, along)
    found: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        key = json.dumps(_without(cell.settings, strength), sort_keys=True)
        found.setdefault(key, []).append((float(str(cell.axes[strength])), cell))
    return [Line(run, strength, tuple(sorted(own, key=lambda pair: pair[0]))) for own in found.values()]


def _along(run: Run, cells: Sequence[Cell], named: str | None) -> str:
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    able = [
        axis for axis in axes if axis.startswith(DEFENDED) and all(_is_number(cell.axes.get(axis)) for cell in cells)
    ]
    if named is None and len(able) == 1:
        return able[0]
    if named in able:
        return str(named)
    said = f"those of this run: {', '.join(able) or 'none'}"
    if any(" + " in axis and any(field.startswith(DEFENDED) for field in axis.split(" + ")) for axis in axes):
        said += "; a zip changes other fields with a strength, and cannot be used"
    wanted = "--along names one" if named is None else f"--along {named!r} is not one"
    raise InputError(
        f"{run.directory}: a characteristic goes along one strength of a defence, a number in every cell "
        f"(grid: {{defences.0.sigma: [...]}}); {wanted}; {said}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the settings without the value at a path, nor titles."""
    plain = copy.deepcopy(dict(settings))
    plain.pop("name", None)
    *way, last = path.split(".")
    place: Any = plain
    for word in way:
        place = place[int(word)] if isinstance(place, list) else place[word]
    place.pop(last)
    return plain


def name_lines(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return (defence, attacker) of every line: names, told apart by the settings that differ, at last by their run."""
    values = [line.values for line in lines]
    named = [(_defence(value, values), _attacker(line)) for line, value in zip(lines, values, strict=True)]
    return [
        name if named.count(name) == 1 else (name[0], f"{name[1]}, {line.run.directory.name}")
        for name, line in zip(named, lines, strict=True)
    ]


def _defence(pieces: Sequence[Mapping[str, Any]], among: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return the names of a defence's pieces, each with the settings in which other defences of these names differ."""
    names = [piece["name"] for piece in pieces]
    alike = [other for other in among if [piece["name"] for piece in other] == names]
    words = []
    for place, piece in enumerate(pieces):
        differing = [key for key in piece if any(other[place].get(key) != piece[key] for other in alike)]
        words.append(" ".join([str(piece["name"]), *(f"{key}={piece[key]}" for key in differing)]))
    return " + ".join(words) or "no defence"


def _attacker(line: Line) -> str:
    settings, axes = line.settings, line.cells[0][1].axes
    attack = str(settings["attack"].get("label") or settings["attack"]["name"])
    if settings["knowledge"]["defence"]:
        knows = "knows the defence"
    elif settings["client"]["on_model"] is not None and made_for_heads(settings["attack"]["name"]):
        knows = "knows that there is a head"
    else:
        knows = "does not know"
    others = [f"{axis} {value}" for axis, value in axes.items() if axis not in ("attack", TOLD, line.along)]
    return ", ".join([attack, knows, *others])


# -- accuracies


def defence_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a cell's client defends it."""
    client = settings["client"]
    return {"defences": settings["defences"], "on_model": client["on_model"], "on_data": client["on_data"]}


def training_under(training: Training, settings: Mapping[str, Any]) -> Training:
    """Return the training with the defence of a cell; refused where it has one of its own, or trains another network or data."""
    given, source = copy.deepcopy(training.settings), training.source or "the training"
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
    found = defence_of(settings)
    given["defences"] = found["defences"]
    given["client"] |= {name: found[name] for name in ("on_model", "on_data")}
    return replace(training_of(given), source=training.source)


def _looks(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in ("name", "size", "scaling")}


def _said(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def folder_of(under: Training) -> str:
    """Return a name for a training under a defence: the same for the same training, however many rounds it has."""
    beside = ("name", "rounds", "checkpoints")
    text = json.dumps({name: value for name, value in under.settings.items() if name not in beside}, sort_keys=True)
    names = [str(piece["name"]) for piece in under.settings["defences"]]
    names += [word for word in ("on_model", "on_data") if under.settings["client"][word] is not None]
    return "-".join([*names, hashlib.sha256(text.encode()).hexdigest()[:10]])


def shares_alike(training: Training, settings: Mapping[str, Any]) -> bool:
    """Return whether clients of both send a gradient, or both what local training made of their weights."""
    return (training.settings["client"]["local"] is None) == (settings["client"]["local"] is None)


def guessing(settings: Mapping[str, Any]) -> float:
    """Return the accuracy of a model that guesses, on the data of a cell."""
    return 1 / make_world(settings).data.classes


def read_accuracies(path: Path) -> dict[float, tuple[float, int | None]]:
    """Return accuracy and number of test pictures (or None) by strength, from a CSV with a line of heads."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the accuracies {path} ({error})") from None
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if not {"strength", "accuracy"} <= set(rows.fieldnames or ()):
        raise InputError(f"{path} needs columns strength and accuracy (and tests), got {rows.fieldnames}")
    found: dict[float, tuple[float, int | None]] = {}
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
        if strength in found:
            raise InputError(f"{path}, line {rows.line_num}: strength {strength:g} has an accuracy already")
        found[strength] = (accuracy, tests)
    return found


def accuracies_from(path: Path, lines: Sequence[Line]) -> AccuracyOf:
    """Return the accuracies of a file, asked for by strength; refused for lines of several defences, whose accuracies differ."""
    known = read_accuracies(path)
    defences = list(dict.fromkeys(_defence(line.values, [other.values for other in lines]) for line in lines))
    if len(defences) > 1:
        raise InputError(f"{path} has one accuracy a strength, and the run has several defences: {'; '.join(defences)}")

    def accuracy(settings: Mapping[str, Any], strength: float) -> tuple[float, int | None]:
        del settings
        for value, found in known.items():
            if math.isclose(value, strength, rel_tol=1e-9):
                return found
        raise InputError(f"{path} has no accuracy for strength {strength:g}; it has {', '.join(map(str, known))}")

    return accuracy


# -- the curves


def measure_curves(
    lines: Sequence[Line],
    accuracy_of: Sequence[AccuracyOf],
    *,
    participants: int = 10,
    rule: Rule | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Curves:
    """Return the characteristics of all lines; `accuracy_of` has one entry for each."""
    counted = rule or Rule()
    curves: list[Characteristic] = []
    examples: list[Example] = []
    notes: list[str] = []
    named = [f"{defence}, {attacker}" for defence, attacker in name_lines(lines)]
    settings: list[list[_Setting]] = []
    for line, who in zip(lines, named, strict=True):  # all of them before the first accuracy, which may take an hour
        tell(who)
        settings.append(list(_settings(line, who, counted, participants, notes)))
    if not any(setting.strength for own in settings for setting in own):
        raise InputError("no trial has landed at a strength above 0: there is nothing to draw yet")
    for line, own, accuracy, who, names in zip(lines, settings, accuracy_of, named, name_lines(lines), strict=True):
        points: dict[str, list[Point]] = {}
        for setting in own:
            found = setting.points(*accuracy(setting.cell.settings, setting.strength))
            if setting.strength == 0:
                said = ", ".join(f"{name} {point.distance.value:.3g}" for name, point in found.items())
                notes.append(f"{who}: at strength 0, which is in no CAP, accuracy {found[RMSE].accuracy:.1%}, {said}")
                continue
            examples.append(replace(setting.example, defence=f"{names[0]} {setting.strength:g}"))
            for name, point in found.items():
                points.setdefault(name, []).append(point)
        chances = {MEMBERSHIP: 1 - guessing(line.settings), TRACING: 1 - 1 / participants}
        curves += [
            Characteristic(*names, name, tuple(few), counted.words if name == RMSE else "", chances.get(name))
            for name, few in points.items()
        ]
        notes += _missing(points, who, participants)
    return Curves(tuple(curves), _fewer(examples), tuple(notes))


def _missing(points: Mapping[str, Sequence[Point]], who: str, participants: int) -> Iterator[str]:
    """Yield what is missing of a line beside rMSE, which every setting has."""
    reasons = {
        MEMBERSHIP: "the attacker is told the labels or guesses none",
        TRACING: f"not each of {participants} participants has a picture that was attacked",
    }
    every = [point.parameter for point in points.get(RMSE, ())]
    for name, reason in reasons.items():
        there = [point.parameter for point in points.get(name, ())]
        lost = [f"{value:g}" for value in every if value not in there]
        if lost:
            yield f"{who}: no {name} at {', '.join(lost)}, because {reason}"


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """One strength as it was attacked, before its accuracy is known: the ratio, each kind of distance, and an example."""

    strength: float
    cell: Cell
    ratio: Tensor
    distances: Mapping[str, tuple[Tensor, Tensor | None]]
    traced: Estimate | None
    example: Example

    def points(self, accuracy: float, tests: int | None) -> dict[str, Point]:
        """Return its points by distance."""
        found = {
            name: measured(self.strength, self.ratio, accuracy, value, finite, tests=tests)
            for name, (value, finite) in self.distances.items()
        }
        if self.traced is not None:
            found[TRACING] = Point(self.strength, found[RMSE].ratio, accuracy, self.traced, tests=tests)
        return found


def _settings(line: Line, who: str, rule: Rule, participants: int, notes: list[str]) -> Iterator[_Setting]:
    """Yield what was measured at each strength; what has not landed, wholly or in part, is noted."""
    for strength, cell in line.cells:
        asked: Any = cell.settings
        wanted = asked["trials"] * len(asked["seeds"])
        held = _held(line.run, cell)
        if held is None or len(held.records) < wanted:
            landed = 0 if held is None else len(held.records)
            notes.append(f"{who}: {landed} of {wanted} trials have landed at {strength:g}")
        if held is None:
            continue
        ratio = _ratio(cell, held.records)
        each = _distances(held, rule)
        kinds = _kinds(held, asked, each)
        found = measured(strength, ratio, 0.0, *kinds[RMSE])
        example = _example(held, each[0], found)
        yield _Setting(strength, cell, ratio, kinds, _traced(held, participants), example)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a run stored of a cell: its records and, for each, truth and guess with as many samples, paired."""

    records: tuple[Record, ...]
    truth: tuple[Tensor, ...]
    guess: tuple[Tensor, ...]


def _held(run: Run, cell: Cell) -> _Held | None:
    records = tuple(run.records(cell=cell.id))
    truth, guess = [], []
    for record in records:
        stored = run.tensors(record.trial)
        if not {"truth", "inputs", "pairing"} <= stored.keys():
            raise InputError(f"{run.directory} keeps no reconstructions, which distances are taken of")
        places = torch.tensor([sample.sample for sample in record.samples], dtype=torch.int64)
        truth.append(stored["truth"][places])
        guess.append(stored["inputs"][stored["pairing"][places]])
    return _Held(records, tuple(truth), tuple(guess)) if records else None


def _distances(held: _Held, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return the relative error of every sample and whether its guess was finite, T x N each."""
    pairs = [rule.distances(x[None], g[None]) for x, g in zip(held.truth, held.guess, strict=True)]
    return torch.cat([value for value, _ in pairs]), torch.cat([finite for _, finite in pairs])


def _kinds(
    held: _Held, settings: Mapping[str, Any], each: tuple[Tensor, Tensor]
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the distances of reconstruction and, where labels are in question, of membership."""
    found: dict[str, tuple[Tensor, Tensor | None]] = {RMSE: each}
    correct = [[sample.label_correct for sample in record.samples] for record in held.records]
    if not settings["knowledge"]["labels"] and all(value is not None for own in correct for value in own):
        found[MEMBERSHIP] = (~torch.tensor(correct, dtype=torch.bool), None)
    return found


def _traced(held: _Held, participants: int) -> Estimate | None:
    """Return the distance of tracing, or None where some participant has no picture; a picture is one query, whatever its seeds."""
    places = [record.items[sample.sample] for record in held.records for sample in record.samples]
    pictures = dict(zip(places, torch.cat(held.truth), strict=True))
    order = {place: number for number, place in enumerate(pictures)}
    if len(pictures) < participants:
        return None
    source = torch.tensor([order[place] for place in places])
    guesses = clean(torch.cat(held.guess))
    return trace(torch.stack(list(pictures.values())), guesses, source, participants=participants).all


def _ratio(cell: Cell, records: Sequence[Record]) -> Tensor:
    """Return ||B|| / ||E|| of every trial, from its client's first round with the defence and without it."""
    found = []
    for first in range(0, len(records), AT_ONCE):
        trials = tuple(
            Trial(record.trial, 0, record.number, record.seed, record.items)
            for record in records[first : first + AT_ONCE]
        )
        chunk = Chunk(name="ratio", trials=trials, cells={0: (cell.id, cell.settings)})
        plain, sent = (played(chunk, defended=defended) for defended in (False, True))
        found.append(bias_ratio(direction(plain.rounds[0], plain.shares), direction(sent.rounds[0], sent.shares)))
    return torch.cat(found)


def _example(held: _Held, distances: Tensor, point: Point) -> Example:
    """Return the sample whose distance is in the middle."""
    flat = distances.flatten()
    order = torch.where(flat.isnan(), torch.inf, flat).argsort()
    place = int(order[int((~flat.isnan()).sum()) // 2])
    truth, guess = torch.cat(held.truth)[place], torch.cat(held.guess)[place]
    return Example(
        truth=truth,
        guess=guess,
        defence="",
        region=point.region,
        ratio=point.ratio,
        distance=float(flat[place]),
    )


def _fewer(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return one example a defence and region: the first line's, which is the attacker who does not know where both are."""
    return tuple({(one.defence, one.region): one for one in reversed(examples)}.values())[::-1]
