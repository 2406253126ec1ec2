"""How printed numbers stand: each counts once, at the largest scale and by the reading that fits best."""

from __future__ import annotations

import pytest

from leakscope_papers.hours import hours_of
from leakscope_papers.items import choose_items, read_item
from leakscope_papers.pages.standing import summary_table
from leakscope_papers.registry import papers
from leakscope_papers.results import FULL
from leakscope_papers.scales import parts_at
from leakscope_papers.status import Numbers, RowCount, missing_reason, numbers_of, rows_of, total

TABLES = ("cpl-table-2", "cpl-table-5", "cpl-table-6", "mixing-table-1")


@pytest.mark.parametrize("name", TABLES)
def test_a_part_is_at_most_its_whole(name: str) -> None:
    item = read_item(name)
    numbers = numbers_of(item)
    assert numbers.printed == sum(row.value is not None for row in item.printed.rows)
    assert numbers.printed >= numbers.measured >= max(numbers.large, numbers.alike + numbers.apart)


def test_rows_of_another_network_than_the_printed_one_do_not_count() -> None:
    item = read_item("cpl-table-5")  # CIFAR is recorded on LeNet and printed for ResNet20
    printed = [row for row in item.printed.rows if row.where["data"] in ("mnist", "lfw_face")]
    assert numbers_of(item).measured == len(printed) < len(item.printed.rows)


def test_full_rows_count_as_large_and_rows_of_twenty_do_not() -> None:
    assert numbers_of(read_item("cpl-table-2")).large > 0
    assert numbers_of(read_item("cpl-table-5")).large == 0


def test_papers_add_up() -> None:
    items = [read_item(name) for name in TABLES]
    assert total(items) == sum(map(numbers_of, items), Numbers())
    assert total([]) == Numbers()


def test_numbers_that_another_item_prints_too_count_once() -> None:
    readings = read_item("cpl-ig-readings")
    assert numbers_of(readings).printed == len(readings.printed.rows) > 0
    assert total([readings, read_item("cpl-table-2")]) == numbers_of(read_item("cpl-table-2"))


def test_the_table_has_a_line_for_each_paper() -> None:
    table = summary_table("papers").splitlines()
    assert len(table) == 2 + len(papers())
    assert all(f"(papers/{name}/README.md)" in line for name, line in zip(papers(), table[2:], strict=True))


def test_no_item_keeps_a_row_of_lenet_at_the_place_of_resnet20() -> None:
    for item in choose_items(["cpl"]):
        for part in item.parts:
            model = part.scenario.get("model")
            if part.where.get("model") == "resnet20" and isinstance(model, dict) and not part.same_as:
                assert str(model["name"]).startswith("resnet20"), f"{item.name}/{part.name}"


def test_hours_of_every_part_at_full_scale_are_stored_and_a_shared_run_counts_once() -> None:
    for item in choose_items(["all"]):
        assert all(hours_of(item, [part.name]) > 0 for part in parts_at(item, FULL)), item.name
    figure = read_item("cpl-figure-5")
    shared = [part.name for part in figure.parts if part.same_as == "cpl-table-6/batch"]
    assert shared
    assert hours_of(figure, shared * 2) == hours_of(read_item("cpl-table-6"), ["batch"])


def test_what_is_not_run_at_full_scale_has_its_hours_as_the_reason() -> None:
    item = read_item("cpl-table-9")
    assert rows_of(item, FULL).missing == tuple(part.name for part in parts_at(item, FULL))
    whole = missing_reason(item, {FULL: rows_of(item, FULL)})
    part = missing_reason(item, {FULL: RowCount(1, 9, missing=("mnist",))})
    assert whole != part
    assert f"{hours_of(item, rows_of(item, FULL).missing):.1f} h" in whole
    assert f"{hours_of(item, ['mnist']):.1f} h" in part
    assert missing_reason(item, {"small": rows_of(item, FULL)}) == ""
