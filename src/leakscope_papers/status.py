"""How much of an item is recorded: planned rows at a scale, printed numbers and how many of them agree, and why others are missing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leakscope.cli.text import duration
from leakscope_papers.comparing import ALIKE, JUDGED, NO_SUCCESS, TOO_FEW, Measured
from leakscope_papers.hours import hours_of
from leakscope_papers.items import Item, read_item
from leakscope_papers.planned import planned_cells, trials_a_cell
from leakscope_papers.results import FULL, Result, recorded_result
from leakscope_papers.scales import SCALES, parts_at, scale_of

MEASURED = (*JUDGED, TOO_FEW, NO_SUCCESS)
LARGE = 50  # trials from which a number counts as measured at size


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows of an item at a scale: recorded with the present settings, planned, recorded with earlier settings; parts without any."""

    measured: int
    planned: int
    earlier: int = 0
    missing: tuple[str, ...] = ()


def rows_of(item: Item, scale: str) -> RowCount:
    """Return how many rows of an item are recorded at a scale, of how many."""
    planned = len(planned_cells(item, scale))
    result = recorded_result(item, scale)
    if result is None:
        return RowCount(0, planned, missing=tuple(part.name for part in parts_at(item, scale) if not part.joins))
    return RowCount(len(result.cells), planned, len(result.earlier), result.missing)


def missing_reason(item: Item, counts: Mapping[str, RowCount]) -> str:
    """Return why rows are missing, from the item's notes on scales and printed measures, and the parts without a row."""
    reasons: list[str] = []
    for scale, count in counts.items():
        if not (count.measured or count.earlier or scale == FULL):
            continue
        which = f"no row of {', '.join(count.missing)}" if count.measured or count.earlier else "not run"
        hours = hours_of(item, count.missing) if scale == FULL else 0.0
        needs = f" (about {duration(3600 * hours)} of one H200)" if hours else ""
        reasons += [f"{scale}: {which}{needs}"] if count.missing else []
        reasons += [f"{scale}: {count.earlier} rows of an earlier setting"] if count.earlier else []
        left_out = scale_of(item, scale).leave_out
        reasons += [f"{scale} leaves out {', '.join(left_out)}"] if left_out else []
    reasons += [f"{measure}: {why}" for measure, why in item.absent.items()]
    return "; ".join(reasons)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Printed numbers: how many there are, are measured, are measured at n >= 50 or full scale, agree or are close, differ."""

    printed: int = 0
    measured: int = 0
    large: int = 0
    alike: int = 0
    apart: int = 0

    def __add__(self, other: Numbers) -> Numbers:
        """Return the numbers of both."""
        return Numbers(*(getattr(self, name) + getattr(other, name) for name in Numbers.__slots__))


@functools.cache
def recorded_results(name: str) -> Mapping[str, Result]:
    """Return scale -> recorded result of an item, the largest scale first; those of stand-in data are left out."""
    item = read_item(name)
    scales = [scale for scale in reversed(SCALES) if scale in item.scales and not scale_of(item, scale).stand_in]
    results = {scale: recorded_result(item, scale) for scale in scales}
    return {scale: result for scale, result in results.items() if result is not None}


def numbers_of(item: Item) -> Numbers:
    """Return how the printed numbers of an item stand.

    Each number counts once, at the largest scale that measured it. Where there are several readings of the paper, the one with
    most numbers alike is taken first, and another only for numbers that it does not measure.
    """
    rows = [row for row in item.printed.rows if row.value is not None]
    verdicts: dict[int, tuple[str, bool]] = {}
    for scale, result in recorded_results(item.name).items():
        counts = result.comparison.counts
        columns = [column for column in result.comparison.columns if column.judged]
        for column in sorted(columns, key=lambda column: -sum(counts[column.title].get(word, 0) for word in ALIKE)):
            for line in result.comparison.lines:
                large = any(cell.column == column and _at_size(item, scale, cell) for cell in line.measured)
                for measure, row in line.printed.items():
                    verdict = line.verdicts.get((column.title, measure))
                    if verdict is not None and verdict.word in MEASURED:
                        verdicts.setdefault(id(row), (verdict.word, large))
    words = [verdicts[id(row)] for row in rows if id(row) in verdicts]
    alike = sum(word in ALIKE for word, _ in words)
    apart = sum(word not in (*ALIKE, TOO_FEW) for word, _ in words)
    return Numbers(len(rows), len(words), sum(large for _, large in words), alike, apart)


def _at_size(item: Item, scale: str, cell: Measured) -> bool:
    """Return whether a row has at least LARGE trials, or all of full scale where its paper has fewer."""
    return cell.trials >= LARGE or (scale == FULL and cell.trials >= trials_a_cell(item, cell.part, scale))


def total(items: Iterable[Item]) -> Numbers:
    """Return how the printed numbers of several items stand, without those that another item prints too."""
    return sum((numbers_of(item) for item in items if not item.printed.again), Numbers())
