"""The charts and galleries of a page as single figures for papers: SVG, and PDF or PNG through cairosvg (extra `figures`).

A figure is as wide as a column of a paper, has a light background, and its text is about 8 pt there.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from leakscope.core.errors import InputError, import_extra
from leakscope.core.registry import lookup
from leakscope.report.charts import Drawing, Stroke, draw_panels
from leakscope.report.layout import draw_update, setting_text
from leakscope.report.numbers import number, percent
from leakscope.report.page import render_template
from leakscope.report.page_data import Exact, Fading, Gallery, Page, Section, Strength, Tile
from leakscope.report.pictures import Pixels, data_uri, pixels, png, shrink
from leakscope.store.disk import writing_to

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.report.search_page import ScatterDrawing

WIDTH, COLUMN_INCHES = 380, 3.3
TOP, LINE, GAP = 20, 18, 4  # height of a title and of a line of text, space between images
LONGEST_LINE = 50  # characters beside the sign of a legend
ACROSS, MOST_SETTINGS = 6, 12
SIDE, ROW_HEIGHT = 256, 16.0  # points a side of an image; height of a table row drawn as an image
LAYER_WIDTH = 960  # points of a drawn layer of an update
DOTS = 300  # an inch, of a PNG
PRIVATE = "private inputs, never sent"


class Strip(NamedTuple):
    """Images side by side under a line of text; `size` is the width and height of each."""

    label: str
    uris: tuple[str, ...]
    size: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a page: a drawn chart with its legend, or strips of images (or of text alone)."""

    name: str
    words: str
    drawing: Drawing | None = None
    legend: tuple[Stroke, ...] = ()
    strips: tuple[Strip, ...] = ()
    scatter: ScatterDrawing | None = None  # as wide as two columns

    @property
    def width(self) -> int:
        """Return the width in units of which `WIDTH` are a column."""
        return WIDTH if self.scatter is None else self.scatter.frame.width


def figures_of(page: Page) -> dict[str, Figure]:
    """Return every chart and gallery of a page by name, in the order of the page."""
    return by_name(_figures(page))


def by_name(unnamed: Iterable[Figure]) -> dict[str, Figure]:
    """Return figures by name; those that share one are numbered from the second on."""
    figures: dict[str, Figure] = {}
    same: Counter[str] = Counter()
    for figure in unnamed:
        same[figure.name] += 1
        name = figure.name if same[figure.name] == 1 else f"{figure.name}-{same[figure.name]}"
        figures[name] = replace(figure, name=name)
    return figures


def write_figure(page: Page, name: str, path: str | Path) -> Path:
    """Write a figure of a page to a file that ends in .svg, .pdf or .png, and return its path."""
    return save_figure(figures_of(page), name, Path(path))


def save_figure(figures: Mapping[str, Figure], name: str, path: Path, *, form: str | None = None) -> Path:
    """Write a figure as svg, pdf or png (None: as `path` ends) and return the path; see `writing_to`."""
    convert = lookup(FORMS, path.suffix.removeprefix(".") if form is None else form, "figure format")
    content = convert(figure_svg(lookup(figures, name, "figure of this page")))
    with writing_to(path) as file:
        file.write(content)
    return path


def figure_svg(figure: Figure) -> str:
    """Return a figure as the text of an SVG file."""
    height, images, lines, signs = 0.0, [], [], []
    if figure.drawing is not None:
        height = float(TOP + figure.drawing.frame.height + GAP)
    elif figure.scatter is not None:
        height = float(figure.scatter.frame.height + GAP)
    longest = LONGEST_LINE * figure.width // WIDTH
    for stroke in figure.legend:
        name = f"{stroke.name} (without the update)" if stroke.baseline else stroke.name
        signs.append((stroke, height + LINE - 5))
        for part in textwrap.wrap(name, longest):
            lines.append((40, height + LINE - 5, part))
            height += LINE
    for strip in figure.strips:
        for part in textwrap.wrap(strip.label, longest + 6):
            lines.append((2, height + LINE - 5, part))
            height += LINE
        wide, high = strip.size
        images += [(place * (wide + GAP), height, wide, high, uri) for place, uri in enumerate(strip.uris)]
        height += high + GAP * bool(strip.uris)
    values = {
        "figure": figure,
        "inches": COLUMN_INCHES * figure.width / WIDTH,
        "width": figure.width,
        "height": round(height + GAP, 1),
        "top": TOP,
        "images": images,
        "lines": lines,
        "signs": signs,
    }
    text = render_template("figure.svg", values)
    return "".join(c for c in text if c.isprintable() or c == "\n")  # XML has no control characters


def _figures(page: Page) -> Iterator[Figure]:
    """Yield the figures of a page; several may have the same name."""
    for section in (*page.sections, *([page.thresholds] if page.thresholds else [])):
        yield from _charts(section)
    if page.update:
        yield _update(page)
    if page.exact:
        yield Figure("by-algebra", page.exact.note, strips=tuple(_pairs(page.exact)))
    for strength in page.strengths:
        for fading in strength.fadings:
            who = f" {fading.attack}" if len(strength.fadings) > 1 else ""
            yield Figure(slug(f"strength {strength.axis}{who}"), strength.note, strips=tuple(_levels(strength, fading)))
    if page.gallery:
        yield Figure("gallery", page.gallery.note, strips=tuple(_settings(page, page.gallery)))


