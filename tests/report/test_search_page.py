"""The page of a policy search: what it says is what was found, points stand where they belong, nothing given becomes HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from leakscope.core.errors import InputError
from leakscope.report.figures import figure_svg
from leakscope.report.numbers import number
from leakscope.report.search_figures import figures_of_search
from leakscope.report.search_page import FRAME, draw_policies, explanation, headline, render_search, write_search
from leakscope.search.candidates import Candidate
from leakscope.search.policies import Walk, walks_of
from leakscope.search.records import SearchResult, result_of
from leakscope.search.settings import PolicySearch

VOID = {"meta", "link", "img"}
SETTINGS = PolicySearch(candidates=4, keep=2, threshold=-85.0, images=7, batches=2, batch_size=20)
POINTS = {"3-1-7": (0.232, -81.9), "43-18-18": (0.315, -68.9), "0-0-0": (0.2, -99.0), "9-9-9": (0.41, -90.0)}


def result(points: dict[str, tuple[float, float]] = POINTS, settings: PolicySearch = SETTINGS) -> SearchResult:
    known = {policy: Candidate(policy, *scores) for policy, scores in points.items()}
    known["none"] = Candidate("none", 0.32, -70.0)
    return result_of(settings, known, known)


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_escaped_and_calls_nowhere() -> None:
    picture = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    walks = [Walk("3-1-7", ("move <b>", "invert"), (picture, picture, picture))]
    page = render_search(SETTINGS, {"random": result()}, walks, command="leakscope search <here> & there")
    read = Balanced()
    read.feed(page)
    assert read.open == []
    assert all(link.startswith(("#", "data:")) for link in read.loads)
    assert sum(link.startswith("data:image/png") for link in read.loads) == 6
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "&lt;here&gt; &amp; there" in page
    assert "move &lt;b&gt;" in page
    assert "prefers-color-scheme: dark" in page


def test_it_says_what_was_found_kept_and_rejected_with_n(same_text: Callable[[str, str], None]) -> None:
    page = render_search(SETTINGS, {"random": result()}, command="c")
    same_text("search", page)
    for policy, (privacy, accuracy) in POINTS.items():
        assert f'<th scope="row">{policy}</th><td>{privacy:.4f}</td><td>{accuracy:.2f}</td>' in page
    assert "threshold -85</text>" in page


def test_points_stand_where_they_belong() -> None:
    drawing = draw_policies({"random": result()}, threshold=-85.0)
    (cloud,) = drawing.clouds
    spots = {}
    for fate, mark in cloud.marks:
        policy = mark.words.split(":")[0]
        x, y = map(float, re.findall(r"M([\d.]+) ([\d.]+)", mark.outline)[0])
        spots[policy] = (fate, x + 4, y)
    assert {p: fate for p, (fate, _, _) in spots.items()} == {
        "3-1-7": "kept",
        "43-18-18": "kept",
        "0-0-0": "rejected",
        "9-9-9": "rejected",
    }
    ordered = sorted(POINTS, key=lambda p: POINTS[p][0])
    assert sorted(spots, key=lambda p: spots[p][1]) == ordered
    assert sorted(spots, key=lambda p: -spots[p][2]) == sorted(POINTS, key=lambda p: POINTS[p][1])
    assert drawing.threshold is not None
    assert all((y > drawing.threshold) == (fate == "rejected") for fate, _, y in spots.values())
    assert all(FRAME.first <= x <= FRAME.last and FRAME.top <= y <= FRAME.floor for _, x, y in spots.values())
    left, right = (float(text) for _, text in (drawing.across[0], drawing.across[-1]))
    share = (0.232 - left) / (right - left)
    first, last = drawing.across[0][0], drawing.across[-1][0]
    assert spots["3-1-7"][1] == pytest.approx(first + share * (last - first), abs=0.2)


def test_a_long_tail_of_accuracy_stands_on_the_edge() -> None:
    many = {f"{i}-0-0": (0.3 + i / 1000, -80.0 - i / 10) for i in range(50)} | {"9-9-9": (0.4, -1e7)}
    drawing = draw_policies({"random": result(many)}, threshold=None)
    assert drawing.edge == 1
    assert float(drawing.upward[0][1]) > -1000
    assert drawing.threshold is None


def test_two_methods_are_compared_at_equal_cost() -> None:
    other = {policy: (privacy - 0.05, accuracy) for policy, (privacy, accuracy) in POINTS.items()}
    both = {"random": result(), "optuna": result(other)}
    page = render_search(SETTINGS, both, command="c")
    assert "At equal cost" in page
    areas = [one.area for one in both.values()]
    assert areas[0] is not None
    assert areas[1] is not None
    assert areas[1] > areas[0]
    assert [f"{name} {number(one.area)}" in headline(SETTINGS, both) for name, one in both.items()] == [True, True]
    assert explanation(SETTINGS, both).count("were scored") == 2
    assert len(draw_policies(both, threshold=None).clouds) == 2
    assert '<th scope="row">optuna<small>nsga2</small></th>' in page
    assert "<code>random/scores/</code> and <code>optuna/scores/</code>" in page
    alone = render_search(replace(SETTINGS, threshold=None), {"random": result()}, command="c")
    assert "in <code>scores/</code>" in alone
    assert "under the threshold" not in re.sub(r"<title>.*?</title>|aria-label=\"[^\"]*\"", "", alone)


def test_none_that_passes_and_none_that_is_scored(tmp_path: Path) -> None:
    strict = PolicySearch(candidates=4, threshold=0.0)
    assert headline(strict, {"random": result(settings=strict)}).startswith("None of 4 ")
    with pytest.raises(InputError, match="nothing to show"):
        render_search(SETTINGS, {"random": result({})}, command="c")
    made = write_search(SETTINGS, {"random": result()}, [], tmp_path / "new" / "p.html", command="c", device="cpu")
    assert "cpu, float32" in made.read_text(encoding="utf-8")


def test_walks_are_the_steps_of_the_policies_themselves() -> None:
    from leakscope.core import random
    from leakscope.defences.on_data import Transform, picture_keys

    first, second = walks_of(["3-1-7+43-18-18", "3-1-7", "none"], "fashion_mnist", number=3, seed=5)
    assert (first.policy, second.policy) == ("3-1-7", "43-18-18")
    assert len(first.steps) == 4
    keys = picture_keys(random.key(5), 3)
    for walk in (first, second):
        how = Transform(walk.policy)
        assert torch.equal(walk.steps[-1], how.change(walk.steps[0], how.draw(keys)))


def test_the_scatter_and_every_policy_of_the_page_are_figures() -> None:
    picture = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    walks = [Walk("3-1-7", ("move <b>", "invert"), (picture, picture, picture))]
    figures = figures_of_search(SETTINGS, {"random": result()}, walks)
    assert list(figures) == ["policies", "policy-3-1-7"]
    texts = {name: figure_svg(figure) for name, figure in figures.items()}
    scatter, steps = (ElementTree.fromstring(text) for text in texts.values())
    assert (scatter.get("width"), steps.get("width")) == ("6.6in", "3.3in")
    page = render_search(SETTINGS, {"random": result()}, walks, command="x")
    titles = [element.text for element in scatter.iter() if element.tag.endswith("title")][1:]
    assert len(titles) == len(POINTS) + 1
    assert all(str(title) in page for title in titles)
    assert sum(element.tag.endswith("image") for element in steps.iter()) == 6
