"""Plots of an item: which measured cells are drawn along which axis, what separates lines and panels (docs/reference/paper-items.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope_papers.files import file_dataclass

READING, ATTACKER = "reading", "attacker"
RATIO = "ratio"


@file_dataclass
class Plot:
    """One plot: measures `y` (left axis) and `second_axis` (right) against `x`, or a `curve` that the runs stored."""

    title: str
    x: str = ""  # an axis or a measure of the item
    y: tuple[str, ...] = ()
    along: str = ""  # the axis that the points of a line follow if `x` is a measure
    lines: tuple[str, ...] = ()  # axes that separate the lines of a panel; other varying axes make panels
    where: Mapping[str, Plain | list[Plain]] = field(default_factory=dict)
    second_axis: tuple[str, ...] = ()
    regions: str = ""  # ratio: log10(ratio + 1) on the x axis with SPN's regions behind it
    chance: str = ""  # the measure of the chance level, drawn thin and dashed, on the right axis if there is one
    bars: bool = False  # bars from 0, each value of `x` with its own space
    curve: str = ""
    across: str = ""  # title of the x axis
    note: str = ""

    @property
    def points(self) -> str:
        """Return the axis that the points of a line follow; "" for a stored curve."""
        return self.along or self.x


def check_plot(plot: Plot, place: str, axes: Collection[str], measures: Collection[str]) -> None:
    """Raise if a plot does not fit an item with these axes and measures; `place` names the file and the field."""
    known = {*axes, READING, ATTACKER}
    for name, given in (("lines", plot.lines), ("where", tuple(plot.where))):
        _all_in(given, known, f"{place}.{name} must name axes of the item")
    if plot.curve:
        if plot.x or plot.y or plot.second_axis or plot.along or plot.regions or plot.chance or plot.bars:
            raise InputError(
                f"{place}: a plot of a kept curve has no x, y, second_axis, along, regions, chance or bars"
            )
        return
    if not plot.x or not plot.y:
        raise InputError(f"{place}: needs x and y, or curve")
    _all_in((plot.x,), {*axes, *measures}, f"{place}.x must be an axis or a measure of the item")
    _all_in(plot.y, measures, f"{place}.y must name measures of the item")
    _all_in(plot.second_axis, measures, f"{place}.second_axis must name measures of the item")
    _all_in((plot.chance,) if plot.chance else (), measures, f"{place}.chance must be a measure of the item")
    if plot.bars and (plot.x not in axes or plot.second_axis):
        raise InputError(f"{place}.bars need an axis of the item as x and no second_axis, got x {plot.x!r}")
    if plot.x in axes and plot.along:
        raise InputError(f"{place}.along is for an x that is a measure, and {plot.x!r} is an axis")
    if plot.x not in axes and plot.along not in axes:
        raise InputError(f"{place}.along must be the axis that the points follow ({_listed(axes)}), got {plot.along!r}")
    if plot.points in plot.lines:
        raise InputError(f"{place}.lines must not name {plot.points!r}, which the points follow")
    if plot.regions not in ("", RATIO) or (plot.regions and plot.regions != plot.x):
        raise InputError(f"{place}.regions can only be {RATIO!r}, with x: {RATIO}; got {plot.regions!r}")


def _all_in(given: tuple[str, ...], known: Collection[str], rule: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{rule} ({_listed(known)}), got {name!r}")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
