"""The hand-written text of a paper, `<paper>/notes.yaml`. It quotes numbers by the key of a row, so that none becomes outdated.

    {sme-table-2/data=cifar100; epochs=20; attack=sme: psnr}     a measured mean with its 95 % interval
    {printed sme-table-2/data=cifar100; epochs=20; attack=sme: psnr}      the printed number
    {earlier ats-figure-6/policy=random: privacy_score}          from a row of an earlier setting
    {cpl-table-2@full/data=mnist; attack=cpl: n}                 n of a row, at a given scale instead of the one with most rows

A condition is `axis=value` (`axis=` if absent), or the name of a reading or an attacker, by default those of the first column. A
key that matches no row, or several, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope.metrics.interval import Estimate
from leakscope.report.cells import axis_value_text as say
from leakscope.report.numbers import number, percent
from leakscope_papers.comparing import Measured
from leakscope_papers.files import file_dataclass, read_file
from leakscope_papers.measure_names import cut
from leakscope_papers.measures import RATES, Value
from leakscope_papers.published import PrintedRow, read_printed
from leakscope_papers.results import Result

FILE = "notes.yaml"
_QUOTE = re.compile(r"\{([^{}]*)\}")
_KEY = re.compile(r"(?:(printed|earlier) )?([a-z0-9-]+)(?:@(\w+))?/(.*): (\w+)", re.DOTALL)
Find = Callable[[str, str | None], Result]


@file_dataclass
class Notes:
    """The hand-written part of a paper's README: title, claims, findings, what we could not reproduce and why."""

    title: str
    claims: str
    found: tuple[str, ...] = ()
    not_reproduced: tuple[str, ...] = ()
    again: str = ""


def read_notes(folder: Path) -> Notes | None:
    """Return the notes of a paper, None if it has none."""
    path = folder / FILE
    return read_file(path).read(Notes) if path.is_file() else None


def filled(text: str, find: Find) -> str:
    """Return a text with its quotes filled in; `find` returns the result of an item, at a scale or the largest recorded."""
    return _QUOTE.sub(lambda match: _quoted(match.group(1), find), " ".join(text.split()))


def _quoted(quote: str, find: Find) -> str:
    key = _KEY.fullmatch(" ".join(quote.split()))
    if key is None:
        raise InputError(f"{{{quote}}} must be {{item/conditions: measure}}")
    kind, item, scale, words, measure = key.groups()
    conditions = [word.strip() for word in words.split(";") if word.strip()]
    if kind == "printed":
        return _printed(item, conditions, measure, quote)
    result = find(item, scale)
    row = _only_row(result.earlier if kind == "earlier" else result.cells, conditions, quote)
    if measure == "n":
        return str(row.trials)
    if measure not in row.values or not row.values[measure].has_number:
        raise InputError(f"{{{quote}}}: the row has no {measure}")
    return with_interval(measure, row.values[measure])


def _only_row(rows: Sequence[Measured], conditions: Sequence[str], quote: str) -> Measured:
    """Return the one row that meets the conditions; if several differ only in their column, the first column's."""
    fitting = [row for row in rows if all(_meets(row, condition) for condition in conditions)]
    places = {repr(sorted((axis, repr(value)) for axis, value in row.where.items())) for row in fitting}
    if len(places) != 1:
        raise InputError(f"{{{quote}}} must fit one row, it fits {len(places)}")
    return fitting[0]


def _meets(row: Measured, condition: str) -> bool:
    axis, equals, value = condition.partition("=")
    if equals:
        return _says(row.where, axis) == value
    return condition in (row.column.reading, row.column.attacker, row.column.title)


def _printed(item: str, conditions: Sequence[str], measure: str, quote: str) -> str:
    fitting = [row for row in read_printed(item).rows if row.measure == measure and _printed_meets(row, conditions)]
    if len({row.value for row in fitting}) != 1 or fitting[0].value is None:
        raise InputError(f"{{{quote}}} must fit one printed number, it fits {len(fitting)}")
    return in_words(measure, fitting[0].value)


def _printed_meets(row: PrintedRow, conditions: Sequence[str]) -> bool:
    pairs = [condition.partition("=") for condition in conditions]
    return all(equals and _says(row.where, axis) == value for axis, equals, value in pairs)


def _says(where: Mapping[str, Plain], axis: str) -> str:
    return say(where[axis]) if axis in where else ""


def with_interval(measure: str, value: Value) -> str:
    """Return a measured number with its 95 % interval in square brackets.

    >>> with_interval("psnr", Value(Estimate(25.12, 24.0, 26.23, 8, 8))), with_interval("accuracy", Value(Estimate(0.5, 0.25, 0.75, 8, 8)))
    ('25.1 [24.0, 26.2]', '50 % [25, 75]')
    """
    estimate: Estimate = cut(measure, value.estimate)
    words = in_words(measure, estimate.value)
    if estimate.low != estimate.low:
        return words
    low, high = (in_words(measure, end).removesuffix(" %") for end in (estimate.low, estimate.high))
    return f"{words} [{low}, {high}]"


def in_words(measure: str, value: float) -> str:
    """Return a number as text, rates in per cent."""
    return percent(value) if measure in RATES else number(value)
