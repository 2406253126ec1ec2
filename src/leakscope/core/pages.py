"""How a result shows itself: its page in a file or a notebook cell.

The room `report` makes pages and imports the rooms whose results it shows, so a result finds it by name when a page is wanted.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

MAKER = "leakscope.report.result_pages"


def write_page(result: object, path: str | Path) -> Path:
    """Write the page of a result, whole or not at all, and return its path; only a plain file is replaced."""
    written: Path = import_module(MAKER).write_result(result, Path(path))
    return written


def notebook_html(result: object) -> str:
    """Return the page of a result as a sandboxed frame for a notebook cell."""
    frame: str = import_module(MAKER).fragment_of(result)
    return frame


def notebook_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook cell.

    >>> notebook_table("a < b", ["x"], [["1"]])
    '<table><caption>a &lt; b</caption><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """
    lines = [("th", head), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) for tag, line in lines)
    return f"<table><caption>{html.escape(caption)}</caption>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"
