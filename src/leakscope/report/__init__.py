"""The page a person looks at: one self-contained HTML file, derived from plain data and from nothing else.

`page_of_run(run)` maps a stored run to a `Page`; `render(page)` gives its HTML, `write(page, path)` puts it on disk,
`fragment(page)` fits it into a notebook's output. `sheet_of(run)`, `axis_tables` and `cell_table` are the numbers without the
page. Names are looked up on first use, so that importing this room costs neither torch nor jinja2 nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.report.page import fragment, render, write
    from leakscope.report.page_data import (
        Download,
        Exact,
        Fading,
        Gallery,
        Guess,
        Level,
        Page,
        Pair,
        Provenance,
        Section,
        Strength,
        Threat,
        Tile,
    )
    from leakscope.report.pictures import update_picture
    from leakscope.report.run_page import page_of_run
    from leakscope.report.sheet import Sheet, make_sheet, sheet_of
    from leakscope.report.tables import Row, Table, axis_tables, cell_table, tabulate

_MODULES = {
    **dict.fromkeys(("fragment", "render", "write"), "page"),
    **dict.fromkeys(("Download", "Exact", "Fading", "Gallery", "Guess", "Level", "Page", "Pair"), "page_data"),
    **dict.fromkeys(("Provenance", "Section", "Strength", "Threat", "Tile"), "page_data"),
    **dict.fromkeys(("Sheet", "make_sheet", "sheet_of"), "sheet"),
    **dict.fromkeys(("Row", "Table", "axis_tables", "cell_table", "tabulate"), "tables"),
    "page_of_run": "run_page",
    "update_picture": "pictures",
}

__all__ = [
    "Download",
    "Exact",
    "Fading",
    "Gallery",
    "Guess",
    "Level",
    "Page",
    "Pair",
    "Provenance",
    "Row",
    "Section",
    "Sheet",
    "Strength",
    "Table",
    "Threat",
    "Tile",
    "axis_tables",
    "cell_table",
    "fragment",
    "make_sheet",
    "page_of_run",
    "render",
    "sheet_of",
    "tabulate",
    "update_picture",
    "write",
]

if not TYPE_CHECKING:  # a type checker reads the imports above, and still finds misspelt names

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
