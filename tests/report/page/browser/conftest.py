"""A page in a browser, opened from disk; whatever goes wrong in it fails the test."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from leakscope.report import Page, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs chromium on the PATH: the tests in a browser may not be skipped there")
        pytest.skip("no chromium on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A tab with what went wrong in it: messages and errors of its scripts, requests that leave the disk."""

    def __init__(self, tab: Tab, path: Path) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self._check(request.url))
        tab.goto(path.as_uri())

    def _check(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:null", "blob:file:")):
            self.complaints.append(url)


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens a page (or HTML text) in a new tab; nothing may have gone wrong in it in the end."""
    opened: list[Opened] = []

    def open_it(page: Page | str, *, width: int = 1400, height: int = 800, dark: bool = False) -> Opened:
        path = tmp_path / f"{len(opened)}.html"
        if isinstance(page, str):
            path.write_text(page, "utf-8")
        else:
            write(page, path)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True
        )
        opened.append(Opened(context.new_page(), path))
        return opened[-1]

    yield open_it
    for one in opened:
        assert one.complaints == []
        one.tab.context.close()


def look(locator: Locator) -> npt.NDArray[np.uint8]:
    """Return the element as it is drawn on the screen, at the whole points to which a browser rounds its edges."""
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    assert box is not None
    whole = np.asarray(Image.open(io.BytesIO(locator.page.screenshot())).convert("RGB"))
    top, left = round(box["y"]), round(box["x"])
    return whole[top : round(box["y"] + box["height"]), left : round(box["x"] + box["width"])]


@pytest.fixture(scope="session")
def seen() -> Callable[[Locator], npt.NDArray[np.uint8]]:
    return look


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Tab, Callable[[], bool]], None]:
    """Return a function that waits for something to become true; the page forbids the browser's own way of waiting."""

    def wait(tab: Tab, true: Callable[[], bool]) -> None:
        for _ in range(200):
            if true():
                return
            tab.wait_for_timeout(50)
        pytest.fail("waited ten seconds in vain")

    return wait
