"""Measured rows as JSON: written from runs and read back the same, and never under a caption they do not belong to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import Measured
from leakscope_papers.headlines import incomplete
from leakscope_papers.items import choose_items, find_part, read_item
from leakscope_papers.measures import CONVERGED, Value
from leakscope_papers.naming import places_of
from leakscope_papers.pages.table import grid_of
from leakscope_papers.planned import planned_cells, settings_hash, settings_of_cells, what_differs
from leakscope_papers.records import (
    Recorded,
    changed_settings,
    changes,
    read_recorded,
    recorded_file,
    with_rows_of,
    write_recorded,
)
from leakscope_papers.results import Result, recorded_result, results_in

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from("abcd"), plain, max_size=4)


def recorded_rows(name: str = "cpl-table-8", part: str = "lfw_face-gaussian") -> Recorded:
    """Return rows as if every cell of a part had been measured, at the item's present settings."""
    item = read_item(name)
    chosen = find_part(item, part)
    rows: list[Measured] = []
    settings = {settings_hash(each): each for each in settings_of_cells(item, chosen, "small")}
    for digest, each in settings.items():
        for where, column in places_of(item, chosen, each):
            values = {measure: Value(Estimate(0.5, 0.25, 0.75, 20, 20)) for measure in item.measures}
            values["mse"] = Value(Estimate(1e-3 / 7, 1e-5, 1e-3, 17, 17), "17 of 20 trials that converged")
            source = {"device": "cpu", "date": "2026-01-01", "torch": "2"}
            rows.append(
                Measured(where, column, 20, values, {"converged": 17}, digest, "", {}, part, digest, "", source)
            )
    return Recorded(name, "small", tuple(rows), settings)


def result_from(recorded: Recorded, folder: Path) -> Result:
    """Return the result of recorded rows, written and read."""
    path = folder / f"{recorded.item}.small.json"
    write_recorded(recorded, path)
    result = recorded_result(read_item(recorded.item), "small", folder)
    assert result is not None
    return result


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    recorded = recorded_rows()
    back = result_from(recorded, tmp_path).recorded
    assert back is not None
    assert [(row.where, row.column, row.outcomes, row.values["asr_content"]) for row in back.rows] == [
        (row.where, row.column, row.outcomes, row.values["asr_content"]) for row in recorded.rows
    ]
    assert {row.values["mse"].over for row in back.rows} == {f"17 of 20 {CONVERGED}"}
    assert {row.values["mse"].estimate for row in back.rows} == {Estimate(0.000142857, 1e-5, 1e-3, 17, 17)}


def test_a_recorded_command_names_no_place_of_the_machine_that_ran_it(tmp_path: Path) -> None:
    recorded = recorded_rows()
    ran = "leakscope paper run cpl-table-8 --out '/home/me/my runs' --only mlp --data femnist=/data/femnist --workers 2"
    rows = tuple(replace(row, source={**row.source, "command": ran}) for row in recorded.rows)
    write_recorded(replace(recorded, rows=rows), tmp_path / "rows.json")
    (row, *_) = read_recorded(tmp_path / "rows.json", "cpl-table-8", "small").rows
    assert row.source["command"] == "leakscope paper run cpl-table-8 --only mlp --workers 2"


def test_a_file_holds_settings_once_and_in_full(tmp_path: Path) -> None:
    recorded = recorded_rows()
    path = tmp_path / "x.json"
    write_recorded(recorded, path)
    data = json.loads(path.read_text("utf-8"))
    assert len(data["settings"]) == len({row["settings"] for row in data["rows"]})
    back = read_recorded(path, "cpl-table-8", "small")
    for digest, settings in back.settings.items():
        assert settings_hash(settings) == digest
        assert settings == json.loads(json.dumps(recorded.settings[digest]))
    assert all(row.source["device"] == "cpu" and row.source["date"] for row in back.rows)


@given(old=mappings, new=mappings)
def test_changes_make_new_settings_of_old_ones(old: dict[str, object], new: dict[str, object]) -> None:
    assert changed_settings(old, json.loads(json.dumps(changes(old, new)))) == new


