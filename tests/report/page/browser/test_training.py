"""The page of a training in a browser: nothing complains, both themes, no sideways scrolling on a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leakscope.report.training_page import render_training
from leakscope.training import Point, Result, training_of

pytestmark = pytest.mark.browser
Open = Callable[..., Any]


@pytest.fixture
def page() -> str:
    told = {
        "name": "<script>alert(1)</script>",
        "data": "digits",
        "partition": {"name": "iid", "clients": 6},
        "model": "mlp",
        "client": {"local": {"epochs": 2, "rate": 0.1}},
        "rounds": 12,
    }
    training = training_of(told)
    curve = tuple(Point(r, 3, 30, 1.0, 7 * r, 100, 2.0 - r / 12) for r in range(13))
    kept = {12: "runs/a-rather-long-name-of-a-directory/checkpoints/round-00012.safetensors"}
    made = Result(training, curve, (20,) * 6, kept, {"machine": "two cores"})
    return render_training(made, command="leakscope train x.yaml")


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_is_the_systems_until_the_button_says_otherwise(open_page: Open, page: str, dark: bool) -> None:
    tab = open_page(page, dark=dark).tab

    def ground() -> str:
        return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert tab.inner_text("#theme") == ("Light theme" if dark else "Dark theme")
    before = ground()
    tab.click("#theme")
    assert ground() != before
    assert tab.inner_text("#theme") == ("Dark theme" if dark else "Light theme")


def test_the_title_stays_text_and_curves_are_drawn(open_page: Open, page: str) -> None:
    tab = open_page(page).tab
    assert tab.title() == "<script>alert(1)</script>"
    assert tab.locator(".panel .curve").count() == 3
    assert "84 %" in tab.inner_text("h1")


def test_a_phone_does_not_scroll_sideways(open_page: Open, page: str) -> None:
    tab = open_page(page, width=360).tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.click(".rows summary")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
