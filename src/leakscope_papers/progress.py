"""How much of the work of a part is there: trials of a scenario, rows of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from leakscope.store import Run
from leakscope_papers.items import Item, Part, home_of
from leakscope_papers.scales import rows_at, scenario_at

Settings: TypeAlias = Mapping[str, Any]


def wanted(item: Item, part: Part, scale: str, own: Callable[[Settings], bool]) -> int:
    """Return how many trials (or rows) a part has at a scale in cells that are the item's `own`; baselines are not counted."""
    if home_of(item, part)[1].program:
        return len(rows_at(item, part, scale))
    cells: dict[str, Any] = {
        cell.id: cell.settings for cell in scenario_at(item, part, scale).cells() if not cell.baseline
    }
    return sum(int(each["trials"]) * len(each["seeds"]) for each in cells.values() if own(each))


def landed(run: Run, own: Callable[[Settings], bool]) -> int:
    """Return how many trials of a run are there in cells that are an item's `own`, those of baselines not counted."""
    cells = [cell.id for cell in run.cells() if not cell.baseline and own(cell.settings)]
    return len(np.unique(run.columns(cells=cells, names=("trial",))["trial"])) if cells else 0


def partly(there: int, whole: int, *, rows: bool = False) -> str:
    """Return in words how much is there, nothing where that is all.

    >>> partly(40, 60), partly(60, 60), partly(1, 1200, rows=True)
    ('40 of 60 trials', '', '1 of 1,200 rows')
    """
    return "" if there >= whole else f"{there:,} of {whole:,} {'rows' if rows else 'trials'}"
