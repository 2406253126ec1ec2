"""The page of the papers: nothing but itself, the printed numbers and ours, escaped."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from leakscope.core.record import Cell, SampleScore
from leakscope.metrics.interval import Estimate
from leakscope.store import Landing, Run
from leakscope_papers.claims import UNMEASURED, UNTESTED
from leakscope_papers.comparing import AGREES, TOO_FEW, Column, Measured
from leakscope_papers.headlines import findings_to_show, incomplete
from leakscope_papers.items import find_part, home_of, read_item
from leakscope_papers.measures import CONVERGED, MEASURES, NONE, Value
from leakscope_papers.pages.columns import columns_of
from leakscope_papers.pages.page import render_papers, section_of
from leakscope_papers.pages.table import PUBLISHED, entry_of, grid_of, in_words, reasons_of
from leakscope_papers.results import Result, result_of
from leakscope_papers.scales import parts_at, run_directory, scenario_at
from paper_runs import lay_run, records_of

VOID = {"meta", "link", "img", "br"}


class Balanced(HTMLParser):
    """Reads a page and notes what it opens, what it never closes, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "href") if name in given]
        self.ids += [str(given["id"])] if "id" in given else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def landed(item_name: str, scale: str, out: Path, *, outcome: str = "converged", mse: float = 1e-4) -> None:
    """Lay the runs of an item as if every attack had ended like this; nothing is attacked, and no program runs."""
    item = read_item(item_name)
    for part in parts_at(item, scale):
        if home_of(item, part)[1].program:
            continue
        lay_run(item, part, scale, out, lambda cells: _landing(cells, outcome, mse))


def _landing(cells: list[Cell], outcome: str, mse: float) -> Landing:
    score = SampleScore(
        sample=0, label=1, guess=1, mse=mse, psnr=40.0, ssim=0.99, label_correct=True, recovered=mse < 0.01, finite=True
    )
    records = records_of(cells, (20, 21, 22), score, outcome=outcome)
    n = len(records)
    truth = torch.linspace(0, 1, n * 64).reshape(n, 1, 1, 8, 8)
    tensors = {
        "truth": truth,
        "inputs": truth,
        "start": torch.zeros(n, 1, 1, 8, 8, dtype=torch.uint8),
        "snapshots": torch.zeros(n, 2, 1, 1, 8, 8, dtype=torch.uint8),
        "snapshots_at": torch.tensor([[5, 10]]).expand(n, 2).to(torch.int32).contiguous(),
    }
    return Landing(chunk="g1-c1", plan=1, records=records, tensors=tensors, seconds=0.1)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    out = tmp_path_factory.mktemp("papers")
    landed("cpl-table-8", "small", out)
    found = [result_of(read_item(name), "small", out) for name in ("cpl-table-8", "cpl-figure-12")]
    return [result for result in found if result is not None]


def test_the_page_is_whole_and_needs_nothing_but_itself(results: list[Result]) -> None:
    page = render_papers(results, command="leakscope paper report <here> & there")
    read = Balanced()
    read.feed(page)
    assert read.open == []
    assert all(link.startswith(("#", "data:")) for link in read.loads)
    assert {link.removeprefix("#") for link in read.loads if link.startswith("#")} <= set(read.ids)
    assert len(read.ids) == len(set(read.ids))
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "&lt;here&gt; &amp; there" in page


def test_every_printed_number_and_every_doubt_is_on_the_page(results: list[Result]) -> None:
    printed = read_item("cpl-table-8").printed
    page = render_papers(results, command="c")
    plain = page.replace("&#39;", "'").replace("&quot;", '"').replace("&gt;", ">")
    for row in printed.rows:
        assert row.value is not None
        assert in_words(row.measure, row.value) in plain
    for sentence in (*printed.doubts, *printed.claims):
        assert sentence in plain


def test_places_are_printed_once_with_every_column_below(results: list[Result]) -> None:
    grid = grid_of(results[0])
    item = read_item("cpl-table-8")
    assert [row.who for row in grid.rows].count(PUBLISHED) == 14  # 2 sets x (none, 3 strengths x 2 noises)
    alone = {
        row.place for row in grid.rows if any(row.place) and not row.printed
    }  # LeNet, which the paper does not print
    assert {place[:2] for place in alone} == {("cifar100", "lenet")}
    assert all(any(row.place) for row in grid.rows if row.printed)
    assert len({row.place for row in grid.rows if any(row.place)}) == sum(any(row.place) for row in grid.rows)
    below = {row.who for row in grid.rows if not row.printed}
    readings = {reading.label for reading in item.readings}
    assert {f"every reading, {attacker.label}" for attacker in item.attackers} < below  # without noise
    spoken = {word for who in below for word in who.rpartition(", ")[0].split(" / ")}
    assert spoken == {"every reading", *readings}
    assert all(len(row.entries) == len(grid.measures) for row in grid.rows)
    accuracy = {
        (row.place[1], row.entries[grid.measures.index("accuracy")].verdict) for row in grid.rows if row.printed
    }
    assert accuracy == {("lenet", "not measured here"), ("resnet20", "not run")}


def test_numbers_say_what_they_are_over_and_their_interval(results: list[Result]) -> None:
    grid = grid_of(results[0])
    row = next(row for row in grid.rows if not row.printed)
    steps, convergence = row.entries[0], row.entries[1]
    assert steps.over == f"3 of 3 {CONVERGED}"
    assert (steps.value, row.n) == ("21.0", "3")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", steps.interval)
    assert (convergence.value, convergence.interval) == ("100 %", "43.9 to 100 %")


