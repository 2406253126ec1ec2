"""The page a person looks at: one self-contained HTML file, derived from plain data and from nothing else.

`render(page)` gives the page, `write(page, path)` puts it on disk, `fragment(page)` fits it into a notebook's output.
Names are looked up on first use, so that importing this room costs neither torch nor jinja2 nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.report.films import film
    from leakscope.report.layers import update_picture
    from leakscope.report.page import fragment, render, write
    from leakscope.report.page_data import (
        Exact,
        Gallery,
        NoiseLevel,
        NoiseSweep,
        Page,
        Pair,
        Provenance,
        TableRow,
        Tile,
        row_of,
    )

__all__ = [
    "Exact",
    "Gallery",
    "NoiseLevel",
    "NoiseSweep",
    "Page",
    "Pair",
    "Provenance",
    "TableRow",
    "Tile",
    "film",
    "fragment",
    "render",
    "row_of",
    "update_picture",
    "write",
]

_HOME = {
    "Exact": "page_data",
    "Gallery": "page_data",
    "NoiseLevel": "page_data",
    "NoiseSweep": "page_data",
    "Page": "page_data",
    "Pair": "page_data",
    "Provenance": "page_data",
    "TableRow": "page_data",
    "Tile": "page_data",
    "film": "films",
    "fragment": "page",
    "render": "page",
    "row_of": "page_data",
    "update_picture": "layers",
    "write": "page",
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and still finds misspelt names

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
