"""The page in a browser, opened from disk: it moves when asked, and asks nobody for anything."""

from __future__ import annotations

import dataclasses
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

from leakscope.report import Page, fragment, write
from leakscope.report.picture import pixels

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser
MakePage = Callable[..., Page]
EVIL = "<script>document.title = 'broken'</script>"


@pytest.fixture(scope="module")
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
        if not url.startswith(("file:", "data:")):
            self.complaints.append(url)


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens a page (or HTML text) in a new tab; nothing may have gone wrong in it in the end."""
    opened: list[Opened] = []

    def open_it(page: Page | str, *, width: int = 1400, dark: bool = False) -> Opened:
        path = tmp_path / f"{len(opened)}.html"
        if isinstance(page, str):
            path.write_text(page, "utf-8")
        else:
            write(page, path)
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", offline=True
        )
        opened.append(Opened(context.new_page(), path))
        return opened[-1]

    yield open_it
    for one in opened:
        assert one.complaints == []
        one.tab.context.close()


def slide(tab: Tab, slider: str, value: int) -> None:
    tab.locator(slider).fill(str(value))


def seen(locator: Locator) -> npt.NDArray[np.uint8]:
    """Return the element as it is drawn on the screen, at the whole points to which a browser rounds its edges."""
    tab = locator.page
    tab.evaluate("scrollTo(0, 0)")
    box = locator.bounding_box()
    assert box is not None
    whole = np.asarray(Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("RGB"))
    top, left = round(box["y"]), round(box["x"])
    return whole[top : round(box["y"] + box["height"]), left : round(box["x"] + box["width"])]


def wait_until(tab: Tab, true: Callable[[], bool]) -> None:
    """Wait for something to become true, at most ten seconds; the page forbids the browser's own way of waiting."""
    for _ in range(200):
        if true():
            return
        tab.wait_for_timeout(50)
    pytest.fail("waited ten seconds in vain")


def test_every_frame_on_the_screen_is_the_frame_of_the_data(
    make_page: MakePage, open_page: Callable[..., Opened]
) -> None:
    page = make_page(shape=(3, 32, 32))
    tab = open_page(page).tab
    tile = page.galleries[0].tiles[1]
    shown = tab.locator(".tile").nth(1)
    expected = [pixels(tile.truth), pixels(tile.frames[0]), pixels(tile.frames[-1])]
    for place, picture in enumerate(expected):
        drawn = seen(shown.locator(".pic").nth(place))
        assert drawn.shape == (96, 96, 3)
        assert np.array_equal(drawn[1::3, 1::3], picture)


def test_the_slider_plays_every_tile_from_start_to_result(
    make_page: MakePage, open_page: Callable[..., Opened]
) -> None:
    page = make_page()
    tab = open_page(page).tab
    tiles = [tile for gallery in page.galleries for tile in gallery.tiles]
    stops = sorted({at for tile in tiles for at in tile.frames_at})
    assert tab.locator("#film-step").inner_text() == "46 of 46"
    for place in (0, 3, len(stops) - 1):
        slide(tab, "#film-slider", place)
        assert tab.locator("#film-step").inner_text() == f"{stops[place]} of 46"
        for index in (0, 5):
            tile, shown = tiles[index], tab.locator(".tile").nth(index)
            frame = max(i for i, at in enumerate(tile.frames_at) if at <= stops[place])
            assert np.array_equal(seen(shown.locator(".moving"))[1::3, 1::3, :1], pixels(tile.frames[frame]))
            assert shown.locator(".step").inner_text() == f"step {tile.frames_at[frame]}"
            assert shown.locator(".state").is_visible() == (frame == len(tile.frames) - 1)


def test_play_advances_to_the_end_and_can_be_paused(make_page: MakePage, open_page: Callable[..., Opened]) -> None:
    tab = open_page(make_page(tiles=2)).tab
    play, slider = tab.locator("#play"), tab.locator("#film-slider")
    play.click()
    assert play.inner_text() == "Pause"
    wait_until(tab, lambda: int(slider.input_value()) in (2, 3))
    play.click()
    assert play.inner_text() == "Play"
    stopped = slider.input_value()
    tab.wait_for_timeout(300)
    assert slider.input_value() == stopped
    play.click()
    wait_until(tab, lambda: play.inner_text() == "Play")
    assert slider.input_value() == slider.get_attribute("max")


