"""The page needs nothing but itself, hides nothing from a reader, and takes no text for markup."""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import leakscope.report
from leakscope.data import load
from leakscope.report import Gallery, Page, Tile, fragment, render, write

MakePage = Callable[..., Page]
SHAPES = {"grey": (1, 28, 28), "colour": (3, 32, 32), "plain": (8, 8), "large": (3, 128, 128), "table": (30,)}
EVIL = "<script>alert(1)</script>"
EVIL_TEXTS = (EVIL, '"><img src=x onerror=alert(1)>', "</script><script>alert(1)</script>", "{{ 7 * 191 }}", "'&<!--")


class Reader(HTMLParser):
    """Collects what a browser would see: start tags with attributes, the text, and the contents of scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data


def words(source: str) -> str:
    return " ".join(Reader(source).text.split())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_reference_leaves_the_page(make_page: MakePage, shape: tuple[int, ...]) -> None:
    source = render(make_page(shape=shape, frames=2))
    assert not re.search(r"https?:|@import|//cdn|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", source)
    assert all(address.startswith("data:") for address in re.findall(r"url\(\s*['\"]?([^)]*)", source))
    for _, attributes in Reader(source).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:").startswith("data:")


def test_the_page_forbids_itself_the_network_and_other_scripts(make_page: MakePage) -> None:
    [policy] = [a["content"] for _, a in Reader(render(make_page())).tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'$", policy)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_picture_has_words(make_page: MakePage, shape: tuple[int, ...]) -> None:
    tags = Reader(render(make_page(shape=shape, frames=2))).tags
    pictures = [a for tag, a in tags if tag == "img" or a.get("role") == "img"]
    assert len(pictures) >= 2 + 2 * 3 + 3 * 6 + 2 * 3
    assert all(a.get("alt") or a.get("aria-label") for a in pictures)


def test_ids_are_unique_and_every_slider_has_a_label(make_page: MakePage) -> None:
    tags = Reader(render(make_page())).tags
    ids = Counter(a["id"] for _, a in tags if "id" in a)
    assert set(ids.values()) == {1}
    sliders = [a["id"] for tag, a in tags if tag == "input" and a["type"] == "range"]
    assert sliders == ["film-slider", "noise-slider"]
    assert set(sliders) <= {a["for"] for tag, a in tags if tag == "label"}
    for _, a in tags:
        assert a.get("aria-labelledby", "headline") in ids
    tiles = [a for _, a in tags if "tile" in a.get("class", "").split()]
    assert len(tiles) == 6
    assert all(a["tabindex"] == "0" for a in tiles)


def replace_texts(value: object, text: str) -> object:
    """Return the value with every string in it, at any depth, replaced by `text`."""
    if isinstance(value, str):
        return text
    if isinstance(value, tuple):
        return tuple(replace_texts(item, text) for item in value)
    if isinstance(value, dict):
        return {replace_texts(name, text): replace_texts(item, text) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: replace_texts(getattr(value, f.name), text) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


@pytest.mark.parametrize("evil", EVIL_TEXTS)
def test_any_text_stays_text(make_page: MakePage, evil: str) -> None:
    harmless, poisoned = (replace_texts(make_page(), text) for text in ("word", evil))
    assert isinstance(harmless, Page)
    assert isinstance(poisoned, Page)
    plain, read = Reader(render(harmless)), Reader(render(poisoned))
    assert [(tag, list(a)) for tag, a in read.tags] == [(tag, list(a)) for tag, a in plain.tags]
    assert " ".join(read.text.split()).count(evil) == " ".join(plain.text.split()).count("word")
    assert len(read.scripts) == 2
    assert read.scripts[1] == plain.scripts[1]


def test_the_data_for_the_script_survives_and_cannot_close_its_block(make_page: MakePage) -> None:
    noise = make_page().noise
    assert noise is not None
    level = dataclasses.replace(noise.levels[0], note=EVIL)
    page = make_page(noise=dataclasses.replace(noise, levels=(level,)))
    block, _ = Reader(render(page)).scripts
    assert "</" not in block
    assert "<!--" not in block
    data = json.loads(block)
    assert data["noise"][0].endswith("; " + EVIL)
    assert data["films"] == [list(t.frames_at) for g in page.galleries for t in g.tiles]
    assert data["timeline"] == sorted({at for film in data["films"] for at in film})


def test_every_number_of_the_table_is_there_with_its_interval_and_outcomes(make_page: MakePage) -> None:
    read = words(render(make_page()))
    for expected in ("96.9 % 84.3 to 99.4 %", "93.8 % 79.9 to 98.3 %", "2 × 10⁻⁵", "0.900 0.810 to 0.990", "120"):
        assert expected in read
    assert "30 converged, 2 exhausted" in read
    assert "diverged" not in read
    assert "n/a" in read


def test_every_text_of_the_page_is_shown(make_page: MakePage) -> None:
    page = make_page()
    read = words(render(page))
    texts = [page.headline, page.explanation, page.rule, page.speed, page.knowledge, page.limits]
    texts += [getattr(page.provenance, f.name) for f in dataclasses.fields(page.provenance)]
    for gallery in page.galleries:
        texts += [gallery.name, gallery.note, *(tile.label for tile in gallery.tiles)]
    assert page.noise is not None
    assert page.exact is not None
    texts += [page.noise.note, page.exact.note, "104 numbers in 2 parts", "conv.weight", "4 × 1 × 5 × 5 = 100 values"]
    assert not [text for text in texts if text not in read]


def test_a_tile_says_how_it_ended(make_page: MakePage, make_tile: Callable[..., Tile]) -> None:
    tile = make_tile(torch.rand(1, 28, 28), label="shoe")
    missed = dataclasses.replace(tile, recovered=False, outcome="exhausted", guess="shoe", ssim=None, mse=float("nan"))
    page = make_page(galleries=(Gallery(name="a", note="", tiles=(tile, missed)),))
    read = words(render(page))
    assert "recovered shoe, guessed bag MSE 3.1 × 10⁻⁷ · SSIM 0.998 converged after 40 steps" in read
    assert "not recovered shoe, guessed right MSE not finite exhausted after 40 steps" in read
    assert "1 of 2 shown are recovered" in read


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_tile_and_nothing_else_is_a_page(make_page: MakePage, shape: tuple[int, ...]) -> None:
    page = make_page(shape=shape, attacks=1, tiles=1, frames=1, exact=None, noise=None, rows=(), update={})
    source = render(page)
    tags = Reader(source).tags
    assert not [a for tag, a in tags if tag == "input"]  # nothing to move
    assert "Recovered by algebra" not in source
    assert "Noise until" not in source
    assert "What the server saw" not in source


def test_a_page_may_have_no_gallery(make_page: MakePage) -> None:
    source = render(make_page(galleries=()))
    assert "film-slider" not in Reader(source).text
    assert json.loads(Reader(source).scripts[0])["timeline"] == []
    assert render(make_page(galleries=(Gallery(name="none", note="", tiles=()),)))


def test_a_model_of_many_layers_is_drawn_in_part(make_page: MakePage) -> None:
    update = {f"layer{i}": torch.ones(1 + i) for i in range(40)}
    source = render(make_page(update=update))
    read = words(source)
    assert "820 numbers in 40 parts" in read
    assert "and 28 smaller parts with 406 values, not drawn" in read
    names = re.findall(r"<code>(layer\d+)</code>", source)
    assert names == [f"layer{i}" for i in range(28, 40)]


def test_a_full_demo_stays_small(make_page: MakePage) -> None:
    truths = load("fashion_mnist").pictures("test", slice(32))
    source = render(make_page(truths=truths, attacks=3, frames=17))
    assert len(source.encode()) < 1_600_000
    assert "drawn with fewer brightness values" not in source


def test_in_colour_it_is_noise_that_loses_values(make_page: MakePage) -> None:
    grey = torch.nn.functional.pad(load("fashion_mnist").pictures("test", slice(32)), (2, 2, 2, 2))
    truths = grey * torch.rand(32, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    source = render(make_page(truths=truths, attacks=3, frames=17, noise=None))
    assert len(source.encode()) < 2_200_000
    assert "drawn with fewer brightness values" in source


def test_render_repeats_itself(make_page: MakePage) -> None:
    page = make_page()
    assert render(page) == render(page)


def test_write_makes_the_folder(make_page: MakePage, tmp_path: Path) -> None:
    page = make_page(title="a title — σ")
    path = write(page, tmp_path / "new" / "page.html")
    assert path.read_text("utf-8") == render(page)


def test_the_fragment_holds_the_whole_page_and_nothing_that_clashes(make_page: MakePage) -> None:
    page = make_page(title=EVIL)
    [(tag, attributes)] = Reader(fragment(page)).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == render(page)
    assert attributes["title"] == EVIL
    assert attributes["sandbox"] == "allow-scripts"
    assert html.escape(EVIL) in fragment(page)


def test_the_room_is_imported_without_its_heavy_parts() -> None:
    code = "import sys, leakscope.report; print([m for m in ('torch', 'jinja2', 'PIL', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_name_of_the_room_is_hidden_by_a_file_of_the_same_name() -> None:
    for module in pkgutil.iter_modules(leakscope.report.__path__):
        importlib.import_module(f"leakscope.report.{module.name}")
    assert [name for name in leakscope.report.__all__ if not callable(getattr(leakscope.report, name))] == []
    with pytest.raises(AttributeError, match="rendr"):
        getattr(leakscope.report, "rendr")  # noqa: B009  a type checker knows that it is missing
