"""What an attack found beside the pictures (SME's alpha) stands on tiles, in tables, in the download; nowhere for the others."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.report.test_attack_page import tell

from leakscope.core.record import Cell
from leakscope.core.types import Reconstruction
from leakscope.metrics.interval import estimate_mean
from leakscope.report import Page, cell_table, render, sheet_of
from leakscope.report.attack_page import results_of
from leakscope.report.run_page import page_of_run
from leakscope.report.tables import learned_in
from leakscope.store import Run

MakeRun = Callable[..., Run]
MakeCells = Callable[..., list[Cell]]


@pytest.fixture
def run(make_run: MakeRun, make_cells: MakeCells) -> Run:
    return make_run(make_cells(attacks=("sme", "ig_update"), sigmas=(0.0,)), trials=4)


def test_a_table_has_its_mean_over_trials(run: Run) -> None:
    rows = {row.attack: row for row in cell_table(sheet_of(run)).rows}
    told = [record.learned["alpha"] for record in run.records() if record.learned]
    values = torch.tensor(told)[:, None]
    expected = estimate_mean(values, torch.ones_like(values, dtype=torch.bool))
    found = rows["sme"].learned["alpha"]
    assert (found.value, found.low, found.high, found.n) == pytest.approx(
        (expected.value, expected.low, expected.high, 4)
    )
    assert rows["ig_update"].learned == rows["class mean"].learned == {}
    assert learned_in(list(rows.values())) == ["alpha"]
    assert learned_in([rows["ig_update"]]) == []


def page_of(run: Run) -> Page:
    return page_of_run(run, command="leakscope report run")


def test_a_tile_has_its_own_number_and_the_course_of_it(run: Run) -> None:
    page = page_of(run)
    assert page.gallery is not None
    told = {(record.cell, record.number): record.learned for record in run.records()}
    for tile in page.gallery.tiles:
        assert tile.learned == told[f"{tile.axes['attack']} 0.0", tile.number]
        assert set(tile.courses) == set(tile.learned)
        for course in tile.courses.values():
            assert course == pytest.approx(torch.linspace(0.5, 0.6, 12).tolist())


def test_the_page_says_it_where_there_is_any(run: Run, make_run: MakeRun) -> None:
    text = render(page_of(run))
    assert text.count(">alpha</th>") == len(page_of(run).sections) + 1  # and the table of every setting
    assert "alpha 0.25" in text
    assert "<dt>alpha</dt>" in text
    without = render(page_of(make_run(trials=2)))
    assert ">alpha</th>" not in without
    assert "<dt>alpha</dt>" not in without


def test_the_download_has_a_column_of_it(run: Run) -> None:
    download = page_of(run).download
    assert download is not None
    rows = list(csv.DictReader(io.StringIO(download.text, newline="")))
    told = {record.trial: record.learned.get("alpha") for record in run.records()}
    for row in rows:
        expected = told[row["trial"]]
        assert row["learned.alpha"] == ("" if expected is None else repr(expected))


def test_a_story_tells_it_for_the_attacks_that_learned_it() -> None:
    story = tell()
    first = story.attacks[0]
    made: Reconstruction = replace(
        first.reconstruction, learned={"alpha": torch.full((4,), 0.3)}, courses={"alpha": torch.rand(4, 6)}
    )
    results = results_of(replace(story, attacks=(replace(first, reconstruction=made), *story.attacks[1:])))
    alphas = results.sheet.floats("learned.alpha")
    mine = results.sheet.cell == 0
    assert alphas[mine] == pytest.approx([0.3] * 4)
    assert all(math.isnan(value) for value in alphas[~mine])
    assert torch.equal(results.tensors(1)["course.alpha"], made.courses["alpha"][1])