def _charts(section: Section) -> Iterator[Figure]:
    """Yield a figure for each panel of a section; a line has the same colour in all of them."""
    drawings, legend = draw_panels(section.panels)
    for drawing in drawings:
        names = {stroke.name for stroke in drawing.strokes}
        lines = tuple(stroke for stroke in legend if stroke.name in names)
        yield Figure(slug(f"{section.title} {drawing.title}"), drawing.words, drawing, lines)


def _update(page: Page) -> Figure:
    drawn = draw_update(page.update)
    strips = tuple(
        Strip(f"{layer.name}, {layer.size}", (data_uri(_enlarge_png(layer.png)),), (WIDTH, layer.height))
        for layer in drawn.layers
    )
    return Figure(
        "update", f"the update of one client: {drawn.values:,} numbers in {drawn.layer_count} tensors", strips=strips
    )


def _pairs(exact: Exact) -> Iterator[Strip]:
    for start in range(0, len(exact.pairs), ACROSS):
        pairs = exact.pairs[start : start + ACROSS]
        yield image_strip(PRIVATE, [pair.truth for pair in pairs])
        worst = number(max(pair.mse for pair in pairs))
        yield image_strip(f"recovered by algebra, MSE at most {worst}", [pair.recovered for pair in pairs])


def _levels(strength: Strength, fading: Fading) -> Iterator[Strip]:
    yield image_strip(PRIVATE, fading.truths)
    for level in fading.levels:
        label = f"{strength.axis} {level.strength}: {percent(level.content.value)} recovered"
        yield image_strip(f"{label} by {fading.attack}", level.pictures)


def _settings(page: Page, gallery: Gallery) -> Iterator[Strip]:
    """Yield the first images of each setting in the order of the page, settings with the same truths below one row of these."""
    groups: dict[tuple[str, ...], list[Tile]] = {}
    for tile in gallery.tiles:
        groups.setdefault(tuple(tile.axes.values()), []).append(tile)
    shown: dict[bytes, list[list[Tile]]] = {}
    for tiles in list(groups.values())[:MOST_SETTINGS]:
        first = tiles[:ACROSS]
        shown.setdefault(b"".join(tile.truth.numpy().tobytes() for tile in first), []).append(first)
    for settings in shown.values():
        truths = settings[0]
        yield image_strip(PRIVATE, [tile.truth for tile in truths])
        for tiles in settings:
            hits = f"{sum(tile.recovered for tile in tiles)} of {len(tiles)} recovered"
            yield image_strip(f"{setting_text(tiles[0], page)}: {hits}", [tile.frames[-1] for tile in tiles])
        for name in (guess.name for guess in truths[0].baselines):
            guesses = [guess.picture for tile in truths for guess in tile.baselines if guess.name == name]
            yield image_strip(f"{name}, without the update", guesses)


def image_strip(label: str, pictures: Sequence[Tensor] | Tensor) -> Strip:
    """Return images of one shape side by side, as large as `ACROSS` of them fit."""
    shape, across = pictures[0].shape, max(ACROSS, len(pictures))
    wide = (WIDTH - GAP * (across - 1)) / across
    high = ROW_HEIGHT if len(shape) == 1 else wide * shape[-2] / shape[-1]
    return Strip(label, tuple(data_uri(png(_enlarge(pixels(picture)))) for picture in pictures), (wide, high))


def _enlarge(image: Pixels) -> Pixels:
    """Return an image with sides of about `SIDE`, its points as squares, so that no program blurs small images."""
    image = shrink(image, SIDE)
    times = max(1, SIDE // max(image.shape[:2]))
    return image.repeat(times, 0).repeat(times, 1)


def _enlarge_png(data: bytes) -> bytes:
    """Return a PNG about `LAYER_WIDTH` points wide, its points as rectangles."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        times = max(1, LAYER_WIDTH // image.width)
        image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def slug(text: str) -> str:
    """Return a text as a file name.

    >>> slug("By gaussian_noise sigma Mean MSE")
    'by-gaussian-noise-sigma-mean-mse'
    """
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def _pdf(text: str) -> bytes:
    return bytes(_cairosvg().svg2pdf(bytestring=text.encode()))


def _png(text: str) -> bytes:
    from PIL import Image

    drawn = _cairosvg().svg2png(bytestring=text.encode(), scale=DOTS / 96)
    out = io.BytesIO()
    Image.open(io.BytesIO(drawn)).convert("RGB").save(out, "PNG", dpi=(DOTS, DOTS))
    return out.getvalue()


def _cairosvg() -> ModuleType:
    try:
        return import_extra("cairosvg", "figures", "a figure as PDF or PNG")
    except OSError as error:  # the library behind it
        raise InputError(f"a figure as PDF or PNG needs the cairo library, which cannot be loaded ({error})") from None


FORMS: Mapping[str, Callable[[str], bytes]] = {"svg": str.encode, "pdf": _pdf, "png": _png}
