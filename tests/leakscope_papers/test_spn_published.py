"""The SPN paper's numbers as stored: counts, what its own tables say of its claims, where they disagree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from leakscope_papers.published import printed_files, read_printed
from leakscope_papers.records import read_recorded, recorded_file

FIGURES = (1, 4, 5, 6, 7, 9, 12, 16, 17, 20, 21, 24, 25, 26, 27, 28, 29)
ITEMS = [f"spn-table-{n}" for n in (1, 7, 8, 9, 10, 11)] + [f"spn-figure-{n}" for n in FIGURES]
ATTACKS, BATCHES = ("reconstruction", "membership", "tracing"), (1, 4, 8)


def caps(name: str, data: str) -> dict[tuple[str, int, str], float]:
    """Return CAP by attack, batch and defence (with its share)."""
    rows = [row for row in read_printed(name).rows if row.where["data"] == data]
    return {
        (row.where["attack"], row.where["batch"], f"{row.where['defence']}{row.where.get('share', '')}"): row.value
        for row in rows
    }


def test_every_item_of_the_issue_is_there() -> None:
    assert set(ITEMS) == {name for name in printed_files() if name.startswith("spn-")}
    assert all(read_printed(name).paper == "spn" for name in ITEMS)


@pytest.mark.parametrize("name", ITEMS)
def test_a_file_without_numbers_says_so(name: str) -> None:
    printed = read_printed(name)
    assert (printed.numbers == "none printed") == (not printed.rows)
    assert printed.claims


@pytest.mark.parametrize(
    ("name", "data", "number"),
    [
        ("spn-table-1", "cifar10", 36),
        ("spn-table-1", "cifar100", 36),
        ("spn-table-7", "mnist", 36),
        ("spn-table-10", "svhn", 36),
    ],
)
def test_a_table_of_caps_has_every_attack_batch_and_defence_once(name: str, data: str, number: int) -> None:
    found = caps(name, data)
    wanted = itertools.product(ATTACKS, BATCHES, ("dp", "ppdl0.05", "ppdl0.3", "spn"))
    assert set(found) == set(wanted)
    assert len(found) == number


def test_tables_1_and_8_9_are_both_stored_where_they_disagree() -> None:
    apart = {}
    for name, data in (("spn-table-8", "cifar10"), ("spn-table-9", "cifar100")):
        one, other = caps("spn-table-1", data), caps(name, data)
        apart |= {(data, *key): (one[key], other[key]) for key in one if one[key] != other[key]}
    assert apart == {
        ("cifar10", "membership", 8, "spn"): (0.55, 0.56),
        ("cifar10", "tracing", 1, "spn"): (0.60, 0.61),
        ("cifar10", "tracing", 4, "spn"): (0.62, 0.63),
        ("cifar100", "membership", 1, "dp"): (0.01, 0.03),
        ("cifar100", "reconstruction", 1, "spn"): (0.35, 0.37),
        ("cifar100", "reconstruction", 4, "spn"): (0.35, 0.36),
        ("cifar100", "reconstruction", 8, "spn"): (0.36, 0.35),
    }


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_claims_of_table_1_are_in_its_numbers(data: str) -> None:
    found = caps("spn-table-1", data)
    for attack, batch in itertools.product(ATTACKS, BATCHES):
        others = [found[attack, batch, defence] for defence in ("dp", "ppdl0.05", "ppdl0.3")]
        assert found[attack, batch, "spn"] > max(others)
    for defence in ("dp", "ppdl0.05", "ppdl0.3", "spn"):
        rising = [found["membership", batch, defence] for batch in BATCHES]
        assert rising == sorted(rising)


def test_table_11_has_every_setting_on_every_set() -> None:
    rows = read_printed("spn-table-11").rows
    assert len(rows) == 23 * 4
    assert {row.where["data"] for row in rows} == {"mnist", "cifar10", "cifar100", "svhn"}
    found = {
        (
            r.where["data"],
            r.where["defence"],
            r.where.get("share"),
            r.where.get("sigma"),
            r.where.get("alpha2"),
        ): r.value
        for r in rows
    }
    assert found["cifar10", "dp", None, 0.5, None] == 0.4205
    assert found["svhn", "ppdl", 0.3, 0.1, None] == 0.8424
    assert found["cifar100", "spn", None, None, 0.01] == 0.3843
    assert found["cifar10", "spn", None, None, 0.0001] - found["cifar10", "spn", None, None, 0.5] < 0.06


def test_unpaired_labels_explain_the_printed_membership_and_paired_ones_do_not() -> None:
    """Mean accuracy of table 11 times (1 - 1/B)(1 - 1/C) is right labels in any order; measured is our paired reading."""
    accuracies: dict[tuple[object, ...], list[float]] = {}
    for row in read_printed("spn-table-11").rows:
        accuracies.setdefault((row.where["data"], row.where["defence"], row.where.get("share")), []).append(row.value)
    errors: dict[str, list[float]] = {"unpaired": [], "paired": []}
    for name in ("spn-table-7", "spn-table-8", "spn-table-9", "spn-table-10"):
        printed = {
            _cell(row.where): row.value for row in read_printed(name).rows if row.where["attack"] == "membership"
        }
        for (data, defence, share, batch), value in printed.items():
            if batch > 1:
                rate, classes = accuracies[data, defence, share], 100 if data == "cifar100" else 10
                right = sum(rate) / len(rate) * (1 - 1 / batch) * (1 - 1 / classes)
                errors["unpaired"].append(abs(right - value))
        for row in read_recorded(recorded_file(name, "small"), name, "small").rows:
            column = (row.column.reading, row.column.attacker)
            several = row.where["attack"] == "membership" and row.where["batch"] > 1
            if several and column == ("accuracies of table 11", "does not know"):
                errors["paired"].append(abs(row.values["cap"].estimate.value - printed[_cell(row.where)]))
    assert {kind: (len(each), round(sum(each) / len(each), 3)) for kind, each in errors.items()} == {
        "unpaired": (32, 0.022),
        "paired": (32, 0.165),
    }


def _cell(where: Mapping[str, Any]) -> tuple[Any, ...]:
    return where["data"], where["defence"], where.get("share"), where["batch"]