def test_a_row_of_other_settings_never_stands_under_the_present_caption(tmp_path: Path) -> None:
    recorded = recorded_rows()
    first = recorded.rows[0]
    settings = json.loads(json.dumps(recorded.settings[first.settings]))
    settings["attack"]["iterations"] = 7
    digest = settings_hash(settings)
    rows = tuple(replace(row, settings=digest) if row.settings == first.settings else row for row in recorded.rows)
    changed = replace(recorded, rows=rows, settings={**recorded.settings, digest: settings})
    result = result_from(changed, tmp_path)
    assert len(result.earlier) == sum(row.settings == first.settings for row in recorded.rows)
    assert {row.earlier for row in result.earlier} == {"attack.iterations 7, now 300"}
    assert len(result.cells) + len(result.earlier) == len(recorded.rows)
    assert result.earlier[0].earlier in incomplete(result)


def test_a_row_without_settings_says_so(tmp_path: Path) -> None:
    recorded = recorded_rows()
    some = tuple(replace(row, settings="", cell="") if not n else row for n, row in enumerate(recorded.rows))
    result = result_from(replace(recorded, rows=some), tmp_path)
    assert f"1 of {len(some)} rows: " in incomplete(result)
    assert sum("settings not recorded" in row.who for row in grid_of(result).rows) == 1


def test_two_rows_at_one_place_are_an_error(tmp_path: Path) -> None:
    recorded = recorded_rows()
    double = replace(recorded.rows[0], cell="another")
    with pytest.raises(InputError, match="two measured rows"):
        result_from(replace(recorded, rows=(*recorded.rows, double)), tmp_path)


def test_rows_of_parts_that_were_not_run_again_stay(tmp_path: Path) -> None:
    recorded = recorded_rows()
    path = tmp_path / "x.json"
    other = replace(recorded.rows[0], where={**recorded.rows[0].where, "data": "other"}, part="other")
    write_recorded(replace(recorded, rows=(other, replace(recorded.rows[1], settings=""))), path)
    joined = with_rows_of(path, recorded)
    assert len(joined.rows) == len(recorded.rows) + 2
    other_part, same_part = joined.rows[-2:]
    assert other_part.earlier == ""
    assert same_part.earlier.endswith("settings not recorded")


def test_of_two_rows_with_the_same_settings_the_one_of_more_trials_stays(tmp_path: Path) -> None:
    recorded = recorded_rows()
    path = tmp_path / "x.json"
    large = replace(recorded.rows[0], trials=1000)
    small = replace(recorded.rows[1], trials=5)
    write_recorded(replace(recorded, rows=(large, small)), path)
    joined = with_rows_of(path, recorded)
    assert len(joined.rows) == len(recorded.rows)
    assert sorted(row.trials for row in joined.rows) == [20] * (len(recorded.rows) - 1) + [1000]


def test_what_differs_names_the_nearest_settings() -> None:
    present = {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3, "z": 4}}
    assert what_differs({"x": 1, "y": 5}, present) == "y 5, now 2"
    assert "no longer plans" in what_differs({"x": 1}, {})


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "no json", '{"format": 1, "item": "cpl-table-8", "scale": "small"}'],
)
def test_a_file_that_holds_no_rows_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.json .*recorded rows"):
        read_recorded(path, "cpl-table-8", "small")


@pytest.mark.slow
def test_every_recorded_file_is_of_an_item_and_its_rows_stand_where_the_item_plans_them() -> None:
    seen = 0
    for item in choose_items(["all"]):
        for scale in item.scales:
            seen += recorded_file(item.name, scale).is_file()
            result = recorded_result(item, scale)
            if result is not None:
                planned = {(repr(sorted(map(repr, c.where.items()))), c.column) for c in planned_cells(item, scale)}
                for row in result.cells:
                    assert (repr(sorted(map(repr, row.where.items()))), row.column) in planned, (item.name, row.where)
    files = list(recorded_file("cpl-table-1", "small").parents[2].glob("*/results/*.json"))
    assert seen == len(files) > 60


def test_results_are_read_from_recorded_files_where_there_is_no_run(tmp_path: Path) -> None:
    recorded = recorded_rows()
    write_recorded(recorded, recorded_file("cpl-table-8", "small", tmp_path / "data"))
    (result,) = results_in(tmp_path / "data", None, ["cpl-table-8"])
    assert len(result.cells) == len(recorded.rows)
    assert results_in(None, "small", ["sme-table-2"])[0].cells
