"""Shapes of a chart (frame, markers, lines, bands) as SVG paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.report import numbers

if TYPE_CHECKING:
    from leakscope.metrics.interval import Estimate

COLOURS = 6
RADIUS = 4.0

Spot = tuple[float, float]  # coordinates in the drawing
Tick = tuple[float, str]  # a coordinate along an axis, and its text


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a drawing and its margins; `inset` keeps points off the left and right edge."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    inset: float = 0.0

    @property
    def first(self) -> int:
        """Return the left edge of the plot."""
        return self.left

    @property
    def last(self) -> int:
        """Return the right edge of the plot."""
        return self.width - self.right

    @property
    def floor(self) -> int:
        """Return the lower edge of the plot."""
        return self.height - self.bottom

    @property
    def middle(self) -> str:
        """Return the horizontal middle of the plot."""
        return f"{(self.first + self.last) / 2:g}"

    def x(self, place: float) -> float:
        """Return the coordinate of a place across in [0, 1]."""
        return round(self.left + self.inset + place * (self.last - self.left - 2 * self.inset), 1)

    def y(self, place: float) -> float:
        """Return the coordinate of a place upward in [0, 1]."""
        return round(self.floor - place * (self.floor - self.top), 1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a curve: the outline of its marker, and its tooltip."""

    outline: str
    words: str


def path(spots: Sequence[Spot]) -> str:
    """Return the line through these points."""
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(spots))


def band(upper: Sequence[Spot], lower: Sequence[Spot]) -> str:
    """Return the outline between two lines."""
    return path([*upper, *lower[::-1]]) + "Z"


def marker(number: int, x: float, y: float) -> str:
    """Return a disc, square, triangle or diamond, so that lines differ without colour."""
    r = RADIUS
    if number % 4 == 0:
        return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0Z"
    if number % 4 == 1:
        return f"M{x - 3.5:g} {y - 3.5:g}h7v7h-7Z"
    if number % 4 == 2:
        return f"M{x:g} {y - 4.5:g}l4.5 8h-9Z"
    return f"M{x:g} {y - 5:g}l5 5l-5 5l-5 -5Z"


def legend_marker(number: int) -> str:
    """Return the marker at its place in the legend."""
    return marker(number, 14, 8)


def value_text(value: float, share: bool) -> str:
    """Return a value as a percentage or a number."""
    return numbers.percent(value) if share else numbers.number(value)


def estimate_text(value: Estimate, share: bool) -> str:
    """Return a value with its interval and n."""
    interval = numbers.percent_interval(value) if share else numbers.number_interval(value)
    return f"{value_text(value.value, share)}{f' ({interval})' if interval else ''}, n = {value.n}"


def tick_text(text: str, share: bool) -> str:
    """Return the text of a tick, as a percentage on an axis of shares."""
    return numbers.percent(float(text)) if share else text
