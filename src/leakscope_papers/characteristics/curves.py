"""The characteristics of lines: distances from the stored run, and the ratio of biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.record import Cell, Record
from leakscope.core.types import direction
from leakscope.inference.tracing import trace
from leakscope.metrics import Estimate, clean
from leakscope.scenario.cell import CellSettings, read_settings
from leakscope.store import Run
from leakscope.sweep.chunk import Chunk, observe_chunk
from leakscope.sweep.trials import Trial
from leakscope_papers.characteristics.characteristic import Characteristic, Example, Point, Rule, bias_ratio, measured
from leakscope_papers.characteristics.lines import AccuracyOf, Line, guessing, name_lines

AT_ONCE = 32  # clients simulated at once for the ratio
RMSE, MEMBERSHIP, TRACING = "rMSE", "membership", "tracing"


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Characteristics by attack and distance, examples of their regions, and what was left out and why."""

    curves: tuple[Characteristic, ...]
    examples: tuple[Example, ...]
    notes: tuple[str, ...]


def measure_curves(
    lines: Sequence[Line],
    accuracy_of: Sequence[AccuracyOf],
    *,
    participants: int = 10,
    rule: Rule | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Curves:
    """Return the characteristics of all lines; `accuracy_of` has one entry per line."""
    counted = rule or Rule()
    curves: list[Characteristic] = []
    examples: list[Example] = []
    notes: list[str] = []
    named = [f"{defence}, {attacker}" for defence, attacker in name_lines(lines)]
    settings: list[list[_Setting]] = []
    for line, who in zip(lines, named, strict=True):  # all distances before the first accuracy, which may take an hour
        report(who)
        settings.append(list(_settings(line, who, counted, participants, notes)))
    if not any(setting.strength for of_line in settings for setting in of_line):
        raise InputError("no trial at a strength above 0 is finished: there is nothing to draw yet")
    for line, of_line, accuracy, who, names in zip(lines, settings, accuracy_of, named, name_lines(lines), strict=True):
        points: dict[str, list[Point]] = {}
        for setting in of_line:
            by_distance = setting.points(*accuracy(read_settings(setting.cell.settings), setting.strength))
            if setting.strength == 0:
                text = ", ".join(f"{name} {point.distance.value:.3g}" for name, point in by_distance.items())
                notes.append(
                    f"{who}: at strength 0, which is in no CAP, accuracy {by_distance[RMSE].accuracy:.1%}, {text}"
                )
                continue
            examples.append(replace(setting.example, defence=f"{names[0]} {setting.strength:g}"))
            for name, point in by_distance.items():
                points.setdefault(name, []).append(point)
        chances = {MEMBERSHIP: 1 - guessing(line.settings), TRACING: 1 - 1 / participants}
        curves += [
            Characteristic(*names, name, tuple(few), counted.words if name == RMSE else "", chances.get(name))
            for name, few in points.items()
        ]
        notes += _missing(points, who, participants)
    return Curves(tuple(curves), _fewer(examples), tuple(notes))


def _missing(points: Mapping[str, Sequence[Point]], who: str, participants: int) -> Iterator[str]:
    """Yield what is missing of a line besides rMSE, which every setting has."""
    reasons = {
        MEMBERSHIP: "the attacker knows the labels or guesses none",
        TRACING: f"not each of {participants} participants has a picture that was attacked",
    }
    every = [point.parameter for point in points.get(RMSE, ())]
    for name, reason in reasons.items():
        present = [point.parameter for point in points.get(name, ())]
        lost = [f"{value:g}" for value in every if value not in present]
        if lost:
            yield f"{who}: no {name} at {', '.join(lost)}, because {reason}"


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """One attacked strength before its accuracy is known: the ratio, the distances, and an example."""

    strength: float
    cell: Cell
    ratio: Tensor
    distances: Mapping[str, tuple[Tensor, Tensor | None]]
    traced: Estimate | None
    example: Example

    def points(self, accuracy: float, tests: int | None) -> dict[str, Point]:
        """Return its points by distance."""
        by_distance = {
            name: measured(self.strength, self.ratio, accuracy, value, finite, tests=tests)
            for name, (value, finite) in self.distances.items()
        }
        if self.traced is not None:
            by_distance[TRACING] = Point(self.strength, by_distance[RMSE].ratio, accuracy, self.traced, tests=tests)
        return by_distance


def _settings(line: Line, who: str, rule: Rule, participants: int, notes: list[str]) -> Iterator[_Setting]:
    """Yield the measurements at each strength; incomplete ones are noted."""
    for strength, cell in line.cells:
        settings = read_settings(cell.settings)
        wanted = settings.trials * len(settings.seeds)
        held = _held(line.run, cell)
        if held is None or len(held.records) < wanted:
            landed = 0 if held is None else len(held.records)
            notes.append(f"{who}: {landed} of {wanted} trials are finished at {strength:g}")
        if held is None:
            continue
        ratio = _ratio(cell, held.records)
        each = _distances(held, rule)
        kinds = _kinds(held, settings, each)
        point = measured(strength, ratio, 0.0, *kinds[RMSE])
        example = _example(held, each[0], point)
        yield _Setting(strength, cell, ratio, kinds, _traced(held, participants), example)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a run stored of a cell: its records and, for each, the true and reconstructed samples, paired."""

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
    """Return the relative error of every sample and whether its reconstruction is finite, T x N each."""
    pairs = [rule.distances(x[None], g[None]) for x, g in zip(held.truth, held.guess, strict=True)]
    return torch.cat([value for value, _ in pairs]), torch.cat([finite for _, finite in pairs])


def _kinds(held: _Held, settings: CellSettings, each: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the distances of reconstruction and, if labels are unknown to the attacker, of membership."""
    kinds: dict[str, tuple[Tensor, Tensor | None]] = {RMSE: each}
    correct = [[sample.label_correct for sample in record.samples] for record in held.records]
    if not settings.knowledge.labels and all(value is not None for row in correct for value in row):
        kinds[MEMBERSHIP] = (~torch.tensor(correct, dtype=torch.bool), None)
    return kinds


def _traced(held: _Held, participants: int) -> Estimate | None:
    """Return the distance of tracing the owners of the attacked images (split evenly); None if a participant has no image."""
    places = [record.items[sample.sample] for record in held.records for sample in record.samples]
    pictures = dict(zip(places, torch.cat(held.truth), strict=True))
    order = {place: number for number, place in enumerate(pictures)}
    if len(pictures) < participants:
        return None
    source = torch.tensor([order[place] for place in places])
    guesses = clean(torch.cat(held.guess))
    return trace(torch.stack(list(pictures.values())), guesses, source, participants=participants).all


def _ratio(cell: Cell, records: Sequence[Record]) -> Tensor:
    """Return ||B|| / ||E|| of every trial, from its client's first round, simulated again with and without the defence."""
    ratios = []
    for first in range(0, len(records), AT_ONCE):
        trials = tuple(
            Trial(record.trial, 0, record.number, record.items, record.seed)
            for record in records[first : first + AT_ONCE]
        )
        chunk = Chunk(name="ratio", trials=trials, cells={0: cell})
        plain, sent = (observe_chunk(chunk, defended=defended) for defended in (False, True))
        ratios.append(bias_ratio(direction(plain.rounds[0], plain.shares), direction(sent.rounds[0], sent.shares)))
    return torch.cat(ratios)


def _example(held: _Held, distances: Tensor, point: Point) -> Example:
    """Return the sample with the median distance."""
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
    """Return one example per defence and region, of the first line (the uninformed attacker, if there are both)."""
    return tuple({(one.defence, one.region): one for one in reversed(examples)}.values())[::-1]
