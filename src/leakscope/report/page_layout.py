"""A page set up for its template: every picture in a reel with a CSS class, every curve drawn, the data for the script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakscope.report import numbers
from leakscope.report.animation import timeline
from leakscope.report.chart import Drawing, Stroke, draw, legend
from leakscope.report.layers import Layer, draw_layers
from leakscope.report.page_data import Fading, Gallery, Level, Page, Section, Strength, Tile
from leakscope.report.sheet import ATTACK
from leakscope.report.sprites import CELL, Detail, Reel, choose_detail, film_reel, still_reel, zoom

if TYPE_CHECKING:
    from torch import Tensor

LAYERS_SHOWN = 12
HEADLINE_WIDTH, LEAST_SHOWN = 520, 2
ROW_WIDTH, FRAME = 280, 10
CUTS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A tile, where it lies in words, the classes of its reel and its baselines' reel, the steps of the frames drawn."""

    tile: Tile
    where: str
    key: str
    nulls: str
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """All that the template needs beside the page itself."""

    rules: list[str]
    detail: Detail
    pairs: list[tuple[Any, str]]
    shown: list[Shown]
    first: list[Shown]
    fadings: list[list[tuple[Fading, list[str]]]]
    curves: list[tuple[list[Drawing], list[Stroke]]]
    thresholds: tuple[list[Drawing], list[Stroke]]
    update: Mapping[str, Any]
    widths: Mapping[str, int]
    data: Mapping[str, Any]


def stage(page: Page) -> Staged:
    """Return the page set up for its template."""
    tiles = page.gallery.tiles if page.gallery else ()
    pairs = [still_reel([pair.truth, pair.recovered]) for pair in page.exact.pairs] if page.exact else []
    films = [film_reel(tile.truth, tile.frames) for tile in tiles]
    nulls, null_of = _shared([still_reel([g.picture for g in tile.baselines]) for tile in tiles])
    fades = [still_reel(p) for s in page.strengths for f in s.fadings for p in _columns(f)]
    detail = choose_detail([pairs, films, nulls, fades])
    reels = {"p": pairs, "k": films, "b": nulls, "s": fades}
    shown = [
        Shown(
            tile,
            _where(tile, page),
            f"k{i}",
            f"b{null_of[i]}" if tile.baselines else "",
            tuple(tile.frames_at[f] for f in reel.kept(detail)),
        )
        for i, (tile, reel) in enumerate(zip(tiles, films, strict=True))
    ]
    return Staged(
        rules=[reel.rule(f"{kind}{i}", detail) for kind, own in reels.items() for i, reel in enumerate(own)],
        detail=detail,
        pairs=[(pair, f"p{i}") for i, pair in enumerate(page.exact.pairs)] if page.exact else [],
        shown=shown,
        first=_first(shown),
        fadings=_fadings(page.strengths),
        curves=[_curves(section) for section in page.sections],
        thresholds=_curves(page.thresholds) if page.thresholds else ([], []),
        update=_update(page.update),
        widths={
            "tile": _figure_width((tile.truth for tile in tiles), beside=3),
            "fading": _figure_width((f.truths[0] for s in page.strengths for f in s.fadings), beside=2),
            "pair": _figure_width((pair.truth for pair in page.exact.pairs) if page.exact else (), beside=2),
        },
        data=_data(page, shown),
    )


def _where(tile: Tile, page: Page) -> str:
    """Return the attack and the values of the other axes, with their headings."""
    axes = page.gallery.axes if page.gallery else ()
    others = [f"{heading} {tile.axes[key]}" for key, heading in axes if key in tile.axes and key != ATTACK]
    return " · ".join([tile.axes[ATTACK], *others] if ATTACK in tile.axes else others)


def _shared(reels: Sequence[Reel]) -> tuple[list[Reel], list[int]]:
    """Return the different reels among these, and for each its place among them; empty ones have no place (-1)."""
    places: dict[bytes, int] = {}
    kept: list[Reel] = []
    own = []
    for reel in reels:
        content = b"".join(image.tobytes() for image in reel.stills)
        if content and content not in places:
            places[content] = len(kept)
            kept.append(reel)
        own.append(places.get(content, -1))
    return kept, own


def _columns(fading: Fading) -> list[list[Tensor]]:
    """Return for each truth its pictures under every strength, the truth first."""
    return [[truth, *(level.pictures[i] for level in fading.levels)] for i, truth in enumerate(fading.truths)]


def _fadings(strengths: Sequence[Strength]) -> list[list[tuple[Fading, list[str]]]]:
    count = 0
    found = []
    for strength in strengths:
        own = []
        for fading in strength.fadings:
            own.append((fading, [f"s{count + i}" for i in range(len(fading.truths))]))
            count += len(fading.truths)
        found.append(own)
    return found


