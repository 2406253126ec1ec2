"""The curve over thresholds: every point is the plain share, it never falls, and at the page's rule it is the page's number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leakscope.core.record import Cell
from leakscope.metrics.recovery import THRESHOLDS
from leakscope.report import sheet_of, tabulate
from leakscope.report.cells import name_of
from leakscope.report.page import render
from leakscope.report.run_page import page_of_run
from leakscope.report.sections import thresholds_of
from leakscope.store import Run

SIGMA = "defences.0.sigma"


def test_every_point_is_the_share_of_samples_under_the_threshold(
    make_run: Callable[..., Run], make_cells: Callable[..., list[Cell]]
) -> None:
    run = make_run(make_cells(attacks=("cpl",)))
    found = thresholds_of(sheet_of(run), lambda name: "noise")
    assert found is not None
    alone, both = found.panels
    cells = {cell.id: cell for cell in run.cells()}
    for line in alone.lines:
        own = [
            sample
            for record in run.records()
            for sample in record.samples
            if line.name.split(",")[0] == name_of(cells[record.cell])
            and (cells[record.cell].baseline or line.name.endswith(f"noise {cells[record.cell].axes[SIGMA]:g}"))
        ]
        assert own
        for most, share in zip(line.at, line.values, strict=True):
            hits = sum(sample.mse <= most and sample.finite for sample in own)
            assert share.value == pytest.approx(hits / len(own))
            assert share.n == len(own)
    assert {line.name for line in alone.lines if line.baseline} == {"class mean", "nearest public"}
    for panel in (alone, both):
        for line in panel.lines:
            assert line.at == THRESHOLDS
            values = [value.value for value in line.values]
            assert values == sorted(values)


def test_at_the_rule_of_the_page_it_is_the_content_of_the_table(
    make_run: Callable[..., Run], make_cells: Callable[..., list[Cell]]
) -> None:
    cells = make_cells(attacks=("cpl", "dlg"))
    sheet = sheet_of(make_run(cells))
    found = thresholds_of(sheet, lambda name: "noise")
    assert found is not None
    rows = tabulate(sheet, (SIGMA,), [cell for cell in cells if not cell.baseline]).rows
    at = {line.name: line.values[THRESHOLDS.index(1e-2)] for line in found.panels[1].lines}
    for row in rows:
        name = row.attack if row.baseline else f"{row.attack}, noise {row.values[SIGMA]:g}"
        assert at[name] == row.content


def test_the_page_of_a_run_shows_it(make_run: Callable[..., Run], make_cells: Callable[..., list[Cell]]) -> None:
    page = render(page_of_run(make_run(make_cells()), command="leakscope report run"))
    assert 'id="thresholds"' in page
    assert page.count("MSE and SSIM") > 0
