"""Gains of SME: above the better baseline of the same place, and compared with print only where both baselines are there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import SOME_BASELINES, Column, Measured, compare
from leakscope_papers.differences import with_gains
from leakscope_papers.items import read_item
from leakscope_papers.measures import NONE, Value
from leakscope_papers.pages.table import entry_of

NAME, COLUMN = "psnr_above_baselines", Column("", "")
ITEM = read_item("sme-table-7")
PLACE: dict[str, Any] = {
    "data": "femnist", "model": "vit", "samples": 10, "epochs": 10, "batch": 10, "local_steps": 10, "round": 1,
}  # fmt: skip


def cell(attack: str, psnr: float, half: float = 0.3, column: Column = COLUMN, **where: Any) -> Measured:
    value = Value(Estimate(psnr, psnr - half, psnr + half, 8, 8))
    return Measured({**PLACE, "attack": attack, **where}, column, 8, {"psnr": value})


@given(sme=st.floats(0, 50), ig=st.floats(0, 50), dlfa=st.floats(0, 50), half=st.floats(0, 3))
def test_the_gain_is_over_the_better_baseline_of_the_place_and_says_which(
    sme: float, ig: float, dlfa: float, half: float
) -> None:
    elsewhere = [cell("ig", 99, epochs=20), cell("dlfa", 99, column=Column("another", ""))]
    made = with_gains(ITEM.gains, [cell("dlfa", dlfa), cell("sme", sme, half), cell("ig", ig, half), *elsewhere])
    gain = made[1].values[NAME]
    assert gain.estimate.value == sme - max(ig, dlfa)
    assert gain.over == ("over ig" if ig > dlfa else "over dlfa")
    own = half if ig > dlfa else 0.3
    assert gain.estimate.high - gain.estimate.value == pytest.approx((half**2 + own**2) ** 0.5, abs=1e-9)
    assert not any(NAME in other.values for other in (made[0], *made[2:]))


def test_without_a_baseline_there_is_no_gain() -> None:
    lost = Measured({**PLACE, "attack": "ig"}, COLUMN, 8, {"psnr": Value(NONE)})
    assert all(NAME not in made.values for made in with_gains(ITEM.gains, [cell("sme", 30), lost]))
    (verdict,) = {
        line.verdicts["measured", NAME].word
        for line in compare(ITEM, [cell("sme", 30), lost]).lines
        if line.measured and NAME in line.printed
    }
    assert verdict == "not measured here"


@pytest.mark.parametrize(
    ("attacks", "word"),
    [({"ig": 25.0, "dlfa": 20.0}, "agrees"), ({"ig": 24.2}, ""), ({"ig": 24.2, "dlfa": 20.0}, "close")],
)
def test_it_is_compared_with_print_where_all_baselines_are_there(attacks: dict[str, float], word: str) -> None:
    """Printed is 4.7 dB: 30.3 of SME less 25.6 of DLFA."""
    cells = with_gains(ITEM.gains, [cell("sme", 29.6), *(cell(name, psnr) for name, psnr in attacks.items())])
    (line,) = (line for line in compare(ITEM, cells).lines if line.measured and line.where["attack"] == "sme")
    assert line.verdicts["measured", NAME].word == word
    told = entry_of(NAME, line.measured[0].values[NAME])
    assert told.over == ("over ig" if word else f"over ig; {SOME_BASELINES}")
