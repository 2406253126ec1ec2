"""The page needs nothing but itself, hides nothing from a reader, and takes no text for markup."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
import torch

from leakscope.report import Page, Tile, render
from leakscope.report.layout import lay_out

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
            assert attributes.get(name, "data:").startswith(("data:", "#"))


def test_the_page_forbids_itself_the_network_and_other_scripts(make_page: MakePage) -> None:
    [policy] = [a["content"] for _, a in Reader(render(make_page())).tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'$", policy)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_picture_has_words(make_page: MakePage, shape: tuple[int, ...]) -> None:
    tags = Reader(render(make_page(shape=shape, frames=2))).tags
    pictures = [a for tag, a in tags if tag == "img" or a.get("role") == "img"]
    assert len(pictures) >= 2 + 2 * 3 + 3 * 6 + 2 * 2 * 3 + 1
    told_by_the_script = {"viewer-truth", "viewer-start", "viewer-result", ""}
    silent = [a for a in pictures if not (a.get("alt") or a.get("aria-label"))]
    assert {a.get("id", "") for a in silent} == told_by_the_script
    assert len(silent) == 4


def test_ids_are_unique_and_every_slider_has_a_label(make_page: MakePage) -> None:
    tags = Reader(render(make_page())).tags
    ids = Counter(a["id"] for _, a in tags if "id" in a)
    assert set(ids.values()) == {1}
    sliders = [a["id"] for tag, a in tags if tag == "input" and a["type"] == "range"]
    assert sliders == ["strength-0", "cut", "film-slider", "viewer-scrub"]
    assert set(sliders) - {"cut"} <= {a["for"] for tag, a in tags if tag == "label" and "for" in a}
    for _, a in tags:
        assert a.get("aria-labelledby", "headline") in ids
        assert a.get("href", "#headline").removeprefix("#") in ids or a["href"] == "data:,"
    tiles = [a for tag, a in tags if tag == "button" and "enlarge" in a.get("class", "").split()]
    assert len(tiles) == 6
    assert all("picture" in a["aria-label"] for a in tiles)


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
    assert len(read.scripts) == 3
    assert read.scripts[2] == plain.scripts[2]


def test_the_data_for_the_script_survives_and_cannot_close_its_block(make_page: MakePage) -> None:
    page = make_page()
    assert page.gallery is not None
    tile = dataclasses.replace(page.gallery.tiles[0], label=EVIL, axes={"attack": EVIL})
    poisoned = dataclasses.replace(page.gallery, tiles=(tile, *page.gallery.tiles[1:]))
    _, block, _ = Reader(render(dataclasses.replace(page, gallery=poisoned))).scripts
    assert "</" not in block
    assert "<!--" not in block
    data = json.loads(block)
    assert data["tiles"][0]["label"] == EVIL
    assert data["choices"]["attack"] == [EVIL, "attack 0", "attack 1"]
    assert [one["at"] for one in data["tiles"]] == [list(t.frames_at) for t in page.gallery.tiles]
    assert data["timeline"] == sorted({at for one in data["tiles"] for at in one["at"]})


def test_the_records_travel_whole(make_page: MakePage) -> None:
    page = make_page()
    assert page.download is not None
    packed, _, _ = Reader(render(page)).scripts
    assert gzip.decompress(base64.b64decode(packed)).decode() == page.download.text
    assert json.loads(Reader(render(page)).scripts[1])["download"] == page.download.name


def test_every_number_of_the_table_is_there_with_its_interval_and_outcomes(make_page: MakePage) -> None:
    read = words(render(make_page()))
    for expected in (
        "96.9 % 84.3 to 99.4 %",
        "93.8 % 79.9 to 98.3 %",
        "2 × 10⁻⁵",
        "0.900 0.810 to 0.990",
        "120",
        "47.0",
    ):
        assert expected in read
    assert re.search(r"30 converged\s+2 exhausted", read)
    assert "diverged" not in read.split("Truth, start")[0]
    assert re.search(r"class mean\s+without", read)


def test_a_curve_is_drawn_with_its_band_its_levels_and_its_words(make_page: MakePage) -> None:
    page = make_page()
    (panel,) = page.sections[0].panels
    tags = Reader(render(page)).tags
    charts = [a for tag, a in tags if tag == "svg" and a.get("role") == "img" and "aria-label" in a]
    assert [a["aria-label"].split(":")[0] for a in charts] == [f"{panel.title} along {panel.axis}"]
    classes = Counter(name for tag, a in tags if tag == "path" for name in a.get("class", "").split())
    assert classes["band"] == 2
    assert classes["level"] == 2  # one in the chart, one in its legend
    assert classes["spot"] == 5 + 1 + 2


def test_every_text_of_the_page_is_shown(make_page: MakePage) -> None:
    page = make_page()
    read = words(render(page))
    texts = [page.headline, page.explanation, page.rule, page.speed, page.limits, page.threat.words]
    texts += [*page.threat.known, *page.threat.hidden, *page.threat.mixed, "Network", "lenet", "resnet"]
    texts += [text for fact in page.provenance.facts for text in fact]
    texts += [page.provenance.command, page.provenance.scenario.strip(), page.provenance.plan]
    texts += [page.sections[0].title, page.sections[0].note, "Every setting"]
    assert page.gallery is not None
    assert page.exact is not None
    assert page.download is not None
    texts += [page.gallery.note, page.exact.note, page.download.note, page.strengths[0].note]
    texts += [tile.label for tile in page.gallery.tiles]
    texts += ["104 numbers in 2 parts", "conv.weight", "4 × 1 × 5 × 5 = 100 values"]
    assert not [text for text in texts if text not in read]


def test_accuracy_stands_beside_the_strength_or_is_said_to_be_unknown(make_page: MakePage) -> None:
    [strength] = make_page().strengths
    known = words(render(make_page()))
    level = lay_out(make_page()).data["strengths"][0][0][0]
    assert level in known
    assert re.findall(r"\d[\d.]*", level) == ["0", "100", "95", "67.6", "100", "0", "90"]
    assert "was not measured" not in known
    blind = dataclasses.replace(strength, fadings=strength.fadings[1:])
    assert "was not measured" in words(render(make_page(strengths=(blind,))))


def test_a_tile_says_how_it_ended(make_page: MakePage, make_tile: Callable[..., Tile]) -> None:
    page = make_page()
    assert page.gallery is not None
    tile = make_tile(torch.rand(1, 28, 28), label="shoe")
    missed = dataclasses.replace(
        tile, recovered=False, outcome="exhausted", label_correct=True, ssim=None, mse=float("nan"), place="worst"
    )
    gallery = dataclasses.replace(page.gallery, tiles=(tile, missed), axes=())
    read = words(render(dataclasses.replace(page, gallery=gallery)))
    first, second = (text for text in re.findall(r"shoe attack 0 (.*?) (?:steps|step)\b", read) if "MSE" in text)
    assert [part in first for part in ("MSE 3.1 × 10⁻⁷", "SSIM 0.998", "guessed bag", "converged after 40")] == [
        True
    ] * 4
    assert [part in second for part in ("MSE not finite", "PSNR 65.1 dB", "label right", "exhausted")] == [True] * 4
    assert "· worst of" in read
    assert re.search(r"\b1 of 2\b", read)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_tile_and_nothing_else_is_a_page(make_page: MakePage, shape: tuple[int, ...]) -> None:
    page = make_page(
        shape=shape,
        attacks=1,
        tiles=1,
        frames=1,
        exact=None,
        strengths=(),
        sections=(),
        every=None,
        update={},
        download=None,
    )
    source = render(page)
    tags = Reader(source).tags
    ranges = [a["id"] for tag, a in tags if tag == "input"]
    assert ranges == ["cut", "viewer-scrub"]
    for missing in (
        "Recovered by algebra",
        "A stronger defence",
        "the server saw",
        "run in numbers",
        "the records as",
    ):
        assert missing not in source


def test_a_page_may_have_no_gallery(make_page: MakePage) -> None:
    source = render(make_page(gallery=None))
    assert not [a for tag, a in Reader(source).tags if tag == "dialog" or a.get("id") == "film-slider"]
    data = json.loads(Reader(source).scripts[1])
    assert (data["timeline"], data["tiles"]) == ([], [])


def test_a_model_of_many_layers_is_drawn_in_part(make_page: MakePage) -> None:
    update = {f"layer{i}": torch.ones(1 + i) for i in range(40)}
    source = render(make_page(update=update))
    read = words(source)
    drawing = lay_out(make_page(update=update)).update
    assert (drawing.values, drawing.layer_count, drawing.hidden, drawing.hidden_values) == (820, 40, 28, 406)
    assert all(str(number) in read for number in (820, 40, 28, 406))
    names = re.findall(r"<code>(layer\d+)</code>", source)
    assert names == [f"layer{i}" for i in range(28, 40)]
