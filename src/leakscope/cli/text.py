"""Names, counts and times as terminal text, and the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakscope.core.progress import printable as printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 160
LEAST = 12  # columns of the terminal for each column of a table beside the names


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "trial"), count(12000, "trial")
    ('1 trial', '12,000 trials')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def at_most(seconds: float) -> str:
    """Return an upper estimate of a time in words.

    >>> at_most(0.4), at_most(42)
    ('under a second', 'at most about 42 s')
    """
    return f"at most about {duration(seconds)}" if seconds >= 1 else duration(seconds)


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> [duration(s) for s in (0.4, 42, 90, 7300)]
    ['under a second', '42 s', '2 min', '2.0 h']
    """
    if seconds < 1:
        return "under a second"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def pace(rate: float) -> str:
    """Return trials per second in a suitable unit.

    >>> [pace(rate) for rate in (112.46, 0.5, 0.001)]
    ['112.5/s', '30.0/min', '3.6/h']
    """
    if rate >= 1:
        return f"{rate:.1f}/s"
    return f"{rate * 60:.1f}/min" if rate * 60 >= 1 else f"{rate * 3600:.1f}/h"


def terminal() -> Console:
    """Return a console without markup and emoji codes; wide if the output is not a terminal."""
    from rich.console import Console

    plain = Console(markup=False, emoji=False, highlight=False)
    if not plain.is_terminal and "COLUMNS" not in os.environ:
        plain.width = WIDE
    return plain


def plain_table(*, title: str | None = None) -> Table:
    """Return an empty table without vertical lines."""
    from rich.box import SIMPLE
    from rich.table import Table

    return Table(box=SIMPLE, padding=(0, 1, 0, 0), title=title, title_justify="left")


def _with_noun(cell: str, head: str) -> str:
    return f"{cell} {head}" if cell.isdigit() else cell


def print_named(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows whose first cell is a name: names are never cut or broken; in a narrow terminal the other cells share a column."""
    console, table = terminal(), plain_table()
    longest = max((len(row[0]) for row in rows), default=0) + 1
    if console.width < longest + LEAST * len(heads):
        rows = [(name, ", ".join(map(_with_noun, cells, heads[1:]))) for name, *cells in rows]
        heads = (heads[0], "what it is")
        console.width = max(console.width, longest + LEAST)
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
