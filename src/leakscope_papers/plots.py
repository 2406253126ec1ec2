"""Plots of an item: which measured cells are drawn, along what, and how lines and panels are told apart. docs/papers.md describes them."""

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
    """One plot: measures `y` (left axis) and `second_axis` (right) against `x`, or a `curve` that the runs kept.

    `x` is an axis of the item, or one of its measures; the points of a line then follow the axis `along`. `lines` are the axes that tell
    the lines of a panel apart; what else varies makes panels. `regions: ratio` draws the ratio as log10(ratio + 1) with SPN's regions
    behind it. `chance` is the measure that says what guessing gives, drawn thin and dashed on the right axis where there is one.
    `bars` stand on 0, each value of `x` with a room of its own. `across` are words for the axis below.
    """

    title: str
    x: str = ""
    y: tuple[str, ...] = ()
    along: str = ""
    lines: tuple[str, ...] = ()
    where: Mapping[str, Plain | list[Plain]] = field(default_factory=dict)
    second_axis: tuple[str, ...] = ()
    regions: str = ""
    chance: str = ""
    bars: bool = False
    curve: str = ""
    across: str = ""
    note: str = ""

    @property
    def points(self) -> str:
        """Return the axis that the points of a line follow; empty for a kept curve."""
        return self.along or self.x


def check_plot(plot: Plot, place: str, axes: Collection[str], measures: Collection[str]) -> None:
    """Raise what is wrong with a plot of an item that has these axes and measures; `place` names the file and the field."""
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
