"""Numbers that belong to a place rather than to an attack, such as the accuracy under a defence: they join the cells there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope_papers.comparing import Measured
from leakscope_papers.measures import Value
from leakscope_papers.naming import meets


def joined(cells: Sequence[Measured], beside: Sequence[Measured]) -> list[Measured]:
    """Return the cells with the values of those `beside` them: the same reading, and a place that holds theirs.

    What stands beside no cell stays as a cell of its own. A joined value says over how many runs it is.
    """
    found: list[Measured] = []
    used: set[int] = set()
    for cell in cells:
        values = dict(cell.values)
        for number, other in enumerate(beside):
            if other.column.reading == cell.column.reading and meets(cell.where, dict(other.where)):
                used.add(number)
                values |= {name: _over(value, other.trials) for name, value in other.values.items()}
        found.append(replace(cell, values=values))
    return found + [other for number, other in enumerate(beside) if number not in used]


def _over(value: Value, runs: int) -> Value:
    return value if value.over else replace(value, over=f"{runs} training{'s' * (runs != 1)}")
