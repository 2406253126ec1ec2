"""Axes in words, and which of them are the strength of a defence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.core.record import Cell, Plain
from leakscope.report.sheet import axes_of, is_numeric

DEFENCES = "defences"


def axis_label(name: str, cells: Sequence[Cell]) -> str:
    """Return an axis in words: the field of a defence is named after the defence, other paths lose their dots.

    >>> cell = Cell(id="a", settings={"defences": [{"name": "gaussian_noise", "sigma": 0.1}]})
    >>> axis_label("defences.0.sigma", [cell]), axis_label("data.samples", [cell]), axis_label("attack", [cell])
    ('gaussian_noise sigma', 'data samples', 'attack')
    """
    parts = name.split(".")
    if parts[0] == DEFENCES and len(parts) > 2 and parts[1].isdigit():
        names = {str(d.get("name")) for cell in cells for d in _defences(cell)[int(parts[1]) : int(parts[1]) + 1]}
        if len(names) == 1:
            return " ".join([*names, *parts[2:]])
    return " ".join(parts) if all(parts) else name


def strength_axes(cells: Sequence[Cell]) -> list[str]:
    """Return the numeric axes whose value is, in every cell, that of a setting of one of its defences.

    The name of an axis is the author's business; that its value is what the defence was given is what makes it one.
    """
    found = []
    for name, values in axes_of(cells).items():
        varied = [cell for cell in cells if name in cell.axes]
        if len(values) > 1 and is_numeric(values) and all(_is_given(cell, cell.axes[name]) for cell in varied):
            found.append(name)
    return found


def _defences(cell: Cell) -> list[Mapping[str, object]]:
    given = cell.settings.get(DEFENCES)
    return [item for item in given if isinstance(item, Mapping)] if isinstance(given, list | tuple) else []


def _is_given(cell: Cell, value: Plain) -> bool:
    """Return whether a setting of a defence of the cell is that value; 0 may also stand for no defence at all."""
    defences = _defences(cell)
    return (value == 0 and not defences) or any(
        item == value and not isinstance(item, bool | str) for defence in defences for item in defence.values()
    )
