"""Decoded rows of a run: from a scenario on a table to `leakscope show` and the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from leakscope.cli import app
from leakscope.data import load
from leakscope.report.page import render
from leakscope.report.row_tables import row_tables
from leakscope.report.serving import page_of_directory
from leakscope.scenario import scenario_of
from leakscope.scenario.encodings import decoder_of, decoders_of
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.engines import serial

SCENARIO: dict[str, Any] = {
    "name": "rows",
    "data": "breast_cancer",
    "model": {"name": "mlp", "hidden": [8], "activation": "sigmoid"},
    "attacks": ["analytic", {"name": "cpl", "iterations": 1}],
    "trials": 3,
    "baselines": ["class_mean"],
    "precision": {"form": "native"},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on table rows; the analytic attack is exact, one step of L-BFGS is not always."""
    made = tmp_path_factory.mktemp("rows") / "run"
    run_scenario(scenario_of(SCENARIO), made, engine=serial, measure=False)
    return made


def test_an_exact_attack_gives_back_every_row(directory: Path) -> None:
    exact, _, mean = row_tables(Run.open(directory))
    data = load("breast_cancer")
    assert data.encoding is not None
    assert (exact.name, exact.baseline, mean.name, mean.baseline) == ("analytic", False, "class mean", True)
    assert exact.columns == tuple(column.name for column in data.encoding.columns)
    assert exact.scores.row.value == 1
    assert (exact.scores.row.n, exact.scores.values.n) == (3, 90)
    assert mean.scores.row.value == 0
    first, second = exact.examples
    true = data.encoding.decode(data.x_test[:2])
    assert [float(word.replace(",", "")) for word in first.truth] == pytest.approx(list(true[0].values()), rel=1e-4)
    assert [float(word.replace(",", "")) for word in second.guess] == pytest.approx(list(true[1].values()), rel=1e-2)
    assert (first.name, second.name) == ("client 0", "client 1")
    assert all(first.right)


def test_wrong_values_are_marked_and_rates_count_them(directory: Path) -> None:
    (_, guessed, mean) = row_tables(Run.open(directory), examples=3)
    for table in (guessed, mean):
        for place, name in enumerate(table.columns):
            right = [example.right[place] for example in table.examples]
            assert table.scores.columns[name].value == pytest.approx(sum(right) / 3)


def test_the_terminal_shows_them(directory: Path) -> None:
    told = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["show", str(directory)]).output
    assert "rows right" in told
    assert "(class mean)" in told
    assert "mean radius" in told
    assert "1%" in told


def test_the_page_shows_them(directory: Path) -> None:
    page = page_of_directory(directory, command="leakscope report")
    text = render(page)
    assert "The rows, decoded" in text
    assert "worst concave points" in text
    assert 'href="#rows"' in text
    assert len(page.rows) == 3


def test_pictures_have_none(tmp_path: Path) -> None:
    pictures = {
        **SCENARIO,
        "data": "digits",
        "baselines": [],
        "attacks": [{"name": "cpl", "iterations": 1}],
        "trials": 1,
    }
    run_scenario(scenario_of(pictures), tmp_path / "run", engine=serial, measure=False)
    assert row_tables(Run.open(tmp_path / "run")) == ()
    assert "The rows, decoded" not in render(page_of_directory(tmp_path / "run", command="x"))


def test_rows_of_a_batch_are_named_and_a_lost_data_set_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = {**SCENARIO, "data": {"name": "breast_cancer", "samples": 2}, "attacks": [{"name": "cpl", "iterations": 1}]}
    run_scenario(scenario_of({**batch, "baselines": []}), tmp_path / "run", engine=serial, measure=False)
    (table,) = row_tables(Run.open(tmp_path / "run"), examples=3)
    places = [tuple(map(int, re.findall(r"\d+", example.name))) for example in table.examples]  # client, row
    assert places == [(0, 0), (0, 1), (1, 0)]
    assert table.scores.row.n == 6
    monkeypatch.setattr("leakscope.scenario.encodings.decoder_of", lambda name: None)
    assert row_tables(Run.open(tmp_path / "run")) == ()


@pytest.mark.slow
def test_adult_rows_come_back(data_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEAKSCOPE_DATA", str(data_directory))
    adult = {**SCENARIO, "data": "adult", "attacks": ["analytic"], "baselines": [], "trials": 4}
    run_scenario(scenario_of(adult), tmp_path / "run", engine=serial, measure=False)
    run = Run.open(tmp_path / "run")
    (table,) = row_tables(run)
    assert table.scores.row.value == 1
    assert "native-country" in table.columns
    decoder = decoder_of("adult")
    assert decoder is not None
    assert decoder.columns == decoders_of(run.cells())["adult"].columns
    rows = decoder.decode(torch.rand(5, 108) * 3 - 1)
    assert all(isinstance(row["age"], int) and isinstance(row["occupation"], str) for row in rows)


def test_the_terminal_knows_every_set_of_rows() -> None:
    from leakscope.cli.results import TABULAR
    from leakscope.data import SOURCES

    assert set(TABULAR) == {name for name, source in SOURCES.items() if source.kind == "table"}
