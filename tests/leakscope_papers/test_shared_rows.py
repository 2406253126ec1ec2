"""Rows of shared runs: read from their owner's file at the places of the item, and recorded once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import Measured
from leakscope_papers.items import find_part, read_item
from leakscope_papers.measures import Value
from leakscope_papers.naming import places_of
from leakscope_papers.planned import settings_hash, settings_of_cells
from leakscope_papers.records import Recorded, place_of, read_recorded, recorded_file, write_recorded
from leakscope_papers.shared_rows import drop_copies, recorded_rows

OWNER, ITEM, PART = "cpl-table-4", "cpl-figure-2", "lfw_face"


def rows_as_if_run(name: str, *, known: bool = True, trials: int = 20) -> Recorded:
    """Return a row for every cell of LFW, each with its own value; without `known` their settings are not recorded."""
    item = read_item(name)
    part = find_part(item, PART)
    rows: list[Measured] = []
    settings = {settings_hash(each): each for each in settings_of_cells(item, part, "small")}
    for number, (digest, each) in enumerate(settings.items()):
        values = {"asr_content": Value(Estimate(number / 100, 0.0, 1.0, trials, trials))}
        for where, column in places_of(item, part, each):
            mark = digest if known else ""
            rows.append(Measured(where, column, trials, values, {}, mark, "", {}, PART, mark, "", {"device": "cpu"}))
    return Recorded(name, "small", tuple(rows), settings if known else {})


def content(recorded: Recorded | None) -> dict[object, float]:
    """Return place -> measured content."""
    assert recorded is not None
    return {place_of(row): row.values["asr_content"].estimate.value for row in recorded.rows}


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_a_shared_run_are_those_of_its_owner_at_the_places_of_the_item(tmp_path: Path, known: bool) -> None:
    assert recorded_rows(read_item(ITEM), "small", tmp_path) is None
    write_recorded(rows_as_if_run(OWNER, known=known), recorded_file(OWNER, "small", tmp_path))
    assert content(recorded_rows(read_item(ITEM), "small", tmp_path)) == content(rows_as_if_run(ITEM))


def test_an_item_keeps_its_own_rows_unless_only_the_owners_have_settings(tmp_path: Path) -> None:
    own = rows_as_if_run(ITEM, known=False, trials=7)
    write_recorded(own, recorded_file(ITEM, "small", tmp_path))
    for known, trials in ((False, {7}), (True, {20})):
        write_recorded(rows_as_if_run(OWNER, known=known), recorded_file(OWNER, "small", tmp_path))
        recorded = recorded_rows(read_item(ITEM), "small", tmp_path)
        assert recorded is not None
        assert {row.trials for row in recorded.rows} == trials
        assert len(recorded.rows) == len(own.rows)


def test_copies_are_dropped_and_other_rows_stay(tmp_path: Path) -> None:
    write_recorded(rows_as_if_run(OWNER), recorded_file(OWNER, "small", tmp_path))
    path, copies = recorded_file(ITEM, "small", tmp_path), rows_as_if_run(ITEM)
    first = replace(copies.rows[0], values={"asr_content": Value(Estimate(0.99, 0.0, 1.0, 20, 20))})
    write_recorded(replace(copies, rows=(first, *copies.rows[1:])), path)
    assert drop_copies(read_item(ITEM), "small", tmp_path) == len(copies.rows) - 1
    assert [place_of(row) for row in read_recorded(path, ITEM, "small").rows] == [place_of(first)]
    write_recorded(copies, path)
    assert drop_copies(read_item(ITEM), "small", tmp_path) == len(copies.rows)
    assert not path.exists()
    assert len(content(recorded_rows(read_item(ITEM), "small", tmp_path))) == len(copies.rows)
