"""Every table and figure is an item; its scenarios are valid at every scale and its cells find the printed numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import leakscope_papers as papers
from leakscope.core.errors import InputError, UnknownNameError
from leakscope.data import SOURCES
from leakscope.scenario.text import read_text
from leakscope.sweep.driver import check
from leakscope.sweep.trials import unique_cells
from leakscope_papers.comparing import Column
from leakscope_papers.items import (
    Item,
    Part,
    choose_items,
    find_part,
    home_of,
    item_files,
    read_item,
)
from leakscope_papers.measures import MEASURES
from leakscope_papers.naming import belongs, meets, name_cell
from leakscope_papers.published import printed_files
from leakscope_papers.registry import OURS
from leakscope_papers.scales import (
    SCALES,
    check_data,
    data_sets,
    parts_at,
    rows_at,
    scenario_at,
    settings_at,
)

NAMES = tuple(item_files())
LARGE = ("cpl-figure-6", "cpl-figure-7", "cpl-readings")  # networks that take seconds to build
CPL = {f"cpl-table-{n}" for n in range(1, 10)} | {f"cpl-figure-{n}" for n in range(2, 14)}
ONE_PICTURE = {"cpl-figure-7"}
# Printed places that no cell of ours has, and why.
WITHOUT = {
    "cpl-figure-6": {"end": ["low", "high"]},  # a ratio of two cells, tested by a claim
    "mixing-figure-2": {"steady": "close"},  # a share of the points of a cell, tested by a claim
}


def settings_of_cells(item: Item, part: Part, scale: str) -> list[Mapping[str, object]]:
    """Return the settings of every cell of a part; those of a program's row are its place and the program's."""
    if home_of(item, part)[1].program:
        own = settings_at(item, part, scale)
        return [{"settings": own, **place} for place in rows_at(item, part, scale).values()]
    return [cell.settings for cell in scenario_at(item, part, scale).cells()]


def scenario_parts(item: Item, scale: str) -> list[Part]:
    """Return the parts that are scenarios."""
    return [part for part in parts_at(item, scale) if not home_of(item, part)[1].program]


def places(item: Item, scale: str) -> list[tuple[dict[str, Any], Column]]:
    """Return where every cell of an item stands at a scale, found without running anything."""
    found = []
    for part in parts_at(item, scale):
        for settings in settings_of_cells(item, part, scale):
            for reading in item.readings:
                where = name_cell(item, part, reading, settings)
                if where is None or (reading.parts and part.name not in reading.parts):
                    continue
                for attacker in item.attackers:
                    if belongs(settings, reading, attacker):
                        caps = item.caps.at if item.caps else (None,)
                        found += [
                            (
                                {**where, **({item.caps.axis: cap} if item.caps else {})},
                                Column(reading.label, attacker.label),
                            )
                            for cap in caps
                        ]
    return found


def test_every_item_of_these_papers_is_there_and_has_its_published_file() -> None:
    assert {f"sme-table-{n}" for n in range(1, 8)} | {f"sme-figure-{n}" for n in range(3, 15)} <= set(NAMES)
    assert CPL | {"mixing-table-1", "mixing-figure-1", "mixing-figure-2"} <= set(NAMES)
    assert set(NAMES) <= set(printed_files())


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_claim_is_there_to_the_letter_and_can_be_tested_or_says_why_not(name: str) -> None:
    item = read_item(name)
    programs = any(home_of(item, part)[1].program for part in item.parts)
    known = {*MEASURES, *(item.measures if programs else ())}  # what a program measures has names of its own
    assert sorted(claim.says for claim in item.claims) == sorted(item.printed.claims)
    for claim in item.claims:
        assert bool(claim.checks) != bool(claim.cannot), claim.says
        for test in claim.checks:
            assert test.measure in {*known, *item.absent}, test.measure
    assert set(item.measures) <= known
    assert {row.measure for row in item.printed.rows} <= {*known, *item.absent}
    assert {gain.measure for gain in item.gains.values()} <= known


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_no_two_cells_stand_in_the_same_place(name: str, scale: str) -> None:
    found = places(read_item(name), scale)
    assert found, "an item has something at every scale"
    twice = Counter((repr(sorted(map(str, where.items()))), column) for where, column in found)
    assert max(twice.values()) == 1, twice.most_common(1)


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_number_has_a_cell_at_full_scale_or_a_reason(name: str) -> None:
    item = read_item(name)
    wheres = [where for where, _ in places(item, "full")]
    for row in item.printed.rows:
        excused = name in WITHOUT and meets(dict(row.where), WITHOUT[name])  # type: ignore[arg-type]
        found = any(meets(where, dict(row.where)) for where in wheres)
        assert found != excused or row.measure in item.absent, row.where


@pytest.mark.parametrize("name", NAMES)
def test_smoke_is_tiny_and_needs_no_data_but_the_bundled(name: str) -> None:
    item = read_item(name)
    assert item.scales["smoke"].stand_in
    for part in parts_at(item, "smoke"):
        settings = settings_at(item, part, "smoke")
        assert all(SOURCES[data].bundled for data in data_sets(settings)), data_sets(settings)
        assert home_of(item, part)[1].program or settings["trials"] <= 4


@pytest.mark.parametrize("name", sorted(set(NAMES) - ONE_PICTURE))
def test_small_has_twenty_images_a_cell_and_full_no_fewer(name: str) -> None:
    item = read_item(name)
    assert not item.scales["small"].stand_in
    for part in scenario_parts(item, "small"):
        sizes = []
        for scale in ("small", "full"):
            told: dict[str, Any] = dict(next(scenario_at(item, part, scale).cells()).settings)
            sizes.append(told["trials"] * len(told["seeds"]) * told["data"]["samples"])
        assert 20 <= sizes[0] <= sizes[1]


@pytest.mark.parametrize("name", NAMES)
def test_items_on_a_defence_show_both_attackers(name: str) -> None:
    item = read_item(name)
    for scale in SCALES:
        told: dict[str, set[bool]] = {}
        for part in scenario_parts(item, scale):
            for cell in scenario_at(item, part, scale).cells():
                if cell.settings["defences"]:
                    told.setdefault(part.name, set()).add(cell.settings["knowledge"]["defence"])  # type: ignore[index]
        assert all(both == {False, True} for both in told.values())
        assert not told or len(item.attackers) == 2


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in NAMES],
)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_the_real_sets_are_large_enough_and_the_networks_fit_them(name: str, scale: str) -> None:
    item = read_item(name)
    check_data([item], scale)
    for part in scenario_parts(item, scale):
        scenario = scenario_at(item, part, scale)
        check(scenario, unique_cells(scenario.cells()))


def test_unknown_names_list_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"'cpl-tabel-2'.*'cpl-table-2'"):
        choose_items(["cpl-tabel-2"])
    with pytest.raises(UnknownNameError, match="mnist"):
        find_part(read_item("cpl-table-2"), "mnits")
    assert [item.name for item in choose_items(["all"])] == list(NAMES)
    mixing = [item.name for item in choose_items(["mixing", "mixing-table-1"])]
    assert mixing == ["mixing-figure-1", "mixing-figure-2", "mixing-table-1"]
    assert {name.partition("-")[0] for name in NAMES} == set(OURS)


def test_a_shared_part_is_that_of_its_owner() -> None:
    item = read_item("cpl-table-5")
    owner, part = home_of(item, find_part(item, "mnist"))
    assert (owner.name, part.name) == ("cpl-figure-11", "mnist")
    assert settings_at(item, find_part(item, "mnist"), "small") == settings_at(owner, part, "small")


def test_a_part_may_not_share_a_shared_part() -> None:
    item = read_item("cpl-table-5")
    part = find_part(item, "mnist")
    wrong = type(part)(name="mnist", same_as="cpl-table-5/mnist")
    with pytest.raises(InputError, match="cpl-table-5/mnist"):
        home_of(item, wrong)


@pytest.mark.slow
def test_the_quick_reader_of_our_own_files_reads_what_the_careful_one_does() -> None:
    files = sorted(Path(papers.__path__[0]).rglob("*.yaml"))
    assert len(files) > 100
    for path in files:
        text = path.read_text("utf-8")
        careful, quick = read_text(text), read_text(text, own=True)
        assert careful.data == quick.data, path
        assert careful.lines == quick.lines, path
