"""What is stored of the ATS reproduction: all items, the numbers of table 1, and what they say together."""

from __future__ import annotations

import pytest

from leakscope.attacks.translate import BOUNDS
from leakscope.defences.on_data import OPERATIONS, parse_policies
from leakscope_papers.published import printed_files, read_printed

NAMES = ["ats-table-1", *(f"ats-figure-{n}" for n in range(2, 15))]
NAMED = {"none", "hybrid", "random", "two_of_top_ten", "three_of_top_five"}


def test_every_item_is_there() -> None:
    assert set(NAMES) == {name for name in printed_files() if name.startswith("ats-")}


@pytest.mark.parametrize("name", NAMES)
def test_files_have_the_common_form(name: str) -> None:
    printed = read_printed(name)
    assert printed.paper == "ats"
    assert name == f"ats-{printed.item.replace(' ', '-')}"
    assert printed.claims
    assert printed.doubts
    assert bool(printed.rows) != (printed.numbers == "none printed")
    for row in printed.rows:
        policy = str(row.where["policy"])
        assert policy in NAMED or parse_policies(policy)


def test_table_1_holds_40_numbers_and_the_differences_that_the_caption_marks() -> None:
    rows = read_printed("ats-table-1").rows
    accuracy = {(r.where["data"], r.where["policy"], r.where["by"]): r.value for r in rows if r.measure == "accuracy"}
    psnr = {(r.where["data"], r.where["policy"], r.where["by"]): r.value for r in rows if r.measure == "psnr"}
    assert (len(accuracy), len(psnr), len(rows)) == (16, 16, 40)
    assert accuracy["cifar100", "3-1-7", "reproduction"] == 0.6583
    assert psnr["fashion_mnist", "19-15-45", "reproduction"] == 9.88

    def apart(table: dict[tuple[object, ...], float | None], limit: float) -> set[tuple[object, ...]]:
        pairs = {key[:2] for key in table}
        return {p for p in pairs if abs((table[*p, "original"] or 0) - (table[*p, "reproduction"] or 0)) > limit}

    assert apart(accuracy, 0.04) == {("cifar100", "3-1-7"), ("cifar100", "hybrid"), ("fashion_mnist", "2-43-21")}
    assert apart(psnr, 2.0) == {("cifar100", "none"), ("fashion_mnist", "19-15-45")}


def test_the_bounds_of_figure_4_are_those_of_the_attack() -> None:
    rows = {(r.where["policy"], r.where["end"]): r.value for r in read_printed("ats-figure-4").rows}
    for policy, name in (("3-1-7", "3-1-7"), ("43-18-18", "43-18-18"), ("hybrid", "3-1-7+43-18-18")):
        assert (rows[policy, "x"], rows[policy, "y"]) == BOUNDS[name]


def test_the_ten_best_operations_are_of_the_kinds_the_claims_name() -> None:
    best = [OPERATIONS[int(str(row.where["policy"]))].kind for row in read_printed("ats-figure-5").rows]
    assert best[0] == "translate_x"
    assert {"translate_x", "brightness", "contrast"} <= set(best)
    assert "equalize" not in best
