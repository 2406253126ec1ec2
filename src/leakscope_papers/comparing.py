"""Comparison of printed with measured numbers: one line for every place that the paper prints or that was run.

A number agrees if it lies in our 95 % interval. Outside, it is close if the difference is small for its kind (`_margin`), else
higher or lower. Too few successes or a very wide interval give no verdict and are not counted. A missing number has a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope_papers.items import Item
from leakscope_papers.measures import RATES, Value
from leakscope_papers.naming import Column, meets
from leakscope_papers.programs.rows import Curve
from leakscope_papers.published import PrintedRow

AGREES, BY_CONTENT, CLOSE_BY, HIGHER, LOWER = "agrees", "agrees by content", "close", "higher", "lower"
TOO_FEW, ABSENT = "too few to say", "not measured here"
CONVERGENCE, CONTENT = "asr_convergence", "asr_content"
NO_THRESHOLD = "the attack has no threshold"
SOME_BASELINES = "not all baselines are measured there"
NOT_RUN, NO_SUCCESS = "not run", "no success to count"
NOT_RECORDED = "settings not recorded"
ALIKE = (AGREES, BY_CONTENT, CLOSE_BY)
JUDGED = (*ALIKE, HIGHER, LOWER)
COSINES = ("cosine_before", "cosine_greatest", "least_share")
DECIBELS = ("psnr", "psnr_above_baselines")
LEAST = 10  # minimal successes for a number over successes
WIDE = 5  # times the margin of `close`; a wider interval gives no verdict
RATE_APART, SSIM_APART, PSNR_APART, SHARE_APART, TIMES_APART = 0.05, 0.02, 1.0, 0.2, 3.0
FLOOR = (
    "by convergence the attack fails and by content it succeeds: noise and dropped coordinates give the gradient distance a floor "
    "above the threshold"
)
TRIVIAL = "the attack converges but does not recover the picture: a distance under the threshold does not determine the inputs"
Key: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured cell at its place: its column, number of trials, outcomes and measures."""

    where: Mapping[str, Plain]
    column: Column
    trials: int
    values: Mapping[str, Value]
    outcomes: Mapping[str, int] = field(default_factory=dict)
    cell: str = ""  # id
    note: str = ""  # differences from the paper
    curves: Mapping[str, Curve] = field(default_factory=dict)
    part: str = ""
    settings: str = ""  # hash; "" if not recorded
    earlier: str = ""  # how the settings differ from the item's present ones
    source: Mapping[str, str] = field(default_factory=dict)  # versions, machine, date and command of the run


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one printed number, with a reason if known."""

    word: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One place: the printed number of each measure, and the measured cells by column."""

    where: Mapping[str, Plain]
    printed: Mapping[str, PrintedRow]
    measured: tuple[Measured, ...]
    verdicts: Mapping[tuple[str, str], Verdict]  # by (column title, measure)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All lines of an item, the columns in order, and the verdict counts by column."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    counts: Mapping[str, Mapping[str, int]]


def judge(value: float, measured: Value, name: str) -> str:
    """Return how a printed number compares with ours.

    >>> from leakscope.metrics.interval import Estimate
    >>> judge(1.0, Value(Estimate(0.95, 0.76, 1.0, 20, 20)), "asr_convergence")
    'agrees'
    >>> judge(25.0, Value(Estimate(60.0, 50.0, 70.0, 20, 20)), "iterations_mean")
    'higher'
    >>> judge(25.0, Value(Estimate(5.5, 0.0, 50.0, 2, 2), "2 of 20 trials that converged"), "iterations_mean")
    'too few to say'
    """
    if not measured.has_number:
        return NO_SUCCESS
    ours = measured.estimate
    if measured.of_successes and ours.trials < LEAST:
        return TOO_FEW
    if ours.low <= value <= ours.high or ours.value == value:
        return TOO_FEW if _wide(value, ours, name) else AGREES
    if _close(value, ours.value, name):
        return CLOSE_BY
    return HIGHER if ours.value > value else LOWER


def _close(printed: float, ours: float, name: str) -> bool:
    if name.startswith("mse"):
        low, high = sorted((abs(printed), abs(ours)))
        return low > 0 and high / low <= TIMES_APART
    return abs(printed - ours) <= _margin(name, printed)


