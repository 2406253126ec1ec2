"""What a user's file may say and how much of it: plain values of YAML 1.2, limits, plain files."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.errors import InputError
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.scenario.reader import read_user_file
from leakscope.scenario.scenario import scenario_from_text
from leakscope.scenario.schema import MOST_SEEDS, MOST_TRIALS
from leakscope.scenario.text import MOST_BYTES, MOST_VALUES, read_text, write_text

SMALL: dict[str, Any] = {"data": "digits", "model": "lenet_cpl", "attack": "cpl", "trials": 2, "baselines": []}


def problem_lines(text: str) -> list[int | None]:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_text(text)
    return [problem.line for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-4", 1e-4), ("1E5", 1e5), ("5.", 5.0), (".5", 0.5), ("-.Inf", -math.inf), ("+1e400", math.inf)],
        *[("-3", -3), ("010", 10), ("0o10", 8), ("0x1F", 31), ("!!int '08'", 8), ("true", True), ("FALSE", False)],
        *[("~", None), ("", None), ("null", None), ("!!str 5", "5")],
        *[
            (text, text)
            for text in ("1:30", "1:30.5", "1_000", "0b11", "yes", "No", "on", "OFF", "y", "2001-01-01", "=")
        ],
    ],
)
def test_plain_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert repr(read_text(f"a: {text}").data) == repr({"a": value})
    assert repr(read_text(f"a: {text}", own=True).data) == repr({"a": value})


@pytest.mark.parametrize("text", ["010", "1:30", "1e5", "0o7", "yes", "~", "", ".inf", "1_0", "=", "<<", "true"])
def test_a_text_is_written_so_that_it_is_read_as_text(text: str) -> None:
    assert read_text(write_text({"a": text, "b": [1e-5, 1e20, -3, True, None]})).data == {
        "a": text,
        "b": [1e-5, 1e20, -3, True, None],
    }


def test_trials_are_counted_in_tens_and_never_in_sixties() -> None:
    text = "data: digits\nmodel: lenet_cpl\nattack: cpl\ntrials: "
    assert scenario_from_text(text + "010").bases[0]["trials"] == 10
    assert problem_lines(text + "1:30") == [4]
    assert problem_lines(text + ":".join("1" * 5000)) == [4]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seeds: [" + "1, " * MOST_VALUES + "1]", 1),
        ("a: 1\nb: " + "[" * 90_000, 2),
        ("a: 1\nb: " + "{b: " * 90_000, 2),
        ("a: " + "- " * 90_000, 1),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 5000 + "]", 1),
        ("a: " + "9" * 5000, 1),
        ("a: 0x" + "f" * 100_000, 1),
        ("a: !!float " + "1:" * 5000, 1),
        ("a: !!map 5", 1),
        ("x" * (MOST_BYTES + 1), None),
    ],
)
def test_limits_act_while_a_text_is_parsed(text: str, line: int | None) -> None:
    start = time.process_time()
    with pytest.raises(ScenarioError) as caught:
        read_text(text)
    assert [problem.line for problem in caught.value.problems] == [line]
    assert time.process_time() - start < 5


def test_only_plain_files_of_limited_length_are_read(tmp_path: Path) -> None:
    fifo, large = tmp_path / "fifo", tmp_path / "large.yaml"
    os.mkfifo(fifo)
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    for path in (fifo, large, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError):
            read_user_file(path, "a scenario")


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": MOST_TRIALS + 1},
        {"trials": MOST_TRIALS // 2, "seeds": [0, 1, 2]},
        {"seeds": list(range(MOST_SEEDS + 1))},
        {"model": {"name": "mlp", "hidden": [1] * 5000}},
        {"defences": ["sign"] * 5000},
        {"baselines": ["class_mean"] * 5000},
        {"attack": None, "attacks": ["cpl"] * 5000},
        {"zip": [{"weights.a": [1.0]}] * 5000},
        {"grid": {f"attack.k{i}": [1] for i in range(2000)}},
        {"grid": {"weights.a": [1 + i / 1000 for i in range(200)], "data.first": list(range(101))}},
    ],
)
def test_counts_are_limited_before_anything_is_expanded(changes: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises(ScenarioError):
        scenario_of({**SMALL, **changes})
    assert time.process_time() - start < 2


def test_an_error_of_thousands_of_lines_is_cut() -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_of({**SMALL, **{f"k{i}": 1 for i in range(2000)}, "x" * 10**5: 1})
    assert len(caught.value.problems) == 2001
    assert len(str(caught.value)) < 10**5
