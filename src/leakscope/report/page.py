"""The page: one HTML text that needs nothing but itself, from a `Page` of plain data.

Everything from the data goes through jinja2's escaping. The page forbids itself the network (a content security policy
that allows inline pictures and this one script, by its hash), so a mistake here cannot make it call anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.report import numbers
from leakscope.report.film import timeline
from leakscope.report.picture import EXACT, data_uri
from leakscope.report.reel import Reel, encode_all, film_reel, noise_reel, pair_reel
from leakscope.report.update_picture import Layer, draw_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment
    from torch import Tensor

    from leakscope.report.page_data import NoiseLevel, Page

TEMPLATES = Path(__file__).parent / "templates"
LAYERS_SHOWN = 12
FRAGMENT_HEIGHT = 720


def render(page: Page) -> str:
    """Return the page as one self-contained HTML text."""
    from markupsafe import Markup

    style, script = (TEMPLATES / "page.css").read_text("utf-8"), (TEMPLATES / "page.js").read_text("utf-8")
    reels = _reels(page)
    sprites, levels = encode_all(reels)
    names = [f"k{i}" for i in range(len(reels))]
    rules = "\n".join(reel.rule(name, data) for reel, name, data in zip(reels, names, sprites, strict=True))
    films = [tile.frames_at for gallery in page.galleries for tile in gallery.tiles]
    stops = timeline(films)
    data = {
        "timeline": stops,
        "films": films,
        "noise": [_noise_words(level) for level in page.noise.levels] if page.noise else [],
    }
    return _environment().get_template("page.html").render(
        page=page,
        style=Markup(style),  # noqa: S704  our own file
        script=Markup(script),  # noqa: S704  our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        rules=Markup(rules),  # noqa: S704  numbers and base64
        sections=_share_out(page, names),
        update=_update(page.update),
        stops=stops,
        levels=levels if levels < EXACT else None,
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
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
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
    reels = [pair_reel(pair.truth, pair.recovered) for pair in page.exact.pairs] if page.exact else []
    reels += [film_reel(tile.truth, tile.frames) for gallery in page.galleries for tile in gallery.tiles]
    if page.noise:
        levels = [level.pictures for level in page.noise.levels]
        reels += [noise_reel(truth, [level[i] for level in levels]) for i, truth in enumerate(page.noise.truths)]
    return reels


def _share_out(page: Page, names: list[str]) -> dict[str, Any]:
    """Return the things of each section beside the class names of their reels, in the order of `_reels`."""
    left = iter(names)
    return {
        "pairs": [(pair, next(left)) for pair in page.exact.pairs] if page.exact else [],
        "galleries": [(gallery, [(tile, next(left)) for tile in gallery.tiles]) for gallery in page.galleries],
        "noise": [(label, next(left)) for label in page.noise.labels] if page.noise else [],
    }


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
    return f"noise σ = {level.sigma:g}: {content}{within}, mean MSE {numbers.number(level.mse.value)}{note}"