def _wide(printed: float, ours: Estimate, name: str) -> bool:
    """Return whether an interval reaches more than `WIDE` margins to a side; on a log scale for an MSE, where 0 counts as far."""
    if name.startswith("mse"):
        return ours.low <= 0 < ours.high or ours.high > TIMES_APART**WIDE * ours.value
    reach = max(ours.high - ours.value, ours.value - ours.low)
    return reach > WIDE * _margin(name, max(abs(printed), abs(ours.value)))


def _margin(name: str, value: float) -> float:
    """Return the difference up to which two numbers of a measure are close (not for MSE, which is compared by a factor)."""
    if name in RATES:
        return RATE_APART
    if name.startswith("ssim") or name in COSINES:
        return SSIM_APART
    return PSNR_APART if name in DECIBELS else SHARE_APART * abs(value)


def compare(item: Item, cells: Sequence[Measured], *, judged: bool = True) -> Comparison:
    """Return every place of an item with printed and measured numbers; `judged` False gives no verdicts."""
    every_column = [
        Column(reading.label, attacker.label, judged and place == 0)
        for reading in item.readings
        for place, attacker in enumerate(item.attackers)
    ]
    columns = tuple(dict.fromkeys(every_column))  # readings with the same label are one reading
    by_place = _by_place(item, cells)
    wheres: dict[Key, Mapping[str, Plain]] = {key: group[0].where for key, group in by_place.items()}
    homeless = {_key(row.where): row.where for row in item.printed.rows}
    taken = [*wheres.values(), *homeless.values()]
    alone = {k: w for k, w in homeless.items() if not any(meets(other, w) for other in taken if other is not w)}
    places = {**wheres, **alone}
    printed = {key: _printed_at(item, where, by_place.get(key, ()), cells) for key, where in places.items()}
    every = _in_printed_order(item, printed)
    lines = tuple(_line(item, places[key], printed[key], tuple(by_place.get(key, ())), columns) for key in every)
    return Comparison(columns, lines, {column.title: _count(lines, column) for column in columns})


def _by_place(item: Item, cells: Sequence[Measured]) -> dict[Key, list[Measured]]:
    """Return the cells by place; raises if two rows of one column have the same place, because a printed number would match both."""
    places: dict[Key, list[Measured]] = {}
    for cell in cells:
        same = places.setdefault(_key(cell.where), [])
        if any(other.column == cell.column and (other.cell != cell.cell or not cell.cell) for other in same):
            place = ", ".join(f"{axis} {value}" for axis, value in cell.where.items())
            raise InputError(f"{item.name}: two measured rows of {cell.column.title!r} stand at {place}")
        same.append(cell)
    return places


def _printed_at(
    item: Item, where: Mapping[str, Plain], at_place: Sequence[Measured], cells: Sequence[Measured]
) -> list[PrintedRow]:
    """Return the printed numbers of a place, one for each measure: the one that names most of its axes.

    A number that fits many places, such as a ratio printed for a defence, belongs to those whose cells have its measure, if any
    do. Two different numbers that name equally many axes are an error.
    """
    rows = [row for row in item.printed.rows if meets(where, row.where)]
    rows = [row for row in rows if _has(row, at_place) or not _has(row, cells)]
    nearest: dict[str, PrintedRow] = {}
    for row in rows:
        other = nearest.setdefault(row.measure, row)
        if len(row.where) > len(other.where):
            nearest[row.measure] = row
        elif len(row.where) == len(other.where) and row.value != other.value:
            place = ", ".join(f"{axis} {value}" for axis, value in where.items())
            raise InputError(f"{item.name}: {row.measure} is printed as {other.value} and as {row.value} at {place}")
    return [row for row in rows if nearest[row.measure] is row]


def _has(row: PrintedRow, cells: Sequence[Measured]) -> bool:
    return any(row.measure in cell.values and meets(cell.where, row.where) for cell in cells)


