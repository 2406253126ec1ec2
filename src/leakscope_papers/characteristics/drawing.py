"""A privacy-preserving characteristic as an SVG drawing: accuracy on the left axis, distance on the right, regions behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leakscope.report import numbers
from leakscope.report.charts.scales import SHARE, Scale, fit, widen
from leakscope.report.charts.shapes import Frame, Mark, Tick, band, marker, path, tick_text
from leakscope_papers.characteristics.characteristic import GREEN_UP_TO, RED_FROM, Characteristic, Point, Region, place

FRAME = Frame(width=420, height=250, left=52, right=52, top=12, bottom=42)
AXIS = "log10(||B|| / ||E|| + 1)"
BEYOND = 0.5  # distance past the last point at which an infinite ratio is drawn


class Shade(NamedTuple):
    """A region behind the curves."""

    name: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the drawing."""

    name: str
    colour: int
    marks: tuple[Mark, ...]
    path: str
    band: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class CharacteristicDrawing:
    """A drawn characteristic: ticks of three axes, regions, curves, the chance level, and a description in words."""

    title: str
    across: tuple[Tick, ...]
    left: tuple[Tick, ...]
    right: tuple[Tick, ...]
    shades: tuple[Shade, ...]
    curves: tuple[Curve, ...]
    chance: float | None
    words: str
    axis: str = AXIS
    frame: Frame = FRAME


def draw_characteristic(curve: Characteristic, title: str) -> CharacteristicDrawing:
    """Return the drawing of a characteristic; settings with an infinite ratio are drawn at the right end."""
    points = sorted(curve.points, key=lambda point: point.ratio)
    finite = [place(point.ratio) for point in points if math.isfinite(point.ratio)]
    end = max([place(RED_FROM) + BEYOND, *(at + BEYOND / 2 for at in finite)])
    unchanged = len(finite) < len(points)
    x = Scale(0.0, end + (BEYOND if unchanged else 0.0))
    last = x.high - BEYOND / 4
    y = _distance_scale(points, curve.chance)
    where = [FRAME.x(x.place(place(p.ratio) if math.isfinite(p.ratio) else last)) for p in points]
    ticks = [(at, numbers.short(at)) for at in range(math.floor(end) + 1)]
    across = [(FRAME.x(x.place(at)), text) for at, text in (*ticks, *([(last, "none")] if unchanged else []))]
    return CharacteristicDrawing(
        title=title,
        across=tuple(across),
        left=tuple((FRAME.y(at), tick_text(text, share=True)) for at, text in SHARE.ticks()),
        right=tuple((FRAME.y(at), text) for at, text in y.ticks()),
        shades=tuple(shade for shade in region_shades(FRAME, x) if shade.width > 0),
        curves=(
            _curve("accuracy", 1, points, where, lambda p: p.accuracy, SHARE),
            _curve("distance", 0, points, where, lambda p: p.distance.value, y, outline=_band(points, where, y)),
            _curve("accuracy x distance", 2, points, where, lambda p: p.product, y, dashed=True),
        ),
        chance=None if curve.chance is None else FRAME.y(y.place(curve.chance)),
        words=_describe(curve, points, title),
    )


def region_shades(frame: Frame, x: Scale) -> tuple[Shade, ...]:
    """Return the green, white and red region on a scale of log10(ratio + 1)."""
    borders = [frame.x(x.place(at)) for at in (0.0, place(GREEN_UP_TO), place(RED_FROM), x.high)]
    regions = (Region.GREEN, Region.WHITE, Region.RED)
    return tuple(
        Shade(region.value, a, round(b - a, 1)) for region, a, b in zip(regions, borders[:-1], borders[1:], strict=True)
    )


def _distance_scale(points: Sequence[Point], chance: float | None) -> Scale:
    """Return a linear scale from 0 that holds every distance, chance and 1."""
    ends = [v for p in points for v in (p.distance.value, p.distance.high) if math.isfinite(v)]
    ends += [] if chance is None else [chance]
    return widen(Scale(0.0, fit([1.0, *ends], from_zero=True).high if ends else 1.0))


def _curve(
    name: str,
    colour: int,
    points: Sequence[Point],
    where: Sequence[float],
    read: Callable[[Point], float],
    scale: Scale,
    *,
    dashed: bool = False,
    outline: str = "",
) -> Curve:
    spots = [(at, FRAME.y(scale.place(read(point)))) for at, point in zip(where, points, strict=True)]
    marks = tuple(
        Mark(marker(colour, *spot), f"{name} {numbers.number(read(point))} at setting {numbers.short(point.parameter)}")
        for spot, point in zip(spots, points, strict=True)
    )
    return Curve(name, colour, marks, path(spots), outline, dashed)


def _band(points: Sequence[Point], where: Sequence[float], scale: Scale) -> str:
    """Return the outline of the intervals of the distance; empty for fewer than two."""
    known = [(at, p.distance) for at, p in zip(where, points, strict=True) if math.isfinite(p.distance.low)]
    if len(known) < 2:
        return ""
    high = [(at, FRAME.y(scale.place(v.high))) for at, v in known]
    low = [(at, FRAME.y(scale.place(v.low))) for at, v in known]
    return band(high, low)


def _describe(curve: Characteristic, points: Sequence[Point], title: str) -> str:
    first, last = points[0], points[-1]
    chance = "" if curve.chance is None else f"; chance {numbers.number(curve.chance)}"
    return (
        f"{title}: accuracy from {numbers.percent(first.accuracy)} to {numbers.percent(last.accuracy)}, {curve.distance} from "
        f"{numbers.number(first.distance.value)} to {numbers.number(last.distance.value)} as the perturbation gets smaller{chance}"
    )