def _first(shown: Sequence[Shown]) -> list[Shown]:
    """Return as many pictures as fit beside the headline: the first of the attack and setting that recovered most."""
    groups: dict[tuple[str, ...], list[Shown]] = {}
    for one in shown:
        groups.setdefault(tuple(one.tile.axes.values()), []).append(one)
    ranked = sorted(groups.values(), key=lambda own: -sum(one.tile.recovered for one in own) / len(own))
    best = next((own for own in ranked if len(own) >= LEAST_SHOWN), [])
    if not best or best[0].tile.truth.ndim == 1:
        return []
    return best[: max(1, HEADLINE_WIDTH // _drawn_width(best[0].tile.truth))]


def _curves(section: Section) -> tuple[list[Drawing], list[Stroke]]:
    """Return the drawings of a section's panels and their legend; a line has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in section.panels for name in panel.names()))
    drawings = [draw(panel, names) for panel in section.panels]
    return drawings, legend(drawings)


def _drawn_width(picture: Tensor) -> int:
    columns = min(picture.shape[-1], 128)
    return math.ceil(columns * zoom(columns, CELL))


def _figure_width(pictures: Iterable[Tensor], *, beside: int) -> int:
    """Return the width in points of a figure that shows `beside` such pictures in a row, with what surrounds them."""
    return max([ROW_WIDTH, *(beside * (_drawn_width(picture) + FRAME) for picture in pictures if picture.ndim > 1)])


def _update(update: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the drawn layers (the largest, in the model's order) and the counts of what is shown and what is not."""
    sizes = {name: value.numel() for name, value in update.items()}
    kept = set(sorted(sizes, key=lambda name: -sizes[name])[:LAYERS_SHOWN])
    layers: list[Layer] = draw_layers({name: value for name, value in update.items() if name in kept})
    hidden = [name for name in sizes if name not in kept]
    return {
        "layers": layers,
        "layer_count": len(sizes),
        "values": sum(sizes.values()),
        "hidden": len(hidden),
        "hidden_values": sum(sizes[name] for name in hidden),
    }


def _data(page: Page, shown: Sequence[Shown]) -> dict[str, Any]:
    """Return the data for the script; JSON has no NaN and no infinity, so those are null."""
    worst = max((one.tile.mse for one in shown if math.isfinite(one.tile.mse)), default=1.0)
    return {
        "timeline": timeline([one.steps for one in shown]),
        "axes": [list(axis) for axis in page.gallery.axes] if page.gallery else [],
        "choices": _choices(page.gallery),
        "cuts": [[cut, numbers.number(cut)] for cut in CUTS if cut < worst],
        "tiles": [_tile_data(one) for one in shown],
        "strengths": [
            [[_level_words(strength, level) for level in fading.levels] for fading in strength.fadings]
            for strength in page.strengths
        ],
        "download": page.download.name if page.download else "",
    }


def _choices(gallery: Gallery | None) -> dict[str, list[str]]:
    """Return the values of each axis of the gallery, numbers by size, others as they come."""
    found: dict[str, list[str]] = {}
    if gallery is None:
        return found
    for key, _ in gallery.axes:
        values = list(dict.fromkeys(tile.axes[key] for tile in gallery.tiles if key in tile.axes))
        try:
            found[key] = sorted(values, key=float)
        except ValueError:
            found[key] = values
    return found


def _tile_data(one: Shown) -> dict[str, Any]:
    tile = one.tile
    return {
        "key": one.key,
        "at": list(one.steps),
        "axes": dict(tile.axes),
        "label": tile.label,
        "where": one.where,
        "row": tile.truth.ndim == 1,
        "number": tile.number,
        "outcome": tile.outcome,
        "hit": tile.recovered,
        "mse": _finite(tile.mse),
        "ssim": _finite(tile.ssim),
        "steps": tile.steps,
        "facts": _facts(tile),
        "trace": [_rounded(value) for value in tile.trace],
        "trace_at": list(tile.trace_at),
        "courses": {name: [_rounded(value) for value in course] for name, course in tile.courses.items()},
        "nulls": one.nulls,
        "baselines": [[guess.name, f"MSE {numbers.number(guess.mse)}" + _ssim(guess.ssim)] for guess in tile.baselines],
    }


def _facts(tile: Tile) -> list[list[str]]:
    """Return what the enlarged view says of a tile, name and value."""
    said = [["MSE", numbers.number(tile.mse)], ["PSNR", numbers.decibels(tile.psnr)]]
    said += [["SSIM", numbers.number(tile.ssim)]] if tile.ssim is not None else []
    if tile.guess is not None:
        said.append(["label", "guessed right" if tile.label_correct else f"guessed {tile.guess}"])
    said += [[name, numbers.number(value)] for name, value in tile.learned.items()]
    return [*said, ["outcome", f"{tile.outcome} after {tile.steps} steps"]]


def _ssim(value: float | None) -> str:
    return "" if value is None else f" · SSIM {numbers.number(value)}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _level_words(strength: Strength, level: Level) -> str:
    interval = numbers.percent_interval(level.content)
    within = f" (95 % interval {interval})" if interval else ""
    words = f"{strength.axis} = {level.strength}: {numbers.percent(level.content.value)} recovered{within}, "
    accuracy = "" if level.accuracy is None else f"; accuracy of the model {numbers.percent(level.accuracy)}"
    return f"{words}mean MSE {numbers.number(level.mse.value)}{accuracy}"
