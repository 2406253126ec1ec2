"""What an attack found beside the pictures is kept by name; runs made before it was kept are read all the same."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakscope.store import Landing, Run, export


def older(run: Run) -> None:
    """Make a run what it was before `learned` was kept."""
    with closing(sqlite3.connect(run.directory / "records.sqlite")) as connection:
        connection.execute("ALTER TABLE record DROP COLUMN learned")
        connection.commit()


def with_alpha(landing: Landing) -> Landing:
    records = tuple(replace(record, learned={"alpha": 0.25 * i}) for i, record in enumerate(landing.records))
    return replace(landing, records=records)


def test_an_older_run_is_read_as_it_is(run: Run) -> None:
    before = [repr(record) for record in run.records()]
    older(run)
    opened = Run.open(run.directory)
    assert [repr(record) for record in opened.records()] == before
    assert "learned.alpha" not in opened.columns()
    assert all(value != value for value in opened.columns(names=["learned.alpha"])["learned.alpha"])
    assert "learned.alpha" not in header(opened)


def test_an_older_run_keeps_what_is_learned_from_now_on(run: Run, sweep: SimpleNamespace) -> None:
    older(run)
    landing = with_alpha(sweep.make_landing(2))
    with run.writing() as writer:
        writer.land(landing)
    found = {record.trial: record.learned for record in run.records() if record.learned}
    assert found == {record.trial: record.learned for record in landing.records}
    assert "learned.alpha" in run.columns()
    assert "learned.alpha" in header(run)


def test_the_numbers_stand_in_a_column_of_the_export(run: Run, sweep: SimpleNamespace) -> None:
    landing = with_alpha(sweep.make_landing(2))
    with run.writing() as writer:
        writer.land(landing)
    path = export(run, "csv", run.directory / "table.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    told = {record.trial: str(record.learned["alpha"]) for record in landing.records}
    assert {row["trial"]: row["learned.alpha"] for row in rows if row["learned.alpha"]} == told
    assert [row["learned.alpha"] for row in rows if row["trial"] not in told] == [""] * (len(rows) - 2 * len(told))


def header(run: Run) -> list[str]:
    path = export(run, "csv", Path(run.directory) / "table.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def test_columns_hold_a_number_for_each_sample_of_its_trial(run: Run, sweep: SimpleNamespace) -> None:
    landing = with_alpha(sweep.make_landing(2))
    with run.writing() as writer:
        writer.land(landing)
    columns = run.columns(names=["trial", "learned.alpha"])
    for record in landing.records:
        mine = columns["learned.alpha"][columns["trial"] == record.trial]
        assert mine.tolist() == [pytest.approx(record.learned["alpha"])] * len(record.samples)
