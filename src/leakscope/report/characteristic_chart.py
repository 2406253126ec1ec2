"""One characteristic as the coordinates of an SVG drawing: accuracy on the left axis, distance on the right, regions behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leakscope.analysis.characteristic import GREEN_UP_TO, RED_FROM, Characteristic, Point, Region, place
from leakscope.report import numbers
from leakscope.report.chart import HEIGHT, SHARE, TOP, Mark, _marker, _path
from leakscope.report.scales import Scale, fit, widen

WIDTH = 420
LEFT, RIGHT, BOTTOM = 52, 52, 42
BEYOND = 0.5  # how far past the last place a ratio without end is drawn
ACCURACY, DISTANCE, PRODUCT = "accuracy", "distance", "accuracy x distance"


@dataclass(frozen=True, slots=True)
class Shade:
    """A region behind the curves: its name, where it begins and how wide it is."""

    name: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the drawing: its colour's number, whether it is dashed, its path, band and points."""

    name: str
    colour: int
    dashed: bool
    path: str
    band: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A characteristic ready to be written: ticks as (place, text), shades, curves, height of chance, words; edges of the frame."""

    title: str
    across: tuple[tuple[float, str], ...]
    left: tuple[tuple[float, str], ...]
    right: tuple[tuple[float, str], ...]
    right_name: str
    shades: tuple[Shade, ...]
    curves: tuple[Curve, ...]
    chance: float | None
    words: str
    width: int = WIDTH
    height: int = HEIGHT
    first: int = LEFT
    last: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM
    top: int = TOP


def draw(curve: Characteristic, title: str) -> Drawing:
    """Return the drawing of a characteristic; settings that change no bias stand at the right end."""
    points = sorted(curve.points, key=lambda point: point.ratio)
    known = [place(point.ratio) for point in points if math.isfinite(point.ratio)]
    end = max([place(RED_FROM) + BEYOND, *(at + BEYOND / 2 for at in known)])
    endless = any(not math.isfinite(point.ratio) for point in points)
    x = Scale(0.0, end + (BEYOND if endless else 0.0))
    y = _upward(points, curve.chance)
    where = [_x(x.place(place(p.ratio) if math.isfinite(p.ratio) else x.high - BEYOND / 4)) for p in points]
    ticks = [(at, numbers.short(at)) for at in range(math.floor(end) + 1)]
    across = [(_x(x.place(at)), text) for at, text in ticks]
    if endless:
        across.append((_x(x.place(x.high - BEYOND / 4)), "none"))
    return Drawing(
        title=title,
        across=tuple(across),
        left=tuple((_y(at), numbers.percent(float(text))) for at, text in SHARE.ticks()),
        right=tuple((_y(at), text) for at, text in y.ticks()),
        right_name=curve.distance,
        shades=_shades(x),
        curves=(
            _curve(ACCURACY, 1, points, where, lambda p: p.accuracy, SHARE),
            _curve(DISTANCE, 0, points, where, lambda p: p.distance.value, y, banded=True),
            _curve(PRODUCT, 2, points, where, lambda p: p.product, y, dashed=True),
        ),
        chance=None if curve.chance is None else _y(y.place(curve.chance)),
        words=_words(curve, points, title),
    )


def _upward(points: Sequence[Point], chance: float | None) -> Scale:
    """Return a linear scale from 0 that holds every distance, chance and 1, whatever else is there."""
    ends = [v for p in points for v in (p.distance.value, p.distance.high) if math.isfinite(v)]
    ends += [] if chance is None else [chance]
    return widen(Scale(0.0, fit([1.0, *ends], from_zero=True).high if ends else 1.0))


def _shades(x: Scale) -> tuple[Shade, ...]:
    borders = [0.0, place(GREEN_UP_TO), place(RED_FROM), x.high]
    spots = [_x(x.place(at)) for at in borders]
    names = [region.value for region in (Region.GREEN, Region.WHITE, Region.RED)]
    return tuple(
        Shade(name, a, round(b - a, 1)) for name, a, b in zip(names, spots[:-1], spots[1:], strict=True) if b > a
    )


def _curve(
    name: str,
    colour: int,
    points: Sequence[Point],
    where: Sequence[float],
    read: Callable[[Point], float],
    scale: Scale,
    *,
    dashed: bool = False,
    banded: bool = False,
) -> Curve:
    spots = [(at, _y(scale.place(read(point)))) for at, point in zip(where, points, strict=True)]
    marks = tuple(
        Mark(
            _marker(colour, *spot), f"{name} {numbers.number(read(point))} at setting {numbers.short(point.parameter)}"
        )
        for spot, point in zip(spots, points, strict=True)
    )
    band = _band(points, where, scale) if banded else ""
    return Curve(name, colour, dashed, _path(spots), band, marks)


def _band(points: Sequence[Point], where: Sequence[float], scale: Scale) -> str:
    known = [(at, p) for at, p in zip(where, points, strict=True) if math.isfinite(p.distance.low)]
    if len(known) < 2:
        return ""
    high = [(at, _y(scale.place(p.distance.high))) for at, p in known]
    low = [(at, _y(scale.place(p.distance.low))) for at, p in known]
    return _path([*high, *low[::-1]]) + "Z"


def _words(curve: Characteristic, points: Sequence[Point], title: str) -> str:
    first, last = points[0], points[-1]
    chance = "" if curve.chance is None else f"; chance {numbers.number(curve.chance)}"
    return (
        f"{title}: accuracy from {numbers.percent(first.accuracy)} to {numbers.percent(last.accuracy)}, {curve.distance} from "
        f"{numbers.number(first.distance.value)} to {numbers.number(last.distance.value)} as the perturbation gets smaller{chance}"
    )


def _x(at: float) -> float:
    return round(LEFT + at * (WIDTH - LEFT - RIGHT), 1)


def _y(at: float) -> float:
    return round(HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM), 1)