def test_three_trials_are_too_few_on_the_page_and_are_not_counted(results: list[Result]) -> None:
    grid = grid_of(results[0])
    steps = [row.entries[0] for row in grid.rows if not row.printed and row.entries[0].verdict]
    assert {entry.verdict for entry in steps} == {TOO_FEW}
    page = render_papers(results[:1], command="c")
    assert f'<small class="verdict too">{TOO_FEW}</small>' in page
    assert re.search(rf"\d+ {TOO_FEW}", page)
    assert not any(
        column.get(AGREES) for column in results[0].comparison.counts.values()
    )  # three of three is 44 to 100 %


def test_a_gallery_shows_truth_and_result_of_every_cell(results: list[Result]) -> None:
    section = section_of(results[1])
    assert len(section.strips) == len(results[1].cells)
    assert section.hidden == 0
    assert {strip.words for strip in section.strips} == {("truth", "step 20")}
    assert all(strip.picture.startswith("data:image/png;base64,") and strip.recovered for strip in section.strips)
    assert section_of(results[0]).strips == ()


def test_frames_on_the_way_are_thinned_and_both_ends_kept(results: list[Result]) -> None:
    item = replace(results[1].item, pictures=replace(results[1].item.pictures, frames=2))  # type: ignore[type-var]
    strip = section_of(replace(results[1], item=item)).strips[0]
    assert strip.words[0] == "truth"
    assert strip.words[1] == "step 0"
    assert strip.words[-1] == "step 20"
    assert len(strip.words) == 4


def test_what_is_not_there_is_said(results: list[Result], tmp_path: Path) -> None:
    landed("cpl-figure-7", "small", tmp_path, outcome="exhausted", mse=0.3)
    result = result_of(read_item("cpl-figure-7"), "small", tmp_path)
    assert result is not None
    page = render_papers([replace(result, missing=("other",))], command="c")
    assert "Not run: other." in page
    assert "no trial converged" in page
    assert "does not hold" in page
    assert "see the claims" in page


def test_nothing_finite_has_words() -> None:
    assert in_words("mse", math.nan) == "none"
    item = read_item("cpl-figure-7")
    cell = Measured({"data": "camera"}, Column("", ""), 0, dict.fromkeys(MEASURES, Value(NONE)))
    assert item.measures[0] in cell.values
    assert in_words("asr_label", Estimate(0.5, 0, 1, 2, 2).value) == "50 %"


def test_a_claim_that_nobody_measured_has_one_row(results: list[Result]) -> None:
    table = results[0]
    told = findings_to_show(table.findings)
    assert {finding.claim.says for finding in told} == {claim.says for claim in table.item.claims}
    for claim in table.item.claims:
        own = [finding for finding in told if finding.claim.says == claim.says]
        assert len(own) == 1 or all(finding.word not in (UNMEASURED, UNTESTED) for finding in own)
    nobody = [finding for finding in told if finding.word == UNMEASURED]
    assert nobody  # nobody trained a federation


def test_what_is_there_in_part_is_said(results: list[Result]) -> None:
    said = "lfw_face-gaussian (42 of 280 trials)"
    assert said in incomplete(results[0])
    assert said in render_papers(results, command="c")


def test_reasons_stand_with_the_numbers_they_are_for(results: list[Result]) -> None:
    reasons = reasons_of(results[0])
    assert reasons
    assert all(places for places in reasons.values())
    apart = [v for line in results[0].comparison.lines for v in line.verdicts.values() if v.word == TOO_FEW]
    assert apart
    assert not any(verdict.reason in reasons for verdict in apart if verdict.reason)


def test_intervals_end_where_a_measure_does() -> None:
    low = Value(Estimate(0.01, -0.02, 0.04, 20, 20))
    high = Value(Estimate(0.95, 0.8, 1.1, 20, 20))
    assert entry_of("mse", low).interval == "0 to 0.0400"
    assert entry_of("ssim", high).interval == "0.800 to 1.00"
    assert entry_of("label_minus_content", low).interval.startswith("-0.02")


def test_columns_of_a_table_are_counted_beside_their_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.report.row_tables import row_tables
    from leakscope.sweep import run_scenario
    from leakscope.sweep.engines import serial

    item = read_item("cpl-table-3")
    part = find_part(item, "breast_cancer")
    directory = run_directory(tmp_path, item, part, "smoke")
    run_scenario(scenario_at(item, part, "smoke"), directory, engine=serial, measure=False)
    result = result_of(item, "smoke", tmp_path)
    assert result is not None
    (table,) = columns_of(result)
    tables = row_tables(Run.open(directory))
    assert table.part == "breast_cancer"
    assert table.heads == tuple(f"{t.name}{' (baseline)' * t.baseline}, n = 2" for t in tables)
    assert [name for name, _ in table.rows] == ["values right", "rows right", *tables[0].columns]
    for place, each in enumerate(tables):
        assert table.rows[2][1][place][0] == in_words("asr_content", each.scores.columns[tables[0].columns[0]].value)
    page = render_papers([result], command="c")
    assert "mean radius" in page
    assert "rows right" in page
    assert columns_of(replace(result, runs={})) == ()
    monkeypatch.setattr("leakscope.scenario.encodings.decoder_of", lambda name: None)
    (lost,) = columns_of(result)
    ((said, values),) = lost.rows
    assert (lost.part, lost.heads, values) == ("breast_cancer", (), ())
    assert "cannot be decoded" in said
    assert render_papers([result], command="c").count(said) == 1


def test_pictures_have_no_columns(results: list[Result]) -> None:
    assert all(columns_of(result) == () for result in results)
