"""The built documentation in a browser, from disk: run after `make docs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

SITE = Path(__file__).parents[4] / "site"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: run `make docs`"),
]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["index.html", "start/first-audit.html", "explanation/performance.html"])
def test_a_page_fits_its_screen_and_loads_nothing_from_elsewhere(
    browser: Browser, page: str, width: int, dark: bool
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light", offline=True
    )
    tab, requested, errors = context.new_page(), list[str](), list[str]()
    tab.on("request", lambda request: requested.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((SITE / page).as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    context.close()


def test_the_search_finds_a_page_from_disk(
    browser: Browser, wait_until: Callable[[Tab, Callable[[], bool]], None]
) -> None:
    tab = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
    tab.goto((SITE / "index.html").as_uri())
    tab.keyboard.press("/")
    tab.keyboard.type("peeling")
    results = tab.locator(".md-search-result__item a")
    wait_until(tab, lambda: results.count() > 0)
    links = [link.get_attribute("href") or "" for link in results.all()]
    assert any("explanation/exact.html" in link for link in links), links
    tab.context.close()
