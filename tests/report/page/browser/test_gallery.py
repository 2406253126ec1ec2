"""The gallery in a browser: it filters, sorts, enlarges by mouse and by keys, and hands over its records."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from leakscope.report import Gallery, Page, page_of_run
from leakscope.report.pictures import pixels

if TYPE_CHECKING:
    from playwright.sync_api import Locator
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser
MakePage = Callable[..., Page]
Open = Callable[..., Any]
Seen = Callable[["Locator"], npt.NDArray[np.uint8]]
LARGE = 8  # 28 points in a cell of 232


def gallery_of(page: Page) -> Gallery:
    assert page.gallery is not None
    return page.gallery


@pytest.fixture
def page(make_run: Any) -> Page:
    """Return the page of a small sweep: two attacks, three strengths, four trials."""
    return page_of_run(make_run(trials=4, shape=(1, 28, 28), shots=4), command="leakscope report RUN")


def labels(tab: Tab) -> list[str]:
    """Return where the visible tiles lie, and their MSE, in the order of the screen."""
    return tab.locator(".tile:visible figcaption").all_inner_texts()


def choose(tab: Tab, name: str, value: str) -> None:
    tab.locator(f"#filters select[name={name}]").select_option(value)


def test_each_filter_leaves_what_fits_and_all_together_what_fits_all(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tiles = gallery_of(page).tiles
    assert tab.locator(".tile:visible").count() == 24
    tab.locator("#filters select[data-axis=attack]").select_option(label="dlg")
    assert tab.locator(".tile:visible").count() == sum(t.axes["attack"] == "dlg" for t in tiles) == 12
    tab.locator("#filters select[data-axis='defences.0.sigma']").select_option(label="0.01")
    expected = [t for t in tiles if t.axes == {"attack": "dlg", "defences.0.sigma": "0.01"}]
    assert tab.locator(".tile:visible").count() == len(expected) == 4
    assert all(text.count("dlg · ") == text.count("sigma 0.01") == 1 for text in labels(tab))
    outcome = expected[0].outcome
    choose(tab, "outcome", outcome)
    fitting = [t for t in expected if t.outcome == outcome]
    assert tab.locator(".tile:visible").count() == len(fitting)
    hits = sum(t.recovered for t in fitting)
    assert re.findall(r"\d+", tab.locator("#count").inner_text()) == [f"{len(fitting)}", "24", f"{hits}"]
    tab.locator("#filters button[type=reset]").click()
    tab.wait_for_timeout(50)
    assert tab.locator(".tile:visible").count() == 24


def test_content_and_score_filter(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tiles = gallery_of(page).tiles
    choose(tab, "hit", "yes")
    assert tab.locator(".tile:visible").count() == sum(t.recovered for t in tiles) > 0
    choose(tab, "hit", "no")
    assert tab.locator(".tile:visible").count() == sum(not t.recovered for t in tiles) > 0
    choose(tab, "hit", "")
    slider = tab.locator("#cut")
    for place in range(int(slider.get_attribute("max") or 0) + 1):
        slider.fill(str(place))
        said = tab.locator("#cut-words").inner_text()
        limit = float("inf") if said == "any" else float(said.replace("10⁻⁸", "1e-8")) if said[0] == "0" else None
        if limit is not None:
            assert tab.locator(".tile:visible").count() == sum(t.mse <= limit for t in tiles)
    assert tab.locator("#empty").is_visible() is False


def test_nothing_fits_and_the_page_says_so(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tab.locator("#cut").fill("0")
    assert tab.locator(".tile:visible").count() == 0
    assert tab.locator("#empty").is_visible()


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("mse", lambda t: t.mse),
        ("-mse", lambda t: -t.mse),
        ("ssim", lambda t: t.ssim),
        ("-ssim", lambda t: -t.ssim),
        ("number", lambda t: t.number),
        ("steps", lambda t: t.steps),
        ("run", lambda t: 0),
    ],
)
def test_each_order_is_that_of_the_scores(page: Page, open_page: Open, order: str, key: Callable[[Any], float]) -> None:
    tab = open_page(page).tab
    choose(tab, "sort", order)
    keys = [one["key"] for one in tab.evaluate("JSON.parse(document.getElementById('data').textContent).tiles")]
    shown = tab.locator(".tile .moving").evaluate_all("all => all.map(p => p.className)")
    places = [keys.index(name.split()[-1]) for name in shown]
    tiles = gallery_of(page).tiles
    expected = sorted(range(len(tiles)), key=lambda i: key(tiles[i]))
    assert [key(tiles[i]) for i in places] == [key(tiles[i]) for i in expected]
    assert places == expected


def test_a_screenful_first_and_the_rest_when_asked(make_run: Any, open_page: Open) -> None:
    tab = open_page(page_of_run(make_run(trials=6, shape=(1, 12, 12)), command="c")).tab
    assert tab.locator(".tile:visible").count() == 24
    assert tab.locator("#show-more").inner_text() == "Show the other 12"
    tab.locator("#show-more").click()
    assert tab.locator(".tile:visible").count() == 36
    assert tab.evaluate("document.activeElement.classList.contains('enlarge')")
    assert not tab.locator("#show-more").is_visible()


def test_the_choice_survives_a_page_that_loads_itself_anew(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tab.locator("#filters select[data-axis=attack]").select_option(label="cpl")
    choose(tab, "sort", "-mse")
    tab.reload()
    assert tab.locator(".tile:visible").count() == 12
    assert tab.locator("#filters select[name=sort]").input_value() == "-mse"


def test_a_click_enlarges_and_the_scrubber_runs_from_noise_to_picture(page: Page, open_page: Open, seen: Seen) -> None:
    tab = open_page(page, height=1000).tab
    choose(tab, "sort", "run")
    tab.locator(".enlarge").nth(2).click()
    tile = gallery_of(page).tiles[2]
    assert tab.locator("#viewer").is_visible()
    assert tab.locator("#viewer-title").inner_text() == tile.label
    where = tab.locator("#viewer-where").inner_text().split(" · ")
    assert where[:3] == ["cpl", "gaussian_noise sigma 0", "trial 2"]
    truth, start = seen(tab.locator("#viewer-truth")), seen(tab.locator("#viewer-start"))
    assert np.array_equal(truth[1::LARGE, 1::LARGE, :1], pixels(tile.truth))
    assert np.array_equal(start[1::LARGE, 1::LARGE, :1], pixels(tile.frames[0]))
    scrub = tab.locator("#viewer-scrub")
    assert scrub.input_value() == scrub.get_attribute("max") == str(len(tile.frames) - 1)
    for frame in (len(tile.frames) - 1, 0, 2):
        scrub.fill(str(frame))
        drawn = seen(tab.locator("#viewer-result"))
        assert np.array_equal(drawn[1::LARGE, 1::LARGE, :1], pixels(tile.frames[frame]))
        assert tab.locator("#viewer-step").inner_text() == f"step {tile.frames_at[frame]} of {tile.steps}"
    baseline = seen(tab.locator("#viewer-nulls .pic").nth(1))
    assert np.array_equal(baseline[1::3, 1::3, :1], pixels(tile.baselines[1].picture))
    assert tab.locator("#viewer-nulls b").all_inner_texts() == ["class mean", "nearest public"]
    tab.locator("#viewer-close").click()
    assert not tab.locator("#viewer").is_visible()


def test_the_trace_falls_and_its_mark_follows_the_scrubber(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tab.locator(".enlarge").first.click()
    path = tab.locator("#viewer-trace .curve").get_attribute("d") or ""
    heights = [float(part.split(" ")[1]) for part in path[1:].split("L")]
    assert len(heights) == 12
    assert heights == sorted(heights)  # a falling mismatch runs down the screen
    assert np.allclose(np.diff(heights), np.diff(heights)[0], atol=0.11)  # powers of ten, evenly spaced on a log scale
    here = tab.locator("#viewer-trace .here")
    tab.locator("#viewer-scrub").fill("0")
    before = float(here.get_attribute("cx") or 0)
    tab.locator("#viewer-scrub").fill("3")
    assert float(here.get_attribute("cx") or 0) > before
    assert "from 1 at step 0" in (tab.locator("#viewer-trace svg").get_attribute("aria-label") or "")


def test_what_else_an_attack_found_has_a_curve_of_its_own(page: Page, open_page: Open) -> None:
    first, *others = gallery_of(page).tiles
    rising = tuple(0.5 + 0.01 * i for i in range(len(first.trace)))
    tiles = (dataclasses.replace(first, learned={"alpha": rising[-1]}, courses={"alpha": rising}), *others)
    tab = open_page(dataclasses.replace(page, gallery=dataclasses.replace(gallery_of(page), tiles=tiles))).tab
    choose(tab, "sort", "run")
    tab.locator(".enlarge").first.click()
    course = tab.locator("#viewer-courses .trace")
    assert course.locator("h3").inner_text().startswith("alpha,")
    path = course.locator(".curve").get_attribute("d") or ""
    heights = [float(part.split(" ")[1]) for part in path[1:].split("L")]
    assert len(heights) == len(rising)
    assert np.allclose(np.diff(heights), np.diff(heights)[0], atol=0.11)  # no log scale: even steps are even
    assert heights[-1] < heights[0]
    facts = tab.locator("#viewer-facts").inner_text().split("\n")
    assert facts[facts.index("alpha") + 1] == "0.610"
    tab.locator("#viewer-after").click()
    assert not tab.locator("#viewer-courses").is_visible()


def test_a_tile_without_trace_start_or_baselines_enlarges_too(make_page: MakePage, open_page: Open) -> None:
    page = make_page(frames=1, tiles=1, attacks=1)
    tile = dataclasses.replace(gallery_of(page).tiles[0], trace=(), trace_at=(), baselines=())
    tab = open_page(dataclasses.replace(page, gallery=dataclasses.replace(gallery_of(page), tiles=(tile,)))).tab
    tab.locator(".enlarge").click()
    assert tab.locator("#viewer-result").is_visible()
    for missing in ("#viewer-trace", "#viewer-nulls", "#viewer-start", "#viewer-scrub"):
        assert not tab.locator(missing).is_visible()


def test_keys_alone_open_step_scrub_and_close(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    choose(tab, "sort", "mse")
    order = sorted(gallery_of(page).tiles, key=lambda t: t.mse)
    tab.locator(".enlarge").first.focus()
    tab.keyboard.press("Enter")
    title = tab.locator("#viewer-where")

    def says(place: int) -> bool:
        tile = order[place]
        sigma = tile.axes["defences.0.sigma"]
        return title.inner_text().startswith(
            f"{tile.axes['attack']} · gaussian_noise sigma {sigma} · trial {tile.number}"
        )

    assert says(0)
    assert tab.locator("#viewer-before").is_disabled()
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        tab.keyboard.press(key)
        assert says(place)
    tab.locator("#viewer-scrub").focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert says(1)  # on the slider, arrows move through the snapshots
    assert tab.locator("#viewer-step").inner_text().startswith("step 1 of ")
    tab.keyboard.press("Escape")
    assert not tab.locator("#viewer").is_visible()
    focused = "document.activeElement.getAttribute('aria-label')"
    assert order[1].label in tab.evaluate(focused)
    assert f"trial {order[1].number}" in tab.evaluate(focused)


def test_stepping_stays_among_what_the_filter_leaves(page: Page, open_page: Open) -> None:
    tab = open_page(page).tab
    tab.locator("#filters select[data-axis=attack]").select_option(label="dlg")
    tab.locator(".enlarge:visible").last.click()
    assert tab.locator("#viewer-after").is_disabled()
    for _ in range(20):
        tab.keyboard.press("ArrowLeft")
        assert tab.locator("#viewer-where").inner_text().startswith("dlg")
    assert tab.locator("#viewer-before").is_disabled()


def test_the_viewer_plays(page: Page, open_page: Open, wait_until: Callable[..., None]) -> None:
    tab = open_page(page).tab
    tab.locator(".enlarge").first.click()
    tab.locator("#viewer-play").click()
    assert tab.locator("#viewer-play").inner_text() == "Pause"
    wait_until(tab, lambda: tab.locator("#viewer-play").inner_text() == "Play")
    scrub = tab.locator("#viewer-scrub")
    assert scrub.input_value() == scrub.get_attribute("max")


def test_the_download_is_every_record_as_csv(page: Page, open_page: Open, tmp_path: Path) -> None:
    tab = open_page(page).tab
    with tab.expect_download() as waiting:
        tab.locator("#download").click()
    assert waiting.value.suggested_filename == "a-sweep.csv"
    waiting.value.save_as(tmp_path / "records.csv")
    assert page.download is not None
    text = (tmp_path / "records.csv").read_bytes().decode()
    assert text == page.download.text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 8 * 4
    tiles = {(t.axes["attack"], t.axes["defences.0.sigma"], t.number): t for t in gallery_of(page).tiles}
    for row in rows:
        if row["baseline"] == "false":
            tile = tiles[row["axis.attack"], f"{float(row['axis.defences.0.sigma']):g}", int(row["number"])]
            assert float(row["mse"]) == tile.mse
            assert row["outcome"] == tile.outcome


def test_the_page_needs_no_script_to_be_read(page: Page, browser: Any, tmp_path: Path) -> None:
    from leakscope.report import write

    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(write(page, tmp_path / "page.html").as_uri())
    assert tab.locator(".tile:visible").count() == 24
    assert tab.locator(".panel svg:visible").count() == 3
    assert not tab.locator("#filters").is_visible()
    assert not tab.locator("#download").is_visible()
    context.close()
