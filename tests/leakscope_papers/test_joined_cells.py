"""Accuracy joins the attacks at its place: the same reading, any attacker, never another strength."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate
from leakscope_papers.comparing import ABSENT, Column, Measured, compare
from leakscope_papers.cpl.federation import accuracy, at, points
from leakscope_papers.items import find_part, read_item
from leakscope_papers.measures import Value
from leakscope_papers.programs.rows import Row, Rows, keeping, read_rows
from leakscope_papers.runs import joined, row_cells

WHERE = {"data": "lfw_face", "model": "lenet", "attack": "cpl", "start": "patterned"}
WHOLE, EACH = "threshold over the whole update", "threshold over each tensor"


def attacked(drop: float, reading: str, attacker: str = "does not know") -> Measured:
    defence = "compression" if drop else "none"
    values = {"asr_convergence": Value(Estimate(1, 0.8, 1, 20, 20))}
    return Measured({**WHERE, "defence": defence, "drop": drop}, Column(reading, attacker), 20, values)


def trained(*drops: float) -> list[Measured]:
    item = read_item("cpl-table-7")
    rows = tuple(
        Row(f"{drop}", {"defences.0.each": False, "defences.0.drop": drop}, {"accuracy": (0.7 - drop, 0.72 - drop)})
        for drop in drops
    )
    return row_cells(item, find_part(item, "accuracy-lfw_face"), Rows({"data": {"name": "lfw_face"}}, rows))


def test_rows_stand_at_the_place_of_the_table() -> None:
    found = trained(0.0, 0.4)
    assert [cell.where for cell in found] == [
        {"data": "lfw_face", "model": "lenet", "defence": "none", "drop": 0.0},
        {"data": "lfw_face", "model": "lenet", "defence": "compression", "drop": 0.4},
    ]
    assert {cell.column.reading for cell in found} == {WHOLE}  # `said` tells which reading is meant


def test_a_number_joins_every_attacker_of_its_reading_and_place() -> None:
    cells = [attacked(0.4, WHOLE), attacked(0.4, WHOLE, "knows"), attacked(0.4, EACH), attacked(0.5, WHOLE)]
    both, knows, each, other, alone = joined(cells, trained(0.4, 0.9))
    for cell in (both, knows):
        assert cell.values["accuracy"].estimate.value == pytest.approx(0.31)
        assert cell.values["accuracy"].over == "2 trainings"
        assert "asr_convergence" in cell.values
    assert "accuracy" not in each.values
    assert "accuracy" not in other.values
    assert alone.where["drop"] == 0.9  # stands beside no attack, and stays


def test_joined_accuracy_is_compared_with_print_and_says_why_where_it_is_not_there() -> None:
    item = replace(read_item("cpl-table-7"), absent={"accuracy": "not trained at every share"})
    comparison = compare(item, joined([attacked(0.4, WHOLE), attacked(0.5, WHOLE)], trained(0.4)))
    said = {
        line.where["drop"]: line.verdicts[f"{WHOLE}, does not know", "accuracy"]
        for line in comparison.lines
        if line.measured
    }
    assert said[0.4].word == "lower"
    assert (said[0.5].word, bool(said[0.5].reason)) == (ABSENT, True)


def test_every_point_is_trained_once_for_each_seed(tmp_path: Path) -> None:
    settings = {
        "name": "tiny",
        "data": {"name": "digits", "examples": 60},
        "partition": {"name": "iid", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "client": {"local": {"epochs": 1, "batch_size": 5, "rate": 0.1}},
        "selection": {"name": "share", "share": 0.5},
        "defences": [{"name": "gaussian_noise", "sigma": 0.0}],
        "precision": {"form": "native"},
        "rounds": 1,
        "vary": {"defences.0.sigma": [0.0, 100.0]},
        "said": {"defences.0.each": False},
        "seeds": [0, 1],
    }
    for _ in range(2):
        with keeping(tmp_path, settings, {}) as keep:
            accuracy(settings, keep, lambda _: None, "cpu")
            assert len(keep.rows) == 2
    rows = read_rows(tmp_path).rows
    assert [row.where for row in rows] == [
        {"defences.0.each": False, "defences.0.sigma": 0.0},
        {"defences.0.each": False, "defences.0.sigma": 100.0},
    ]
    for row in rows:
        assert len(row.values["accuracy"]) == 2
        assert all(
            number is not None and 0 <= number <= 1 and math.isfinite(number) for number in row.values["accuracy"]
        )


def test_what_is_varied_must_be_there() -> None:
    assert list(points({})) == [{}]
    assert list(points({"a": [1, 2], "b": [3]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    with pytest.raises(InputError, match="there is no"):
        at({"defences": []}, {"defences.0.sigma": 1.0})
