"""A claim holds only if every case it speaks of was measured; a printed number belongs to one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope_papers.claims import FAILS, HOLDS, SO_FAR, examine, unmeasured_cells
from leakscope_papers.comparing import Measured, compare
from leakscope_papers.items import Check, Claim, read_item
from leakscope_papers.measures import Value
from leakscope_papers.naming import Column
from leakscope_papers.planned import PlannedCell
from leakscope_papers.published import PrintedRow
from leakscope_papers.results import results_in

COLUMN = Column("", "")


def cell(value: float, **where: str | int) -> Measured:
    return Measured(where, COLUMN, 8, {"psnr": Value(Estimate(value, value - 0.1, value + 0.1, 8, 8))}, part="p")


PLAN = [PlannedCell("p", {"attack": attack, "n": n}, COLUMN) for attack in ("sme", "ig", "dlfa") for n in (50, 100)]
ABOVE = Claim(
    says="sme is above ig and dlfa",
    checks=(Check(measure="psnr", of={"attack": "sme"}, than={"attack": ["ig", "dlfa"]}, must_be="higher"),),
)


def test_a_claim_that_is_measured_in_part_says_of_how_many_cases() -> None:
    cells = [cell(20, attack="sme", n=50), cell(10, attack="ig", n=50)]
    finding = examine(ABOVE, cells, COLUMN, unmeasured_cells(PLAN, cells))
    assert (finding.word, len(finding.cases), finding.planned) == (SO_FAR, 1, 4)
    assert "1 of 4 cases" in finding.sentence


def test_a_claim_whose_cases_are_all_measured_holds() -> None:
    cells = [cell({"sme": 20.0, "ig": 10.0, "dlfa": 15.0}[str(p.where["attack"])], **dict(p.where)) for p in PLAN]  # type: ignore[arg-type]
    finding = examine(ABOVE, cells, COLUMN, unmeasured_cells(PLAN, cells))
    assert (finding.word, finding.planned, finding.whole) == (HOLDS, 4, True)


def test_a_claim_that_fails_in_part_fails_whatever_was_not_measured() -> None:
    cells = [cell(5, attack="sme", n=50), cell(10, attack="ig", n=50)]
    finding = examine(ABOVE, cells, COLUMN, unmeasured_cells(PLAN, cells))
    assert (finding.word, len(finding.cases), finding.planned) == (FAILS, 1, 4)
    assert "0 of 1 cases" in finding.sentence


def test_a_measure_that_no_cell_of_the_part_has_is_not_expected_of_the_others() -> None:
    cells = [cell(20, attack="sme", n=50)]
    assert [set(each.values) for each in unmeasured_cells(PLAN, cells)] == [{"psnr"}] * 5


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("sme-figure-6", "sme has a higher PSNR than ig and dlfa at every N from 50 to 200"),
        ("sme-figure-6", "the PSNR of every attack falls with N"),
        ("sme-table-2", "sme has a higher PSNR than ig in every row"),
    ],
)
def test_recorded_claims_that_are_not_whole_say_so(item: str, says: str) -> None:
    (result,) = results_in(None, "small", [item])
    (finding,) = [each for each in result.findings if each.claim.says == says]
    assert finding.word == SO_FAR
    assert finding.planned > len(finding.cases)


def test_bounds_of_one_number_are_one_case() -> None:
    checks = tuple(
        Check(measure="psnr", of={"attack": "sme"}, than={"attack": "ig"}, must_be=word, times=times)
        for word, times in (("at_least", 1.5), ("at_most", 3.0))
    )
    cells = [cell(20, attack="sme", n=50), cell(10, attack="ig", n=50)]
    assert len(examine(Claim(says="1.5 to 3 times", checks=checks), cells, COLUMN).cases) == 1


def test_the_printed_number_of_a_place_is_the_one_that_names_it() -> None:
    item = read_item("mixing-figure-2")
    lines = compare(item, []).lines
    close = next(line for line in lines if line.where.get("steady") == "close")
    assert close.printed["steady_share"].value == 0.04
    assert all(line.printed["steady_share"].value == 0.96 for line in lines if "steady" not in line.where)


def test_two_printed_numbers_for_one_place_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    item = read_item("cpl-table-2")
    row = item.printed.rows[0]
    other = PrintedRow(where=row.where, measure=row.measure, value=0.125)
    printed = replace(item.printed, rows=(*item.printed.rows, other))
    monkeypatch.setattr("leakscope_papers.items.read_printed", lambda _: printed)
    with pytest.raises(InputError, match=rf"{row.measure} .*0\.125"):
        compare(item, [])


def test_claims_are_tested_on_the_number_that_is_compared_with_print() -> None:
    for check in (check for claim in read_item("spn-table-7").claims for check in claim.checks):
        assert check.measure in read_item("spn-table-7").printed.measures
