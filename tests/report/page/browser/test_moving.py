"""The page in a browser, opened from disk: it moves when asked, fits its window, and asks nobody for anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from leakscope.metrics.interval import Estimate
from leakscope.report import Gallery, Page, fragment, page_of_run
from leakscope.report.pictures import pixels

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser
MakePage = Callable[..., Page]
Open = Callable[..., Any]
Seen = Callable[["Locator"], npt.NDArray[np.uint8]]
EVIL = "<script>document.title = 'broken'</script>"
ZOOM, LARGEST = 3, 2  # 28 points in a cell of 84, 32 in one of 84


def gallery_of(page: Page) -> Gallery:
    assert page.gallery is not None
    return page.gallery


def in_order(tab: Tab) -> None:
    """Sort the gallery as the data is."""
    tab.locator("#filters select[name=sort]").select_option("run")


def test_every_frame_on_the_screen_is_the_frame_of_the_data(make_page: MakePage, open_page: Open, seen: Seen) -> None:
    page = make_page(shape=(3, 32, 32))
    tab = open_page(page).tab
    in_order(tab)
    tile = gallery_of(page).tiles[1]
    shown = tab.locator(".tile").nth(1)
    for place, picture in enumerate([pixels(tile.truth), pixels(tile.frames[0]), pixels(tile.frames[-1])]):
        drawn = seen(shown.locator(".pic").nth(place))
        assert drawn.shape == (64, 64, 3)
        assert np.array_equal(drawn[1::LARGEST, 1::LARGEST], picture)


def test_the_slider_plays_every_tile_from_start_to_result(make_page: MakePage, open_page: Open, seen: Seen) -> None:
    page = make_page()
    tab = open_page(page).tab
    in_order(tab)
    tiles = gallery_of(page).tiles
    stops = sorted({at for tile in tiles for at in tile.frames_at})
    assert tab.locator("#film-step").inner_text() == "46 of 46"
    for place in (0, 3, len(stops) - 1):
        tab.locator("#film-slider").fill(str(place))
        assert tab.locator("#film-step").inner_text() == f"{stops[place]} of 46"
        for index in (0, 5):
            tile, shown = tiles[index], tab.locator(".tile").nth(index)
            frame = max(i for i, at in enumerate(tile.frames_at) if at <= stops[place])
            drawn = seen(shown.locator(".moving"))
            assert np.array_equal(drawn[1::ZOOM, 1::ZOOM, :1], pixels(tile.frames[frame]))
            assert shown.locator(".step").inner_text() == f"step {tile.frames_at[frame]}"
            assert shown.locator(".state").is_visible() == (frame == len(tile.frames) - 1)


def test_play_advances_to_the_end_and_can_be_paused(
    make_page: MakePage, open_page: Open, wait_until: Callable[..., None]
) -> None:
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


def test_the_strength_slider_shows_the_level_of_the_chosen_attack(
    make_page: MakePage, open_page: Open, seen: Seen
) -> None:
    page = make_page()
    [strength] = page.strengths
    tab = open_page(page).tab
    for attack, level in ((0, 0), (0, 4), (1, 2), (1, 4)):
        tab.locator(".strength-attack").select_option(str(attack))
        tab.locator("#strength-0").fill(str(level))
        fading = strength.fadings[attack]
        drawn = seen(tab.locator(f".fading[data-fading='{attack}'] .moving").nth(1))
        assert np.array_equal(drawn[1::ZOOM, 1::ZOOM, :1], pixels(fading.levels[level].pictures[1]))
        assert tab.locator(".strength-words").inner_text().startswith(f"sigma = {fading.levels[level].strength}: ")
        assert ("accuracy" in tab.locator(".strength-words").inner_text()) == (attack == 0)
        current = tab.locator(".levels:visible tr[aria-current]")
        assert current.count() == 1
        assert current.locator("th").inner_text() == fading.levels[level].strength
        assert tab.locator(".fading:visible").count() == 1
    truth = seen(tab.locator(".fading:visible .pic").nth(0))
    assert np.array_equal(truth[1::ZOOM, 1::ZOOM, :1], pixels(strength.fadings[1].truths[0]))


def test_sliders_move_with_keys(make_page: MakePage, open_page: Open) -> None:
    tab = open_page(make_page()).tab
    tab.locator("#film-slider").focus()
    tab.keyboard.press("Home")
    assert tab.locator("#film-step").inner_text() == "0 of 46"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    tab.locator("#strength-0").focus()
    tab.keyboard.press("End")
    assert tab.locator(".strength-words").inner_text().startswith("sigma = 0.1:")


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_the_button_is_pressed(
    make_page: MakePage, open_page: Open, dark: bool
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
@pytest.mark.parametrize("width", [360, 768, 1400])
def test_nothing_is_wider_than_the_window(
    make_page: MakePage, open_page: Open, shape: tuple[int, ...], width: int
) -> None:
    tab = open_page(make_page(shape=shape, frames=2, attacks=1), width=width).tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = """[...document.querySelectorAll('.tile')].filter(t => {
        const right = t.getBoundingClientRect().right;
        return [...t.querySelectorAll('.pic')].some(p => p.getBoundingClientRect().right > right + 0.5);
    }).length"""
    assert tab.evaluate(overflowing) == 0
    tab.locator(".enlarge").first.click()
    assert tab.evaluate(
        "document.querySelector('#viewer').scrollWidth <= document.querySelector('#viewer').clientWidth"
    )


@pytest.mark.parametrize("width", [360, 1100, 1280, 1400])
def test_a_table_of_many_measures_scrolls_by_itself_and_breaks_no_word(
    make_page: MakePage, open_page: Open, width: int
) -> None:
    page = make_page(attacks=2)
    measures = {f"measure_{number}": Estimate(0.5, 0.25, 0.75, 4, 4) for number in range(8)}

    def wide(row: Any) -> Any:
        return dataclasses.replace(row, attack="bag_of_words", learned={} if row.baseline else measures)

    sections = tuple(dataclasses.replace(each, axes=(), rows=tuple(map(wide, each.rows))) for each in page.sections)
    tab = open_page(dataclasses.replace(page, sections=sections), width=width).tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    names = "[...document.querySelectorAll('#numbers .run tbody tr:not(.baseline) > th[scope=row]')]"
    broken = f"""{names}.filter(each => {{
        const range = document.createRange();
        range.selectNodeContents(each);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
    }}).length"""
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert "bag_of_words" in tab.evaluate(f"{names}.map(each => each.innerText.trim())")
    assert tab.evaluate(broken) == 0
    last = "document.querySelector('#numbers .run tbody td.ends').getBoundingClientRect()"
    tab.evaluate("document.querySelectorAll('.scroll').forEach(each => { each.scrollLeft = 10000; })")
    assert tab.evaluate(f"{last}.right") <= width


def test_a_picture_scaled_by_a_fraction_shows_no_neighbour(make_page: MakePage, open_page: Open, seen: Seen) -> None:
    page = make_page(shape=(3, 32, 32), tiles=1, attacks=1)
    tile = gallery_of(page).tiles[0]
    white = dataclasses.replace(tile, truth=tile.truth * 0, frames=tile.frames * 0 + 1, baselines=())
    tab = open_page(
        dataclasses.replace(page, gallery=dataclasses.replace(gallery_of(page), tiles=(white,))), width=390
    ).tab
    drawn = seen(tab.locator(".tile .pic").first)
    assert drawn.shape[1] == 104
    assert drawn[1:-1, 1:-1].max() == 0


def test_a_class_named_like_a_script_stays_text(make_page: MakePage, open_page: Open) -> None:
    page = make_page(tiles=1, attacks=1)
    tile = dataclasses.replace(gallery_of(page).tiles[0], label=EVIL, guess=EVIL, axes={"attack": EVIL})
    gallery = dataclasses.replace(gallery_of(page), tiles=(tile,))
    tab = open_page(dataclasses.replace(page, gallery=gallery, headline=EVIL)).tab
    tab.locator(".enlarge").click()
    assert tab.title() == "demo"
    assert tab.locator("#viewer-title").inner_text() == EVIL
    assert EVIL in tab.locator("#viewer-where").inner_text()
    assert tab.locator("body script").count() == 3


def test_a_run_named_like_a_script_stays_text(make_run: Any, make_cells: Any, open_page: Open) -> None:
    name = "<script>alert(1)</script>"
    tab = open_page(page_of_run(make_run(make_cells(name=name), trials=2), command="c")).tab
    dialogs: list[str] = []
    tab.on("dialog", lambda dialog: dialogs.append(dialog.message))
    tab.reload()
    assert dialogs == []
    assert tab.title() == name
    assert tab.locator(".kind").inner_text() == name


def test_two_fragments_in_one_notebook_work_side_by_side(make_page: MakePage, open_page: Open) -> None:
    page = make_page(tiles=1, attacks=1)
    tab = open_page(f"<!doctype html><p id='play'>mine</p>{fragment(page)}{fragment(page)}").tab
    first, second = (tab.frame_locator("iframe").nth(i) for i in (0, 1))
    first.locator("#film-slider").fill("0")
    first.locator("#theme").click()
    assert first.locator("#film-step").inner_text() == "0 of 40"
    assert second.locator("#film-step").inner_text() == "40 of 40"
    assert second.locator("#theme").inner_text() == "Dark theme"
    assert tab.locator("#play").inner_text() == "mine"
    first.locator(".enlarge").click()
    assert first.locator("#viewer").is_visible()
    assert not second.locator("#viewer").is_visible()


@pytest.mark.slow
def test_two_hundred_trials_are_a_page_of_bounded_size(
    make_run: Any, make_cells: Any, browser: Browser, tmp_path: Path
) -> None:
    from leakscope.report import write

    cells = make_cells(sigmas=(0.0, 0.001, 0.01, 0.1))
    path = write(page_of_run(make_run(cells, trials=25, shape=(3, 32, 32), shots=12), command="c"), tmp_path / "p.html")
    tab = browser.new_page()
    tab.goto(path.as_uri(), wait_until="load")
    assert tab.locator("#count").inner_text().startswith("200 shown")
    assert tab.evaluate("document.querySelectorAll('*').length") < 40 * 200
    assert path.stat().st_size < 6e6
    tab.close()