def _line(
    item: Item,
    where: Mapping[str, Plain],
    rows: Sequence[PrintedRow],
    cells: tuple[Measured, ...],
    columns: Sequence[Column],
) -> Line:
    printed = {row.measure: row for row in rows}
    by_column = {cell.column: cell for cell in cells}
    verdicts = {
        (column.title, name): _verdict(item, row, by_column.get(column), where)
        for column in columns
        for name, row in printed.items()
        if column.judged and (column in by_column or not cells)  # a reading need not cover every place
    }
    return Line(where, printed, cells, verdicts)


def _verdict(item: Item, row: PrintedRow, cell: Measured | None, where: Mapping[str, Plain]) -> Verdict:
    if row.measure in item.absent and (cell is None or row.measure not in cell.values):
        return Verdict(ABSENT, item.absent[row.measure])
    if row.value is None:
        return Verdict("", "lost in the source text")
    if cell is None or not cell.trials:
        return Verdict(NOT_RUN)
    if row.measure not in cell.values:
        return Verdict(ABSENT, _stated_reason(item, row, where))
    if row.measure in item.gains and cell.values[row.measure].over.endswith(SOME_BASELINES):
        return Verdict("", f"not compared: {SOME_BASELINES}, and the printed gain is over the better one")
    if row.measure == CONVERGENCE and cell.values[CONVERGENCE].over == NO_THRESHOLD and CONTENT in cell.values:
        word = judge(row.value, cell.values[CONTENT], CONTENT)
        return Verdict(BY_CONTENT if word == AGREES else word, f"{NO_THRESHOLD}: its content is compared")
    word = judge(row.value, cell.values[row.measure], row.measure)
    if word == TOO_FEW:
        return Verdict(word)
    if word != NO_SUCCESS and _within_bound(row, cell.values[row.measure].estimate.value):
        return Verdict(AGREES, "the printed number is a bound")
    if word in (AGREES, CLOSE_BY):
        return Verdict(word)
    if word == NO_SUCCESS and "failed" in row.note:
        return Verdict(AGREES, "printed as failed, and no attack of ours converged")
    if (
        row.measure == CONVERGENCE
        and CONTENT in cell.values
        and judge(row.value, cell.values[CONTENT], CONTENT) == AGREES
    ):
        return Verdict(BY_CONTENT, _reason(item, row, cell, where))
    return Verdict(word, _reason(item, row, cell, where))


def _within_bound(row: PrintedRow, ours: float) -> bool:
    """Return whether a printed bound holds for our number."""
    kept = {"lower bound": ours >= (row.value or 0.0), "upper bound": ours <= (row.value or 0.0)}
    return any(held and row.note.startswith(kind) for kind, held in kept.items())


def _reason(item: Item, row: PrintedRow, cell: Measured, where: Mapping[str, Plain]) -> str:
    """Return the likely reason of a difference: from the cell's numbers, else from the item's file."""
    if row.measure not in (CONVERGENCE, "iterations_mean") or not {CONVERGENCE, CONTENT} <= set(cell.values):
        return _stated_reason(item, row, where)
    convergence, content = (cell.values[name].estimate.value for name in (CONVERGENCE, CONTENT))
    if math.isfinite(convergence) and math.isfinite(content):
        if content - convergence > 0.5 and where.get("defence", "none") != "none":
            return FLOOR
        if convergence - content > 0.5:
            return TRIVIAL
    return _stated_reason(item, row, where)


def _stated_reason(item: Item, row: PrintedRow, where: Mapping[str, Plain]) -> str:
    """Return the first reason in the item's file for a measure at a place."""
    fitting = (r.says for r in item.reasons if r.measure in ("", row.measure) and meets(where, r.where))
    return next(fitting, "")


def _count(lines: Iterable[Line], column: Column) -> dict[str, int]:
    counted = Counter(
        verdict.word for line in lines for (title, _), verdict in line.verdicts.items() if title == column.title
    )
    return {word: n for word, n in counted.items() if word}


def _in_printed_order(item: Item, printed: Mapping[Key, Sequence[PrintedRow]]) -> list[Key]:
    """Return the places in the paper's order, then the unprinted ones in running order."""
    rows = item.printed.rows
    return sorted(printed, key=lambda key: min(map(rows.index, printed[key]), default=len(rows)))


def _key(where: Mapping[str, Plain]) -> Key:
    return tuple(sorted((axis, repr(value)) for axis, value in where.items()))
