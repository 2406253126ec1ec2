"""How many inputs count as recovered when the threshold moves: a curve over MSE for every attack, so that no convention decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leakscope.core.record import Cell
from leakscope.metrics.interval import Estimate
from leakscope.metrics.recovery import THRESHOLDS
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.report.curves import Line, Panel, split_lines
from leakscope.report.estimates import Flags, Groups, rates
from leakscope.report.page_data import Section
from leakscope.report.sheet import Sheet, clusters, name_of, say

AXIS = "largest MSE that counts as recovered"
NOTE = (
    "How many inputs count as recovered follows the rule. By MSE alone is the recovery rate of the Mixing paper; by both, a picture "
    f"must also have an SSIM of at least {DEFAULT_RULE.ssim:g}: the rule of this page is that curve at an MSE of {DEFAULT_RULE.mse:g}."
)


def thresholds_of(sheet: Sheet, label: Callable[[str], str]) -> Section | None:
    """Return the curves of recovery over thresholds, one line for each attack (and more axes while readable); None without a row."""
    if not bool(sheet.samples.any()):
        return None
    names = _lines(sheet.cells, label)
    kept = list(dict.fromkeys(names))
    base = {name: cell.baseline for name, cell in zip(names, sheet.cells, strict=True)}
    codes = np.array([kept.index(name) for name in names], dtype=np.int64)
    group = codes[sheet.cell]
    groups = Groups(group, clusters(sheet, group), len(kept))
    finite, similar = sheet.flags("finite"), sheet.floats("ssim")
    pictures = ~np.isnan(similar) & sheet.samples
    panels = [_panel("Recovered by MSE alone", sheet, groups, kept, base, finite)]
    if bool(pictures.any()):
        alike = finite & ((similar >= DEFAULT_RULE.ssim) | np.isnan(similar))
        panels.append(_panel("Recovered by MSE and SSIM", sheet, groups, kept, base, alike))
    return Section(title="Over thresholds", note=NOTE, axes=(), rows=(), panels=tuple(panels))


def _panel(
    title: str, sheet: Sheet, groups: Groups, names: Sequence[str], base: dict[str, bool], allowed: Flags
) -> Panel:
    error = sheet.floats("mse")
    found = [rates(groups, (error <= most) & allowed, sheet.samples) for most in THRESHOLDS]
    lines = [
        Line(name, THRESHOLDS, _of(found, place), base[name]) for place, name in enumerate(names) if found[0][place].n
    ]
    return Panel(title, AXIS, True, True, tuple(lines))


def _of(found: Sequence[Sequence[Estimate]], place: int) -> tuple[Estimate, ...]:
    return tuple(each[place] for each in found)


def _lines(cells: Sequence[Cell], label: Callable[[str], str]) -> list[str]:
    """Return the line that each cell belongs to: its attack, and the axes that a few lines can tell apart; the rest is pooled.

    Baselines are pooled over all axes: they are there for comparison.
    """
    split = split_lines([cell for cell in cells if not cell.baseline], "")

    def line(cell: Cell) -> str:
        shown = () if cell.baseline else tuple(axis for axis in split if axis in cell.axes)
        return ", ".join([name_of(cell), *(f"{label(axis)} {say(cell.axes[axis])}" for axis in shown)])

    return [line(cell) for cell in cells]
