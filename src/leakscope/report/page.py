"""The page: one HTML text that needs nothing but itself, from a `Page` of plain data.

Everything from the data goes through jinja2's escaping. The page forbids itself the network (a content security policy
that allows inline pictures and this one script, by its hash), so a mistake here cannot make it call anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.report import numbers
from leakscope.report.films import timeline
from leakscope.report.layers import Layer, draw_layers
from leakscope.report.picture import data_uri
from leakscope.report.reel import CELL, Reel, choose_strength, film_reel, still_reel, zoom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jinja2 import Environment
    from torch import Tensor

    from leakscope.report.page_data import NoiseLevel, Page, Tile

TEMPLATES = Path(__file__).parent / "templates"
LAYERS_SHOWN = 12
HEADLINE_WIDTH = 520
ROW_WIDTH, FRAME = 190, 10
FRAGMENT_HEIGHT = 720


def render(page: Page) -> str:
    """Return the page as one self-contained HTML text."""
    from markupsafe import Markup

    style, script = (TEMPLATES / "page.css").read_text("utf-8"), (TEMPLATES / "page.js").read_text("utf-8")
    reels = _reels(page)
    strength = choose_strength(reels)
    names = [f"k{i}" for i in range(len(reels))]
    rules = "\n".join(reel.rule(name, strength) for reel, name in zip(reels, names, strict=True))
    films = [tile.frames_at for gallery in page.galleries for tile in gallery.tiles]
    stops = timeline(films)
    data = {
        "timeline": stops,
        "films": films,
        "noise": [_noise_words(level) for level in page.noise.levels] if page.noise else [],
    }
    template = _environment().get_template("page.html")
    return template.render(
        page=page,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        rules=Markup(rules),
        sections=_share_out(page, names),
        update=_update(page.update),
        stops=stops,
        coarsened=strength > 0,
        data=data,
    )


def write(page: Page, path: str | Path) -> Path:
    """Write the page to `path` and return it; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")
    return path


def fragment(page: Page) -> str:
    """Return the page for a notebook's output cell (`_repr_html_`): an iframe that holds all of it.

    An iframe because nothing else is robust there: styles and ids cannot clash with the notebook's or with those of a
    second cell, and scripts run although notebooks do not run those of inserted HTML. It is sandboxed: the page may
    run its script but not touch the notebook.
    """
    title, source = html.escape(page.title, quote=True), html.escape(render(page), quote=True)
    style = f"width:100%;height:{FRAGMENT_HEIGHT}px;border:1px solid #8886;border-radius:6px"
    return f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": numbers.percent,
        "percent_interval": numbers.percent_interval,
        "number": numbers.number,
        "number_interval": numbers.number_interval,
        "data_uri": data_uri,
    }
    return environment


def _reels(page: Page) -> list[Reel]:
    reels = [still_reel(pair.truth, [pair.recovered]) for pair in page.exact.pairs] if page.exact else []
    reels += [film_reel(tile.truth, tile.frames) for gallery in page.galleries for tile in gallery.tiles]
    if page.noise:
        levels = [level.pictures for level in page.noise.levels]
        reels += [still_reel(truth, [level[i] for level in levels]) for i, truth in enumerate(page.noise.truths)]
    return reels


def _share_out(page: Page, names: list[str]) -> dict[str, Any]:
    """Return the things of each section beside the class names of their reels, in the order of `_reels`."""
    left = iter(names)
    pairs = [(pair, next(left)) for pair in page.exact.pairs] if page.exact else []
    galleries = [
        (
            gallery,
            [(tile, next(left)) for tile in gallery.tiles],
            _figure_width((tile.truth for tile in gallery.tiles), beside=3),
        )
        for gallery in page.galleries
    ]
    return {
        "pairs": pairs,
        "galleries": galleries,
        "first": _first_pictures(galleries[0][1]) if galleries else [],
        "pair_width": _figure_width((pair.truth for pair, _ in pairs), beside=2),
        "noise_width": _figure_width(page.noise.truths, beside=2) if page.noise else 0,
        "noise": [(label, next(left)) for label in page.noise.labels] if page.noise else [],
    }


def _first_pictures(tiles: list[tuple[Tile, str]]) -> list[tuple[Tile, str]]:
    """Return as many of the first tiles as fit beside the headline; none if they are rows of a table."""
    if not tiles or tiles[0][0].truth.ndim == 1:
        return []
    return tiles[: HEADLINE_WIDTH // _drawn_width(tiles[0][0].truth)]


def _drawn_width(picture: Tensor) -> int:
    columns = picture.shape[-1]
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


def _noise_words(level: NoiseLevel) -> str:
    content = f"{numbers.percent(level.content.value)} recovered"
    interval = numbers.percent_interval(level.content)
    within = f" (95 % interval {interval})" if interval else ""
    note = f"; {level.note}" if level.note else ""
    return f"Noise σ = {level.sigma:g}: {content}{within}, mean MSE {numbers.number(level.mse.value)}{note}"
