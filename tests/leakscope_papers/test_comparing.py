"""Published against measured: verdicts, lines, the reading that fits best."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import (
    ABSENT,
    AGREES,
    BY_CONTENT,
    CLOSE_BY,
    FLOOR,
    HIGHER,
    LOWER,
    NO_SUCCESS,
    NO_THRESHOLD,
    NOT_RUN,
    RATE_APART,
    TOO_FEW,
    WIDE,
    Column,
    Measured,
    compare,
    judge,
)
from leakscope_papers.headlines import EQUAL_READINGS, agreement, best_reading
from leakscope_papers.items import Item, read_item
from leakscope_papers.measures import MEASURES, NONE, Value

PLACE = {"data": "lfw_face", "model": "lenet", "attack": "cpl", "start": "patterned"}


def rate(value: float, half: float = 0.1) -> Value:
    return Value(Estimate(value, max(0.0, value - half), min(1.0, value + half), 20, 20))


def measured(item: Item, values: dict[str, Value], *, reading: int = 0, attacker: int = 0, **where: Any) -> Measured:
    column = Column(item.readings[reading].label, item.attackers[attacker].label)
    return Measured({**PLACE, **where}, column, 20, dict.fromkeys(MEASURES, Value(NONE)) | values)


@given(value=st.floats(0, 1), centre=st.floats(0, 1), half=st.floats(0, 0.3))
def test_a_number_in_our_interval_agrees_and_one_outside_never_does(value: float, centre: float, half: float) -> None:
    ours = rate(centre, half)
    inside = ours.estimate.low <= value <= ours.estimate.high
    reach = max(ours.estimate.high - centre, centre - ours.estimate.low)
    word = judge(value, ours, "asr_convergence")
    assert (word in (AGREES, TOO_FEW)) == inside
    assert (word == TOO_FEW) == (inside and reach > WIDE * RATE_APART)
    if word in (HIGHER, LOWER):
        assert abs(value - centre) > 0.05
        assert (word == HIGHER) == (centre > value)


@pytest.mark.parametrize(
    ("name", "printed", "ours", "word"),
    [
        ("asr_label", 0.90, 0.86, CLOSE_BY),
        ("ssim", 0.99, 0.96, LOWER),
        ("ssim", 0.99, 0.975, CLOSE_BY),
        ("mse", 1e-4, 2.9e-4, CLOSE_BY),
        ("mse", 1e-4, 3.1e-4, HIGHER),
        ("iterations_mean", 100, 119, CLOSE_BY),
        ("iterations_mean", 100, 79, LOWER),
    ],
)
def test_close_is_a_matter_of_the_measure(name: str, printed: float, ours: float, word: str) -> None:
    assert judge(printed, Value(Estimate(ours, ours, ours, 20, 20)), name) == word


@pytest.mark.parametrize("n", range(1, 21))
def test_a_number_over_successes_needs_ten_of_them(n: int) -> None:
    for name, printed, ours in (("iterations_mean", 25.0, 25.0), ("mse", 1e-4, 9.0), ("iterations_max", 300.0, 30.0)):
        value = Value(Estimate(ours, ours, ours, n, n), f"{n} of 20 trials that converged")
        assert (judge(printed, value, name) == TOO_FEW) == (n < 10)
        assert judge(printed, replace(value, over=""), name) != TOO_FEW  # over everything attacked


@pytest.mark.parametrize(
    ("name", "printed", "ours", "word"),
    [
        ("iterations_mean", 25.0, Estimate(30.0, 12.0, 48.0, 20, 20), AGREES),
        ("iterations_mean", 25.0, Estimate(40.0, 0.0, 95.0, 20, 20), TOO_FEW),
        ("iterations_mean", 99.0, Estimate(40.0, 0.0, 95.0, 20, 20), LOWER),  # outside is outside, however wide
        ("ssim", 0.9, Estimate(0.85, 0.76, 0.94, 20, 20), AGREES),
        ("ssim", 0.9, Estimate(0.85, 0.70, 1.0, 20, 20), TOO_FEW),
        ("psnr", 22.0, Estimate(20.0, 16.0, 24.0, 8, 8), AGREES),
        ("psnr", 22.0, Estimate(20.0, 14.0, 26.0, 8, 8), TOO_FEW),
        ("mse", 1e-4, Estimate(2e-4, 5e-5, 3.5e-4, 20, 20), AGREES),
        ("mse", 1e-9, Estimate(2e-4, 0.0, 5e-4, 20, 20), TOO_FEW),  # every small number lies between 0 and this
        ("mse", 0.0, Estimate(0.0, 0.0, 0.0, 20, 20), AGREES),
    ],
)
def test_an_interval_that_holds_nearly_everything_does_not_agree(
    name: str, printed: float, ours: Estimate, word: str
) -> None:
    assert judge(printed, Value(ours), name) == word


def test_numbers_that_are_too_few_are_counted_apart() -> None:
    item = read_item("cpl-table-8")
    few = Value(Estimate(26.0, 0.0, 52.0, 2, 2), "2 of 20 trials that converged")
    many = Value(Estimate(26.0, 24.0, 28.0, 20, 20), "20 of 20 trials that converged")
    cells = []
    for reading, steps in ((0, few), (1, many)):
        values = {"asr_convergence": rate(1.0), "asr_content": rate(1.0), "iterations_mean": steps}
        cells.append(
            replace(measured(item, values, reading=reading, defence="gaussian", sigma="10e-4"), cell=f"{reading}")
        )
    comparison = compare(item, cells)
    titles = [cell.column.title for cell in cells]
    assert [comparison.counts[title].get(TOO_FEW, 0) for title in titles] == [1, 0]
    assert comparison.counts[titles[0]][AGREES] == 1
    assert f"; 1 {TOO_FEW}, " in agreement(comparison.counts[titles[0]])
    assert EQUAL_READINGS in best_reading(comparison)
    assert "of 1 printed" in best_reading(comparison)
    assert best_reading(comparison).endswith(f"; 1 more is {TOO_FEW}.")


def test_every_printed_place_has_a_line_and_what_was_not_run_says_so() -> None:
    item = replace(read_item("cpl-table-8"), absent={"accuracy": "nothing was trained"})
    nothing = compare(item, [])
    assert {line.where.get("sigma") for line in nothing.lines} == {None, "10e-4", "10e-3", "10e-2"}
    words = {verdict.word for line in nothing.lines for verdict in line.verdicts.values()}
    assert words == {NOT_RUN, ABSENT}
    accuracy = [v for line in nothing.lines for (_, name), v in line.verdicts.items() if name == "accuracy"]
    assert all(verdict.reason == item.absent["accuracy"] for verdict in accuracy)


def test_a_number_printed_for_many_places_is_held_to_those_that_measured_it() -> None:
    item = read_item("spn-figure-28")
    spn = {"defence": "spn", "alpha2": 0.1}
    ratio = Measured({**spn, "model": "dlnet"}, Column("", ""), 4, {"ratio": rate(0.9)})
    trained = Measured({**spn, "model": "alexnet"}, Column("", ""), 4, {"accuracy": rate(0.9)})
    both = compare(item, [ratio, trained])
    printed = {line.where.get("model"): set(line.printed) for line in both.lines if line.measured}
    assert printed == {"dlnet": {"ratio"}, "alexnet": set()}
    assert both.counts["measured"][ABSENT] == 1  # the gain, which no cell has
    (alone,) = (line for line in compare(item, [trained]).lines if line.measured)
    assert alone.verdicts["measured", "ratio"].word == ABSENT


def test_convergence_with_a_floor_agrees_by_content_and_says_why() -> None:
    item = read_item("cpl-table-8")
    values = {"asr_convergence": rate(0.0), "asr_content": rate(1.0)}
    cell = measured(item, values, defence="gaussian", sigma="10e-4")
    (line,) = [line for line in compare(item, [cell]).lines if line.measured]
    verdict = line.verdicts[cell.column.title, "asr_convergence"]
    assert (verdict.word, verdict.reason) == (BY_CONTENT, FLOOR)
    assert line.verdicts[cell.column.title, "iterations_mean"].word == NO_SUCCESS


def test_a_failed_cell_of_the_paper_agrees_with_no_success_of_ours() -> None:
    item = read_item("cpl-table-8")
    cell = measured(item, {"asr_convergence": rate(0.0), "asr_content": rate(0.0)}, defence="gaussian", sigma="10e-2")
    (line,) = [line for line in compare(item, [cell]).lines if line.measured]
    assert line.verdicts[cell.column.title, "iterations_mean"].word == AGREES
    assert line.verdicts[cell.column.title, "asr_convergence"].word == AGREES


def test_only_the_attacker_of_the_paper_is_judged_and_nobody_on_stand_in_data() -> None:
    item = read_item("cpl-table-8")
    both = [measured(item, {"asr_convergence": rate(1.0)}, attacker=n, defence="none", sigma="none") for n in (0, 1)]
    comparison = compare(item, both)
    (line,) = [line for line in comparison.lines if line.measured]
    assert {title for title, _ in line.verdicts} == {both[0].column.title}
    assert not any(line.verdicts for line in compare(item, both, judged=False).lines)


def test_the_reading_with_most_agreement_is_named() -> None:
    item = read_item("cpl-table-8")
    cells = []
    for reading, ssim in ((0, 0.9978), (1, 0.2)):
        for noise in ("10e-4", "10e-3"):
            values = {
                "asr_convergence": rate(1.0),
                "asr_content": rate(1.0),
                "ssim": Value(Estimate(ssim, ssim, ssim, 20, 20)),
            }
            cells.append(measured(item, values, reading=reading, defence="gaussian", sigma=noise))
    told = best_reading(compare(item, cells))
    assert f": {item.readings[0].label}. " in told
    alike = [measured(item, {"asr_convergence": rate(1.0)}, reading=n, defence="none", sigma="none") for n in (0, 1)]
    assert EQUAL_READINGS in best_reading(compare(item, alike))
    assert best_reading(compare(read_item("cpl-table-3"), [])) == ""


def test_a_reason_of_the_item_stands_with_a_difference_alone() -> None:
    item = read_item("cpl-table-2")
    for value, reason in ((0.9, True), (2.2e-4, False)):
        cell = measured(item, {"mse": Value(Estimate(value, value, value, 20, 20)), "asr_convergence": rate(1.0)})
        (line,) = [line for line in compare(item, [cell]).lines if line.measured]
        assert bool(line.verdicts[cell.column.title, "mse"].reason) == reason


def test_a_printed_bound_is_kept_on_its_side() -> None:
    item = read_item("mixing-figure-2")
    where = {"data": "mnist", "model": "lenet", "iterations_cap": 550, "rate": 0.05, "batch": 1}
    for ours, word in ((0.99, AGREES), (0.5, LOWER)):
        values = dict.fromkeys(MEASURES, Value(NONE)) | {"steady_share": rate(ours, 0.001)}
        comparison = compare(item, [Measured(where, Column("", ""), 20, values)])
        (line,) = [line for line in comparison.lines if line.measured]
        assert line.verdicts["measured", "steady_share"].word == word


def test_agreement_is_a_sentence_for_any_counts() -> None:
    assert agreement({}) == ""
    assert agreement({NOT_RUN: 2}) == "2 not run."
    assert re.findall(r"\d+", agreement({AGREES: 1})) == ["1", "1", "0", "0"]  # total, agree, are close, differ
    told = agreement({AGREES: 2, BY_CONTENT: 1, LOWER: 1, ABSENT: 1})
    assert re.findall(r"\d+", told) == ["4", "2", "1", "0", "1", "1", "1"]
    assert told.endswith(f"(1 of ours {LOWER}); 1 {ABSENT}.")


def test_readings_are_told_apart_by_what_they_measured_apart() -> None:
    item = read_item("cpl-table-7")
    where = next(row.where for row in item.printed.rows if row.measure == "asr_convergence")
    attacker = item.attackers[0].label
    values = {"asr_convergence": rate(1.0), "asr_content": rate(1.0)}
    both = [Measured(where, Column(reading.label, attacker), 20, values, cell="one") for reading in item.readings]
    assert best_reading(compare(item, both)) == ""  # the same run under two readings says nothing about either
    apart = [both[0], replace(both[1], cell="two")]
    assert EQUAL_READINGS in best_reading(compare(item, apart))


def test_an_attack_without_a_threshold_is_compared_by_content() -> None:
    item = read_item("cpl-table-2")
    where = {"data": "mnist", "model": "lenet", "attack": "ig", "start": "random"}
    column = Column(item.readings[0].label, "")
    for content, word in ((rate(0.8), BY_CONTENT), (rate(0.0), LOWER)):
        values = {"asr_convergence": Value(NONE, NO_THRESHOLD), "asr_content": content}
        (line,) = [line for line in compare(item, [Measured(where, column, 20, values)]).lines if line.measured]
        verdict = line.verdicts[column.title, "asr_convergence"]
        assert (verdict.word, NO_THRESHOLD in verdict.reason) == (word, True)
