"""Rows of a program: written after each, taken up again, read as measured cells in the paper's words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.core.errors import InputError, UnknownNameError
from leakscope.metrics.interval import estimate_mean, estimate_rate
from leakscope_papers import programs
from leakscope_papers.items import Item, Part, Rule, Scale
from leakscope_papers.measures import value_of
from leakscope_papers.programs import PROGRAMS, find_program, planned_rows
from leakscope_papers.programs.rows import FILE, Curve, Keep, keeping, read_rows, rows_exist
from leakscope_papers.results import result_of
from leakscope_papers.runs import row_cells
from leakscope_papers.scales import rows_at, run_directory

FACTS = {"device": "cpu"}
made: list[int] = []


def squares(told: Mapping[str, Any], keep: Keep, say: Callable[[str], None], device: str) -> None:
    """A small program: one row for each number, four draws each; it fails at 13."""
    del device
    for number in told["numbers"]:
        key, where = f"n={number}", {"number": number}
        if keep.done(key, where):
            continue
        say(key)
        if number == 13:
            raise KeyboardInterrupt
        made.append(number)
        keep.add(key, where, {"square": [number**2 + d for d in (-1.0, 0.0, 1.0, 0.0)], "lost": [math.nan, number]})


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setitem(PROGRAMS, "squares", "here:squares")
    monkeypatch.setattr(programs, "find_program", lambda name: squares if name == "squares" else find_program(name))


def run(directory: Path, numbers: list[int]) -> None:
    told = {"numbers": numbers}
    with keeping(directory, told, FACTS) as keep:
        squares(told, keep, lambda _: None, "cpu")


def test_a_program_that_was_stopped_makes_only_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [2, 3, 13])
    assert [row.key for row in read_rows(tmp_path).rows] == ["n=2", "n=3"]
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [2, 3, 13])
    assert made == [2, 3]
    assert (tmp_path / FILE).read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_rows_come_back_as_they_were_put_in_but_what_is_not_finite(tmp_path: Path) -> None:
    run(tmp_path, [2])
    found = read_rows(tmp_path)
    assert (found.settings, found.facts) == ({"numbers": [2]}, {**FACTS, "seconds": "0", "trials": "1"})
    assert found.rows[0].where == {"number": 2}
    assert found.rows[0].values == {"square": (3.0, 4.0, 5.0, 4.0), "lost": (None, 2.0)}


def test_a_listing_asks_and_computes_nothing(tmp_path: Path) -> None:
    assert planned_rows("squares", {"numbers": [2, 13]}) == {"n=2": {"number": 2}, "n=13": {"number": 13}}
    assert made == []
    assert not rows_exist(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda told: {**told, "settings": {"numbers": [5]}}, "other settings"),
        (lambda told: {**told, "format": 9}, "format 9, .*1"),
        (lambda told: {**told, "rows": [{"key": "n=2"}]}, "no rows"),
        (lambda _: [], "no rows"),
    ],
)
def test_a_file_that_is_not_this_programs_is_refused(tmp_path: Path, spoil: Callable[[Any], Any], said: str) -> None:
    run(tmp_path, [2])
    told = json.loads((tmp_path / FILE).read_text("utf-8"))
    (tmp_path / FILE).write_text(json.dumps(spoil(told)), "utf-8")
    with pytest.raises(InputError, match=said):
        run(tmp_path, [2])


def test_a_row_that_nobody_asked_for_or_that_is_there_is_refused(tmp_path: Path) -> None:
    with keeping(tmp_path, {}, FACTS) as keep:
        with pytest.raises(InputError, match="without checking"):
            keep.add("a", {}, {})
        assert not keep.done("a")
        keep.add("a", {}, {"m": [1.0]})
        assert keep.done("a")
        with pytest.raises(InputError, match="without checking"):
            keep.add("a", {}, {})


def test_one_program_at_a_time(tmp_path: Path) -> None:
    with (
        keeping(tmp_path, {}, FACTS),
        pytest.raises(InputError, match="written by process"),
        keeping(tmp_path, {}, FACTS),
    ):
        pass


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the first call imports scipy
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_the_mean_of_a_row_has_the_interval_of_a_mean(numbers: list[float]) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)[:, None]
    assert value_of("cosine", numbers).estimate == estimate_mean(values, torch.ones_like(values, dtype=torch.bool))


def test_one_number_has_no_interval_and_rates_have_that_of_a_rate() -> None:
    alone = value_of("cosine", [0.5]).estimate
    assert (alone.value, alone.n) == (0.5, 1)
    assert math.isnan(alone.low)
    assert not value_of("cosine", [None]).has_number
    assert value_of("cosine", [None, 1.0, 2.0]).over.startswith("2 of 3 ")
    hits = torch.tensor([[1], [0], [1]]) == 1
    assert value_of("accuracy", [1, 0, 1]).estimate == estimate_rate(hits, torch.ones_like(hits))


def test_counts_of_zeros_and_ones_never_have_an_interval_of_no_width() -> None:
    for name in ("reversed_u", "top_inside", "membership"):
        found = value_of(name, [1.0] * 8).estimate
        assert found == estimate_rate(torch.ones(8, 1) == 1, torch.ones(8, 1, dtype=torch.bool))
    assert value_of("membership", [0.25, 0.75]).estimate.value == 0.5  # shares of their own are a mean
    assert value_of("membership", [0.0, 0.6]).estimate.low == 0  # and cut to what a share can be


def test_the_n_of_a_row_is_that_of_most_numbers_and_others_say_their_own(tmp_path: Path) -> None:
    rows = {"rmse": [0.1] * 48, "ratio": [1.0] * 48, "tracing": [0.0, 0.5] * 5, "rmse_error": [0.1]}
    right = {"accuracy": [1.0] * 600 + [0.0] * 400}
    item = Item(
        name="sme-figure-3", about="", parts=(Part(name="all", program="squares"),), scales={"full": Scale()}, where={}
    )
    with keeping(tmp_path, {}, FACTS) as keep:
        for key, values in (("both", {**rows, **right}), ("alone", right), ("trained", {"accuracy": [0.5, 0.75]})):
            assert not keep.done(key)
            keep.add(key, {"key": key}, values)
    both, alone, trained = row_cells(item, item.parts[0], read_rows(tmp_path))
    assert (both.trials, alone.trials, trained.trials) == (48, 1000, 2)
    said = {name: value.over for name, value in both.values.items()}
    assert said == {
        "rmse": "",
        "ratio": "",
        "tracing": "10 numbers",
        "rmse_error": "",
        "accuracy": "1000 test pictures",
    }
    assert alone.values["accuracy"].over == "1000 test pictures"
    assert trained.values["accuracy"].over == ""  # joined to an attack it says how many trainings


def test_rows_become_cells_in_the_papers_words_with_a_verdict(tmp_path: Path) -> None:
    item = Item(
        name="sme-figure-3",
        about="",
        parts=(Part(name="all", program="squares", scenario={"numbers": [2, 3], "unit": "apples"}, note="on paper"),),
        scales={"small": Scale(change={"numbers": [2]}), "full": Scale()},
        where={"n": Rule(path="number", words={"two": 2}), "unit": Rule(path="settings.unit")},
        measures=("square",),
    )
    assert list(rows_at(item, item.parts[0], "full")) == ["n=2", "n=3"]
    assert result_of(item, "full", tmp_path) is None
    told = {"name": "sme-figure-3, all, full", "numbers": [2, 3], "unit": "apples"}
    with keeping(run_directory(tmp_path, item, item.parts[0], "full"), told, FACTS) as keep:
        squares(told, keep, lambda _: None, "cpu")
    result = result_of(item, "full", tmp_path)
    assert result is not None
    assert result.facts == FACTS
    assert [dict(cell.where) for cell in result.cells] == [{"n": "two", "unit": "apples"}, {"n": 3, "unit": "apples"}]
    assert [(cell.values["square"].estimate.value, cell.trials, cell.note) for cell in result.cells] == [
        (4.0, 4, "on paper"),
        (9.0, 4, "on paper"),
    ]


def test_every_program_in_the_table_can_be_found() -> None:
    for name in set(PROGRAMS) - {"squares"}:
        assert callable(find_program(name))
    with pytest.raises(UnknownNameError, match="unknown program"):
        find_program("squers")


LINE = {"x": [0.0, 0.5, 1.0], "y": [[0.25, 0.5, math.nan], [1.0, 2.0, 1 / 3]]}


def test_curves_come_back_with_their_row_and_rows_without_them_are_read_as_before(tmp_path: Path) -> None:
    with keeping(tmp_path, {}, FACTS) as keep:
        for key, curves in (("a", {"line": LINE}), ("b", None)):
            keep.done(key)
            keep.add(key, {}, {"m": [1.0]}, curves=curves)
    told = json.loads((tmp_path / FILE).read_text("utf-8"))["rows"]
    assert ["curves" in row for row in told] == [True, False]
    with_curve, without = read_rows(tmp_path).rows
    assert without.curves == {}
    assert with_curve.curves == {"line": Curve((0.0, 0.5, 1.0), ((0.25, 0.5, None), (1.0, 2.0, 0.333333)))}
    assert list(with_curve.curves["line"].places())[1] == (0.5, (0.5, 2.0))
    with keeping(tmp_path, {}, FACTS) as keep:  # taken up and written again, nothing is lost
        keep.done("c")
        keep.add("c", {}, {"m": [1.0]})
    assert read_rows(tmp_path).rows[0] == with_curve


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        ({"x": [0.0, 0.0], "y": [[1.0, 2.0]]}, "x must be"),
        ({"x": [0.0, math.inf], "y": [[1.0, 2.0]]}, "x must be"),
        ({"x": [], "y": []}, "x must be"),
        ({"x": [0.0, 1.0], "y": [[1.0, 2.0], [1.0]]}, "y must have 2 "),
        ({"x": [0.0, 1.0], "y": []}, "y must have 2 "),
    ],
)
def test_a_curve_that_is_none_is_refused_and_nothing_is_kept(tmp_path: Path, curve: Any, said: str) -> None:
    with keeping(tmp_path, {}, FACTS) as keep:
        keep.done("a")
        with pytest.raises(InputError, match=f"'line' .*'a': {said}"):
            keep.add("a", {}, {}, curves={"line": curve})
    assert not rows_exist(tmp_path)


def test_the_seconds_of_a_program_that_goes_on_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 107.0, 500.0, 503.0])  # two sessions: begun, written
    monkeypatch.setattr("leakscope_papers.programs.rows.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    for key, seconds in (("a", 7.0), ("b", 10.0)):
        with keeping(tmp_path, {}, FACTS) as keep:
            assert not keep.done(key)
            keep.add(key, {}, {"value": [1.0]})
        assert read_rows(tmp_path).seconds == seconds
    assert read_rows(tmp_path).facts["trials"] == "2"
