"""The layout of a page: every image in a reel with a CSS class, every curve drawn, the data for the script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from leakscope.report import numbers
from leakscope.report.cells import ATTACK
from leakscope.report.charts import Drawing, Stroke, draw_panels
from leakscope.report.films import CELL, Detail, Reel, choose_detail, film_reel, still_reel, timeline, zoom
from leakscope.report.page_data import Fading, Gallery, Level, Page, Pair, Strength, Tile
from leakscope.report.pictures import Layer, draw_layers

if TYPE_CHECKING:
    from torch import Tensor

LAYERS_SHOWN = 12
HEADLINE_WIDTH, LEAST_SHOWN = 520, 2
ROW_WIDTH, FRAME = 280, 10
CUTS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


class ShownTile(NamedTuple):
    """A tile, its setting in words, the CSS classes of its reel and its baselines' reel, the iterations of the frames drawn."""

    tile: Tile
    where: str
    key: str
    nulls: str
    steps: tuple[int, ...]


class UpdateDrawing(NamedTuple):
    """The drawn layers of an update, and the counts of layers and values drawn and hidden."""

    layers: list[Layer]
    layer_count: int
    values: int
    hidden: int
    hidden_values: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What the template needs besides the page."""

    rules: list[str]
    detail: Detail
    pairs: list[tuple[Pair, str]]
    shown: list[ShownTile]
    first: list[ShownTile]
    fadings: list[list[tuple[Fading, list[str]]]]
    curves: list[tuple[list[Drawing], list[Stroke]]]
    thresholds: tuple[list[Drawing], list[Stroke]]
    update: UpdateDrawing
    widths: Mapping[str, int]
    data: Mapping[str, object]


def lay_out(page: Page) -> Layout:
    """Return the layout of a page."""
    tiles = page.gallery.tiles if page.gallery else ()
    pairs = [still_reel([pair.truth, pair.recovered]) for pair in page.exact.pairs] if page.exact else []
    films = [film_reel(tile.truth, tile.frames) for tile in tiles]
    nulls, null_of = _shared([still_reel([g.picture for g in tile.baselines]) for tile in tiles])
    fades = [still_reel(p) for s in page.strengths for f in s.fadings for p in _columns(f)]
    detail = choose_detail([pairs, films, nulls, fades])
    reels = {"p": pairs, "k": films, "b": nulls, "s": fades}
    shown = [
        ShownTile(
            tile,
            setting_text(tile, page),
            f"k{i}",
            f"b{null_of[i]}" if tile.baselines else "",
            tuple(tile.frames_at[f] for f in reel.drawn(detail)),
        )
        for i, (tile, reel) in enumerate(zip(tiles, films, strict=True))
    ]
    return Layout(
        rules=[reel.rule(f"{kind}{i}", detail) for kind, group in reels.items() for i, reel in enumerate(group)],
        detail=detail,
        pairs=[(pair, f"p{i}") for i, pair in enumerate(page.exact.pairs)] if page.exact else [],
        shown=shown,
        first=_first(shown),
        fadings=_fadings(page.strengths),
        curves=[draw_panels(section.panels) for section in page.sections],
        thresholds=draw_panels(page.thresholds.panels if page.thresholds else ()),
        update=draw_update(page.update),
        widths={
            "tile": _figure_width((tile.truth for tile in tiles), beside=3),
            "fading": _figure_width((f.truths[0] for s in page.strengths for f in s.fadings), beside=2),
            "pair": _figure_width((pair.truth for pair in page.exact.pairs) if page.exact else (), beside=2),
        },
        data=_data(page, shown),
    )


def setting_text(tile: Tile, page: Page) -> str:
    """Return the attack and the values of the other axes, with headings."""
    axes = page.gallery.axes if page.gallery else ()
    others = [f"{heading} {tile.axes[key]}" for key, heading in axes if key in tile.axes and key != ATTACK]
    return " · ".join([tile.axes[ATTACK], *others] if ATTACK in tile.axes else others)


def _shared(reels: Sequence[Reel]) -> tuple[list[Reel], list[int]]:
    """Return the distinct reels, and for each input its index among them; -1 for an empty reel."""
    places: dict[bytes, int] = {}
    different: list[Reel] = []
    place_of = []
    for reel in reels:
        content = b"".join(image.tobytes() for image in reel.stills)
        if content and content not in places:
            places[content] = len(different)
            different.append(reel)
        place_of.append(places.get(content, -1))
    return different, place_of


def _columns(fading: Fading) -> list[list[Tensor]]:
    """Return for each true image its reconstructions under every strength, the truth first."""
    return [[truth, *(level.pictures[i] for level in fading.levels)] for i, truth in enumerate(fading.truths)]


def _fadings(strengths: Sequence[Strength]) -> list[list[tuple[Fading, list[str]]]]:
    """Return the fadings of each strength with the CSS classes of their reels."""
    count = 0
    groups = []
    for strength in strengths:
        group = []
        for fading in strength.fadings:
            group.append((fading, [f"s{count + i}" for i in range(len(fading.truths))]))
            count += len(fading.truths)
        groups.append(group)
    return groups


def _first(shown: Sequence[ShownTile]) -> list[ShownTile]:
    """Return as many images as fit beside the headline, from the attack and setting that recovered most."""
    groups: dict[tuple[str, ...], list[ShownTile]] = {}
    for one in shown:
        groups.setdefault(tuple(one.tile.axes.values()), []).append(one)
    ranked = sorted(groups.values(), key=lambda group: -sum(one.tile.recovered for one in group) / len(group))
    best = next((group for group in ranked if len(group) >= LEAST_SHOWN), [])
    if not best or best[0].tile.truth.ndim == 1:
        return []
    return best[: max(1, HEADLINE_WIDTH // _drawn_width(best[0].tile.truth))]


def _drawn_width(picture: Tensor) -> int:
    columns = min(picture.shape[-1], 128)
    return math.ceil(columns * zoom(columns, CELL))


def _figure_width(pictures: Iterable[Tensor], *, beside: int) -> int:
    """Return the width in points of a figure that shows `beside` such images in a row."""
    return max([ROW_WIDTH, *(beside * (_drawn_width(picture) + FRAME) for picture in pictures if picture.ndim > 1)])


def draw_update(update: Mapping[str, Tensor]) -> UpdateDrawing:
    """Return the largest layers, drawn, in the model's order, and the counts of what is shown and hidden."""
    sizes = {name: value.numel() for name, value in update.items()}
    largest = set(sorted(sizes, key=lambda name: -sizes[name])[:LAYERS_SHOWN])
    hidden = [size for name, size in sizes.items() if name not in largest]
    return UpdateDrawing(
        layers=draw_layers({name: value for name, value in update.items() if name in largest}),
        layer_count=len(sizes),
        values=sum(sizes.values()),
        hidden=len(hidden),
        hidden_values=sum(hidden),
    )


def _data(page: Page, shown: Sequence[ShownTile]) -> dict[str, object]:
    """Return the data for the script; NaN and infinity are null, because JSON has neither."""
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
    """Return the values of each axis of the gallery: numbers sorted, others in order of appearance."""
    choices: dict[str, list[str]] = {}
    if gallery is None:
        return choices
    for key, _ in gallery.axes:
        values = list(dict.fromkeys(tile.axes[key] for tile in gallery.tiles if key in tile.axes))
        try:
            choices[key] = sorted(values, key=float)
        except ValueError:
            choices[key] = values
    return choices


def _tile_data(one: ShownTile) -> dict[str, object]:
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
    """Return the (name, value) facts of the enlarged view of a tile."""
    facts = [["MSE", numbers.number(tile.mse)], ["PSNR", numbers.decibels(tile.psnr)]]
    facts += [["SSIM", numbers.number(tile.ssim)]] if tile.ssim is not None else []
    if tile.guess is not None:
        facts.append(["label", "guessed right" if tile.label_correct else f"guessed {tile.guess}"])
    facts += [[name, numbers.number(value)] for name, value in tile.learned.items()]
    return [*facts, ["outcome", f"{tile.outcome} after {tile.steps} steps"]]


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
