"""The page of characteristics: what it says is what it was given, and its drawing has the points where they belong."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.metrics import Estimate
from leakscope_papers.characteristics.characteristic import Characteristic, Example, Point, Region, Rule, place
from leakscope_papers.characteristics.drawing import FRAME, draw_characteristic
from leakscope_papers.characteristics.page import CharacteristicPage, render_characteristics, write_characteristics


def curve(defence: str = "DP <b>", distance: str = "rMSE", top: float = 1.4) -> Characteristic:
    rows = [(0.5, 0.2, 0.42, top), (0.1, 3.0, 0.58, 0.9), (1e-4, 400.0, 0.7, 0.1), (0.0, math.inf, 0.71, 0.05)]
    points = tuple(Point(s, r, a, Estimate(d, d - 0.05, d + 0.05, 20, 20), int(s == 0.5)) for s, r, a, d in rows)
    return Characteristic(defence, "unaware", distance, points, Rule().words)


def page(**changed: object) -> CharacteristicPage:
    picture = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    examples = (
        Example(truth=picture, guess=picture, defence="DP", region=Region.RED, ratio=400.0, distance=0.1),
        Example(
            truth=picture[:1],
            guess=picture[:1] * torch.nan,
            defence="SPN",
            region=Region.GREEN,
            ratio=0.2,
            distance=1.4,
        ),
    )
    given = {"title": "PPC", "headline": "SPN & DP", "explanation": "e", "curves": (curve(),), "examples": examples}
    return CharacteristicPage(**(given | changed))


class Reader(HTMLParser):
    """Collects tags and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "rect") and tag != "path":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag == "path":
            return
        assert self.open.pop() == tag


def test_the_page_is_whole_escaped_and_calls_nowhere() -> None:
    text = render_characteristics(page())
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert "DP &lt;b&gt;" in text
    assert "<b>" not in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert not re.search(r"https?://|<script", text)
    images = [attrs["src"] for tag, attrs in reader.seen if tag == "img"]
    assert len(images) == 4
    assert all(source.startswith("data:image/png;base64,") for source in images)


def test_it_says_cap_grid_counts_and_the_rule(same_text: Callable[[str, str], None]) -> None:
    first = curve()
    text = render_characteristics(page(curves=(first, curve("SPN"), curve("SPN", "tracing"))))
    same_text("characteristic", text)
    assert f"{first.cap.value:.3f}" in text
    assert first.rule in text
    assert text.count("<svg") == 3
    assert text.count(">80<") == 3  # 4 settings of 20


def test_points_stand_where_they_belong() -> None:
    drawing = draw_characteristic(curve(), "DP")
    accuracy, distance, product = drawing.curves
    spots = [tuple(map(float, spot)) for spot in re.findall(r"[ML]([\d.]+) ([\d.]+)", accuracy.path)]
    assert len(spots) == 4
    assert [x for x, _ in spots] == sorted(x for x, _ in spots)
    wide, high = FRAME.last - FRAME.first, FRAME.floor - FRAME.top
    for (_, y), value in zip(spots, (0.42, 0.58, 0.7, 0.71), strict=True):
        assert y == pytest.approx(FRAME.floor - value * high, abs=0.1)
    end = place(400.0) + 0.25 + 0.5
    for (x, _), ratio in zip(spots[:3], (0.2, 3.0, 400.0), strict=True):
        assert x == pytest.approx(FRAME.first + place(ratio) / end * wide, abs=0.1)
    assert spots[3][0] < FRAME.last
    assert drawing.across[-1][1] == "none"
    assert product.dashed
    assert distance.band.endswith("Z")
    assert len(distance.marks) == 4


def test_the_regions_fill_the_frame_and_meet_at_their_borders() -> None:
    shades = draw_characteristic(curve(), "DP").shades
    assert [shade.name for shade in shades] == ["green", "white", "red"]
    assert shades[0].x == FRAME.first
    for one, other in itertools.pairwise(shades):
        assert one.x + one.width == pytest.approx(other.x, abs=0.11)
    assert shades[-1].x + shades[-1].width == pytest.approx(FRAME.last, abs=0.11)


def test_a_distance_without_bound_fits_the_right_axis() -> None:
    drawing = draw_characteristic(curve(top=37.0), "DP")
    assert float(drawing.right[-1][1]) >= 37
    assert drawing.left[-1][1] == "100 %"


def test_a_single_point_and_a_page_without_pictures_work() -> None:
    lone = Characteristic("DP", "dlg", "rMSE", (Point(0.1, 2.0, 0.6, Estimate(0.5, math.nan, math.nan, 1, 1)),))
    assert 'id="examples"' not in render_characteristics(page(curves=(lone,), examples=()))
    with pytest.raises(InputError, match="one curve"):
        render_characteristics(page(curves=()))


def test_it_is_written_where_it_is_asked_to(tmp_path: Path) -> None:
    made = write_characteristics(page(), tmp_path / "new" / "page.html")
    assert made.read_text(encoding="utf-8") == render_characteristics(page())


def test_chance_is_drawn_where_there_is_one_and_comes_back_from_disk() -> None:
    traced = replace(curve("SPN", "tracing", top=0.6), chance=0.9)
    drawing = draw_characteristic(traced, "SPN")
    assert drawing.chance is not None
    high = float(drawing.right[-1][1])
    assert drawing.chance == pytest.approx(FRAME.floor - 0.9 / high * (FRAME.floor - FRAME.top), abs=0.06)
    assert drawing.words.endswith("; chance 0.900")
    text = render_characteristics(page(curves=(curve(), traced)))
    assert text.count(">chance</text>") == text.count('<path class="chance"') == 1
    assert "who guesses" in text
    plain = render_characteristics(page())
    assert "chance</text>" not in plain
    assert "who guesses" not in plain
    assert json.loads(json.dumps(traced.plain(), allow_nan=False))["chance"] == 0.9
    with pytest.raises(InputError, match=r"chance .*\[0, inf\) .*got -1"):
        replace(traced, chance=-1.0)


def test_what_was_left_out_is_said_where_something_was() -> None:
    points = tuple(replace(point, left_out=2) for point in curve().points)
    text = render_characteristics(page(curves=(replace(curve("SPN"), points=points), curve("DP"))))
    assert re.findall(r"(\w+), unaware: left out (\d+)", text) == [("SPN", f"{2 * len(points)}")]


def test_an_infinite_ratio_says_that_biases_are_unchanged_and_no_more() -> None:
    """A defence on weights alone has that ratio too, so the page does not say that there was no perturbation."""
    untouched = replace(page().examples[0], defence="low rank", ratio=math.inf)
    text = render_characteristics(page(examples=(untouched,)))
    assert re.search(r"0\.100 \(biases unchanged\)", text)
    assert "no perturbation" not in text


def test_a_chance_above_every_distance_fits_the_right_axis() -> None:
    drawing = draw_characteristic(replace(curve(top=0.6), chance=1.7), "SPN")
    assert float(drawing.right[-1][1]) >= 1.7
    assert drawing.chance is not None
    assert drawing.chance >= FRAME.top
