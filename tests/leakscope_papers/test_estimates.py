"""How long a run takes, from the seconds of recorded ones."""

from __future__ import annotations

import pytest

from leakscope_papers import estimates
from leakscope_papers.estimates import LANES, Spent, recorded_runs, seconds_of
from leakscope_papers.items import find_part, read_item

TABLE = read_item("cpl-table-2")
RUNS = (
    Spent("cpl-table-2", "mnist", 3000, 1000, 300.0, "NVIDIA H200", False),
    Spent("cpl-table-2", "mnist", 40, 20, 50.0, "NVIDIA H200", False),  # two of three attacks
    Spent("cpl-table-2", "lfw_face", 150, 50, 45.0, "NVIDIA H200", False),
    Spent("cpl-table-2", "accuracy-mnist", 1, 1, 9000.0, "NVIDIA H200", True),
    Spent("cpl-table-4", "lfw_face", 900, 100, 7000.0, "cpu", False),
)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_runs.cache_clear()
    monkeypatch.setattr(estimates, "recorded_runs", lambda: RUNS)


def test_the_run_of_the_part_with_most_similar_trials_counts() -> None:
    full = seconds_of(TABLE, find_part(TABLE, "mnist"), "full", gpu=True)
    fewer = seconds_of(TABLE, find_part(TABLE, "mnist"), "full", gpu=True, most=10)
    assert full is not None
    assert fewer is not None
    assert (full.seconds, full.source) == (300.0, "a recorded run of this part")
    assert fewer.seconds == pytest.approx(50.0 * 3 / 2)  # three cells, each as long as one of 20 trials


def test_other_parts_of_the_item_then_of_the_paper_stand_in_for_a_part_without_a_run() -> None:
    guess = seconds_of(TABLE, find_part(TABLE, "cifar100"), "full", gpu=True, most=50)
    assert guess is not None
    assert guess.source == "other parts of cpl-table-2"
    assert guess.seconds == pytest.approx(sorted([300.0 * LANES / 1000, 75.0, 45.0])[1])
    other = read_item("cpl-figure-4")
    guess = seconds_of(other, other.parts[0], "full", gpu=False)
    assert guess is not None
    assert guess.source == "other items of cpl"
    assert guess.seconds == pytest.approx(7000.0 * 3000 / 900)  # a CPU attacks one after the other


def test_nothing_is_said_without_a_run_on_that_device_or_of_that_kind() -> None:
    assert seconds_of(TABLE, find_part(TABLE, "accuracy-mnist"), "full", gpu=False) is None
    mixing = read_item("mixing-table-1")
    assert seconds_of(mixing, mixing.parts[0], "full", gpu=True) is None