def test_the_noise_slider_shows_the_level(make_page: MakePage, open_page: Callable[..., Opened]) -> None:
    page = make_page()
    assert page.noise is not None
    tab = open_page(page).tab
    for level in (0, 7, 2):
        slide(tab, "#noise-slider", level)
        drawn = seen(tab.locator("#noise .moving").nth(1))
        assert np.array_equal(drawn[1::3, 1::3, :1], pixels(page.noise.levels[level].pictures[1]))
        assert f"σ = {page.noise.levels[level].sigma:g}:" in tab.locator("#noise-words").inner_text()
        assert tab.locator(".levels tr[aria-current]").count() == 1
        assert tab.locator(".levels tr[aria-current] th").inner_text() == f"{page.noise.levels[level].sigma:g}"
    truth = seen(tab.locator("#noise .pic").nth(0))
    assert np.array_equal(truth[1::3, 1::3, :1], pixels(page.noise.truths[0]))


def test_keys_alone_are_enough(make_page: MakePage, open_page: Callable[..., Opened]) -> None:
    tab = open_page(make_page()).tab
    slider = tab.locator("#film-slider")
    slider.focus()
    tab.keyboard.press("Home")
    assert tab.locator("#film-step").inner_text() == "0 of 46"
    tab.locator(".tile").nth(0).focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    assert slider.input_value() == "1"
    outline = "getComputedStyle(document.activeElement).outlineWidth"
    assert tab.evaluate(outline) == "3px"
    tab.locator("#noise-slider").focus()
    tab.keyboard.press("End")
    assert "σ = 0.1:" in tab.locator("#noise-words").inner_text()
    tab.locator(".skip").first.focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.classList.contains('tile')")


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_the_button_is_pressed(
    make_page: MakePage, open_page: Callable[..., Opened], dark: bool
) -> None:
    tab = open_page(make_page(tiles=1), dark=dark).tab
    ground = "getComputedStyle(document.body).backgroundColor"
    light_or_dark = [tab.evaluate(ground)]
    assert tab.locator("#theme").inner_text() == ("Light theme" if dark else "Dark theme")
    tab.locator("#theme").click()
    light_or_dark.append(tab.evaluate(ground))
    assert sorted(light_or_dark) == ["rgb(16, 21, 27)", "rgb(245, 246, 248)"]
    assert light_or_dark[dark] == "rgb(245, 246, 248)"
    tab.reload()
    assert tab.evaluate(ground) == light_or_dark[1]  # remembered


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 128, 128), (30,)])
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_wider_than_the_window(
    make_page: MakePage, open_page: Callable[..., Opened], shape: tuple[int, ...], width: int
) -> None:
    tab = open_page(make_page(shape=shape, frames=2, attacks=1), width=width).tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = """[...document.querySelectorAll('.tile')].filter(t => {
        const right = t.getBoundingClientRect().right;
        return [...t.querySelectorAll('.pic')].some(p => p.getBoundingClientRect().right > right + 0.5);
    }).length"""
    assert tab.evaluate(overflowing) == 0


def test_a_picture_scaled_by_a_fraction_shows_no_neighbour(
    make_page: MakePage, open_page: Callable[..., Opened]
) -> None:
    page = make_page(shape=(3, 32, 32), tiles=1, attacks=1)
    tile = page.galleries[0].tiles[0]
    white = dataclasses.replace(tile, truth=tile.truth * 0, frames=tile.frames * 0 + 1)
    gallery = dataclasses.replace(page.galleries[0], tiles=(white,))
    tab = open_page(dataclasses.replace(page, galleries=(gallery,)), width=390).tab
    drawn = seen(tab.locator(".tile .pic").first)
    assert drawn.shape[1] == 56
    assert drawn.max() == 0


def test_a_class_named_like_a_script_stays_text(make_page: MakePage, open_page: Callable[..., Opened]) -> None:
    page = make_page(tiles=1, attacks=1)
    tile = dataclasses.replace(page.galleries[0].tiles[0], label=EVIL, guess=EVIL)
    gallery = dataclasses.replace(page.galleries[0], tiles=(tile,), name=EVIL)
    tab = open_page(dataclasses.replace(page, galleries=(gallery,))).tab
    assert tab.title() == "demo"
    assert EVIL in tab.locator(".tile .label").inner_text()
    assert tab.locator("body script").count() == 2


def test_two_fragments_in_one_notebook_work_side_by_side(make_page: MakePage, open_page: Callable[..., Opened]) -> None:
    page = make_page(tiles=1, attacks=1)
    tab = open_page(f"<!doctype html><p id='play'>mine</p>{fragment(page)}{fragment(page)}").tab
    first, second = (tab.frame_locator("iframe").nth(i) for i in (0, 1))
    first.locator("#film-slider").fill("0")
    first.locator("#theme").click()
    assert first.locator("#film-step").inner_text() == "0 of 40"
    assert second.locator("#film-step").inner_text() == "40 of 40"
    assert second.locator("#theme").inner_text() == "Dark theme"
    assert tab.locator("#play").inner_text() == "mine"
