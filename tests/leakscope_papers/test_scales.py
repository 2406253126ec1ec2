"""What a scale changes, and what it needs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.errors import InputError, UnknownNameError
from leakscope_papers.items import choose_items, read_item
from leakscope_papers.planned import present_hashes, settings_hash
from leakscope_papers.scales import (
    FEMNIST,
    STAND_INS,
    check_data,
    data_sets,
    merged,
    note_of,
    parts_at,
    run_directory,
    scale_of,
    scenario_at,
    settings_at,
)

plain = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from("abc"), plain, max_size=3)


@given(settings=mappings, change=mappings)
def test_a_change_is_there_afterwards_and_what_it_does_not_name_stays(settings: Any, change: Any) -> None:
    before = copy.deepcopy((settings, change))
    made = merged(settings, change)
    assert (settings, change) == before
    assert merged(made, change) == made
    assert set(made) == {*settings, *change}
    for key in settings:
        if key not in change:
            assert made[key] == settings[key]


@given(settings=mappings)
def test_null_takes_a_key_away_and_nothing_changes_nothing(settings: Any) -> None:
    assert merged(settings, {}) == settings
    assert merged(settings, dict.fromkeys(settings)) == {}


def test_data_sets_are_those_of_the_field_or_of_the_axis_in_its_place() -> None:
    assert data_sets({"data": "mnist"}) == ["mnist"]
    assert data_sets({"data": {"name": "mnist"}, "grid": {"data.name": ["cifar10", "digits"]}}) == ["cifar10", "digits"]
    assert data_sets({"data": "mnist", "zip": [{"data": [{"name": "svhn"}]}]}) == ["svhn"]


def test_missing_data_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path))
    monkeypatch.setenv("LEAKSCOPE_CACHE", str(tmp_path))
    item = read_item("cpl-table-2")
    with pytest.raises(InputError) as raised:
        check_data([item], "small")
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"{item.name} at scale small: ")
    assert "data fetch mnist" in lines[0]
    with pytest.raises(InputError) as raised:
        check_data([item], "small", ["mnist"])
    assert len(str(raised.value).splitlines()) == 1
    check_data([item], "smoke")


def test_scales_have_near_names_too() -> None:
    with pytest.raises(UnknownNameError, match=r"'smal'.*'small'"):
        scale_of(read_item("cpl-table-2"), "smal")


def test_a_shared_run_lies_with_its_owner_and_leaves_with_it() -> None:
    item = read_item("cpl-figure-9")
    mnist = next(part for part in item.parts if part.name == "mnist")
    assert run_directory(Path("out"), item, mnist, "small") == Path("out/cpl-table-7/small/mnist")
    assert [part.name for part in parts_at(item, "smoke")] == ["mnist"]
    assert settings_at(item, mnist, "smoke")["data"]["name"] == "digits"


def test_a_users_own_femnist_takes_the_place_of_its_stand_in_in_every_item() -> None:
    swapped = 0
    for item in choose_items(["all"]):
        for part in parts_at(item, "full"):
            before, after = (settings_at(item, part, "full", own=own) for own in (False, True))
            if set(data_sets(before)) & STAND_INS:
                swapped += 1
                assert data_sets(after) == [FEMNIST]
                assert note_of(part, after) != part.note
            else:
                assert after == before
    assert swapped > 20


def test_clients_of_the_own_copy_are_writers_and_its_rows_are_not_of_an_earlier_setting() -> None:
    item = read_item("sme-table-2")
    part = item.parts[0]
    (cell, *_) = scenario_at(item, part, "small", own=True).cells()
    assert cell.settings["data"]["order"] == "writers"
    assert settings_hash(cell.settings) in present_hashes(item, part.name, "small")
    trained = read_item("sme-table-6").parts[0]
    settings = settings_at(read_item("sme-table-6"), trained, "full", own=True)
    assert settings["federation"]["partition"] == {"name": "by_writer"}  # type: ignore[index]
    assert settings_hash(settings) in present_hashes(read_item("sme-table-6"), trained.name, "full")
