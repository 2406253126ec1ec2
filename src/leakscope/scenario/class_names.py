"""The class names of the data sets that cells name, where those are on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leakscope.core.errors import InputError
from leakscope.core.record import Cell
from leakscope.data import load


def class_names_of(cells: Iterable[Cell]) -> dict[str, tuple[str, ...]]:
    """Return data set -> class names; a set that cannot be read here is left out."""
    names: dict[str, None] = {}
    for cell in cells:
        data = cell.settings.get("data")
        if isinstance(data, Mapping) and isinstance(data.get("name"), str):
            names[str(data["name"])] = None
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        try:
            found[name] = load(name).class_names
        except InputError:
            continue
    return found
