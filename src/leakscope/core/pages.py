"""How a result shows itself: its page in a file or a notebook cell.

The room `report` makes pages and imports the rooms whose results it shows, so a result finds it by name when a page is wanted.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

MAKER = "leakscope.report.result_pages"


def write_page(result: object, path: str | Path) -> Path:
    """Write the page of a result, whole or not at all, and return its path; only a plain file is replaced."""
    written: Path = import_module(MAKER).write_result(result, Path(path))
    return written


def notebook_html(result: object) -> str:
    """Return the page of a result as a sandboxed frame for a notebook cell."""
    html: str = import_module(MAKER).fragment_of(result)
    return html
