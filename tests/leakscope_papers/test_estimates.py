"""How long a run takes, from the seconds of recorded ones."""

from __future__ import annotations

import pytest

from leakscope_papers import estimates
from leakscope_papers.estimates import LANES, Spent, planned_work, recorded_runs, seconds_of, work_of
from leakscope_papers.items import find_part, read_item

TABLE = read_item("cpl-table-2")
H200 = "NVIDIA H200"


def known(monkeypatch: pytest.MonkeyPatch, *runs: Spent) -> None:
    """Let these be the recorded runs."""
    monkeypatch.setattr(estimates, "recorded_runs", lambda: runs)


def part_work(name: str, most: int | None = None, *, gpu: bool = True) -> dict[tuple[str, ...], float]:
    return dict(planned_work(TABLE, find_part(TABLE, name), "full", gpu=gpu, most=most))


def test_work_is_evaluations_times_trials_and_a_gpu_attacks_few_at_once() -> None:
    settings = {"attack": {"iterations": 300, "optimiser": {"name": "lbfgs", "inner": 20}}}
    assert work_of(settings, 1000, gpu=True) == 300 * 20 * 1000
    assert work_of(settings, 50, gpu=True) == work_of(settings, 20, gpu=True) == 300 * 20 * LANES
    assert work_of(settings, 50, gpu=False) == 300 * 20 * 50
    assert work_of({"attack": {"iterations": 4800, "optimiser": {"name": "adam"}}}, 1000, gpu=True) == 4800 * 1000


def test_a_part_takes_what_its_own_run_took_in_proportion_to_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work = part_work("mnist")
    fewer = {kind: amount for kind, amount in work.items() if kind[1] != "ig"}  # the run stopped before IG
    known(monkeypatch, Spent(TABLE.name, "mnist", 70.0, H200, fewer), Spent(TABLE.name, "lfw_face", 1.0, H200, work))
    guess = seconds_of(TABLE, find_part(TABLE, "mnist"), "full", gpu=True)
    assert guess is not None
    assert guess.source == "a recorded run of this part"
    assert guess.seconds == pytest.approx(70.0 * sum(work.values()) / sum(fewer.values()))
    few = seconds_of(TABLE, find_part(TABLE, "mnist"), "full", gpu=True, most=50)
    assert few is not None
    assert few.seconds == pytest.approx(guess.seconds * LANES / 1000)


def test_runs_of_the_same_networks_and_attacks_stand_in_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    work = part_work("mnist")
    known(monkeypatch, Spent("cpl-table-4", "lfw_face", 70.0, H200, work))
    lenet, resnet = find_part(TABLE, "cifar100"), find_part(TABLE, "cifar100-resnet")
    guess = seconds_of(TABLE, lenet, "full", gpu=True)
    assert guess is not None
    assert guess.source == "other runs of cpl"
    assert guess.seconds == pytest.approx(70.0)
    assert seconds_of(TABLE, resnet, "full", gpu=True) is None
    assert seconds_of(TABLE, lenet, "full", gpu=False) is None
    assert seconds_of(TABLE, find_part(TABLE, "accuracy-mnist"), "full", gpu=True) is None


def test_the_recorded_runs_have_seconds_and_work() -> None:
    runs = recorded_runs()
    assert {"cpl-table-2", "mixing-table-1"} <= {run.item for run in runs}
    assert all(run.seconds > 0 and sum(run.work.values()) > 0 for run in runs)
