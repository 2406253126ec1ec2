"""The page of a policy search in a browser: nothing complains, both themes, points to point at, no sideways scrolling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leakscope.report.search_page import render_search
from leakscope.search.candidates import Candidate
from leakscope.search.policies import walks_of
from leakscope.search.records import result_of
from leakscope.search.settings import PolicySearch

pytestmark = pytest.mark.browser
Open = Callable[..., Any]


@pytest.fixture
def page() -> str:
    said = PolicySearch(candidates=40, threshold=-85.0, keep=3)
    known = {f"{i}-1-7": Candidate(f"{i}-1-7", 0.25 + i / 300, -60.0 - i) for i in range(40)}
    known["none"] = Candidate("none", 0.32, -70.0)
    walks = walks_of(["3-1-7", "43-18-18"], "fashion_mnist", number=3)
    return render_search(said, {"random": result_of(said, known, known)}, walks, command="leakscope search x.yaml")


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_is_the_systems(open_page: Open, page: str, dark: bool) -> None:
    tab = open_page(page, dark=dark).tab
    ground = [int(v) for v in tab.evaluate("getComputedStyle(document.body).backgroundColor")[4:-1].split(",")]
    assert (sum(ground) < 200) == dark
    assert tab.locator(".scatter .spot").count() == 40
    assert tab.locator(".scatter .kept").count() == 3
    assert tab.locator(".scatter .rejected").count() == 14
    assert tab.locator(".scatter .spot title").first.text_content().startswith("26-1-7: privacy 0.337")
    assert tab.locator(".walk img").evaluate_all("all => all.every(one => one.complete && one.naturalWidth > 0)")


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_window(open_page: Open, page: str, width: int) -> None:
    tab = open_page(page, width=width).tab
    tab.locator("#every summary").first.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    box = tab.locator(".scatter svg").bounding_box()
    line = tab.locator(".scatter .threshold").bounding_box()
    assert box["y"] < line["y"] < box["y"] + box["height"]
