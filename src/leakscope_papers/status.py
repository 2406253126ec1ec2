"""How many of an item's planned rows at a scale are recorded, and why the others are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope_papers.items import Item
from leakscope_papers.planned import planned_cells
from leakscope_papers.records import recorded_file
from leakscope_papers.results import recorded_result
from leakscope_papers.scales import scale_of


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
    path = recorded_file(item.name, scale)
    if not path.is_file():
        return RowCount(0, planned)
    result = recorded_result(item, scale, path)
    return RowCount(len(result.cells), planned, len(result.earlier), result.missing)


def missing_reason(item: Item, counts: Mapping[str, RowCount]) -> str:
    """Return why rows are missing, from the item's notes on scales and printed measures, and the parts without a row."""
    reasons: list[str] = []
    for scale, count in counts.items():
        if not count.measured and not count.earlier:
            continue
        reasons += [f"{scale}: no row of {', '.join(count.missing)}"] if count.missing else []
        reasons += [f"{scale}: {count.earlier} rows of an earlier setting"] if count.earlier else []
        left_out = scale_of(item, scale).leave_out
        reasons += [f"{scale} leaves out {', '.join(left_out)}"] if left_out else []
    reasons += [f"{measure}: {why}" for measure, why in item.absent.items()]
    return "; ".join(reasons)
