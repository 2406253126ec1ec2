"""How long a run takes, from its operations and the seconds of recorded ones."""

from __future__ import annotations

import pytest

from leakscope_papers import estimates
from leakscope_papers.estimates import (
    FEWEST,
    OPERATIONS,
    OTHERS,
    RECORDED,
    USUAL,
    Spent,
    planned_load,
    rates_of,
    recorded_runs,
    seconds_at,
    seconds_of,
)
from leakscope_papers.items import choose_items, find_part, read_item
from leakscope_papers.loads import PASSES, PROGRAM_LOADS, STEP, Load, Size, load_of_cells, size_of
from leakscope_papers.programs import PROGRAMS
from leakscope_papers.scales import parts_at

TABLE = read_item("cpl-table-2")
H200 = "NVIDIA H200"
RATES = (1e-4, 1e-12, 20.0)


def known(monkeypatch: pytest.MonkeyPatch, *runs: Spent) -> None:
    """Let these be the recorded runs, with fixed rates."""
    monkeypatch.setattr(estimates, "recorded_runs", lambda: runs)
    monkeypatch.setattr(estimates, "rates_of", lambda runs, *, gpu: RATES)


def spent(part: str, factor: float, device: str = H200) -> Spent:
    """Return a run of a part that took `factor` times what the fixed rates give."""
    load, kinds = planned_load(TABLE, find_part(TABLE, part), "full")
    return Spent(TABLE.name, part, factor * seconds_at(RATES, load), device, load, kinds)


def cell(**attack: object) -> dict[str, object]:
    return {
        "model": {"name": "linear"},
        "data": {"name": "mnist", "samples": 2},
        "client": {"local": {"epochs": 3, "batch_size": 1}},
        "knowledge": {"local": False},
        "attack": {"name": "cpl", "iterations": 300, "optimiser": {"name": "lbfgs", "inner": 20}, **attack},
    }


def test_a_network_has_the_operations_of_its_layers() -> None:
    assert size_of({"name": "linear"}, "mnist") == Size(2, 2 * 784 * 10)
    assert (
        size_of({"name": "lenet_cpl"}, "mnist", 56).operations > 3 * size_of({"name": "lenet_cpl"}, "mnist").operations
    )


def test_the_work_of_a_cell_is_evaluations_times_clients_images_and_passes() -> None:
    load = load_of_cells([(cell(), 50, 1.0)])
    assert load == Load(300 * 20 * 2, 300 * 20 * 50 * 2 * 2 * 784 * 10 * PASSES)
    assert load_of_cells([(cell(), 50, 0.5)]) == Load(load.calls, load.operations / 2)
    knows = {**cell(), "knowledge": {"local": True}}  # simulates two steps in each of three epochs
    assert load_of_cells([(knows, 50, 1.0)]) == Load(load.calls * 6, load.operations * 3)


def test_cells_that_differ_in_a_strength_run_at_once_and_others_do_not() -> None:
    one, other, longer = (
        (cell(threshold=1e-4), 9, 1.0),
        (cell(threshold=1e-6), 9, 1.0),
        (cell(iterations=400), 9, 1.0),
    )
    alone = load_of_cells([one])
    assert load_of_cells([one, other]) == Load(alone.calls, 2 * alone.operations)
    assert load_of_cells([one, longer]).calls == alone.calls + load_of_cells([longer]).calls


def test_models_trained_together_share_their_calls() -> None:
    size = Size(10, 1e6)
    assert size.training(5, 32, 4) == Load(50, 5 * 32 * 4 * 1e6 * STEP)
    assert size.training(5, 32).calls == 50


def test_every_program_has_a_load() -> None:
    assert set(PROGRAM_LOADS) == set(PROGRAMS)


def test_rates_are_those_that_the_runs_had() -> None:
    loads = [Load(1e5, 1e12), Load(1e6, 1e14), Load(3e5, 5e13), Load(1e4, 3e14)]
    runs = [Spent("cpl-table-2", "mnist", seconds_at(RATES, load), H200, load) for load in loads]
    assert rates_of(runs, gpu=True) == pytest.approx(RATES)
    assert rates_of(runs[: FEWEST - 1], gpu=True) == USUAL[True]


def test_a_part_takes_what_its_own_run_took_else_what_other_runs_took(monkeypatch: pytest.MonkeyPatch) -> None:
    part = find_part(TABLE, "mnist")
    plain = seconds_at(RATES, planned_load(TABLE, part, "full")[0])
    known(monkeypatch, spent("mnist", 2.0), spent("lfw_face", 5.0))
    own = seconds_of(TABLE, part, "full", gpu=True)
    assert own.source == RECORDED
    assert own.seconds == pytest.approx(2 * plain)
    assert seconds_of(TABLE, part, "full", gpu=True, most=50).seconds < own.seconds
    known(monkeypatch, spent("lfw_face", 5.0))
    other = seconds_of(TABLE, part, "full", gpu=True)
    assert other.source == OTHERS
    assert other.seconds == pytest.approx(5 * plain)
    known(monkeypatch, spent("cifar10-resnet", 5.0), spent("mnist", 5.0, "cpu"))
    counted = seconds_of(TABLE, part, "full", gpu=True)
    assert counted.source == OPERATIONS
    assert counted.seconds == pytest.approx(plain)


def test_recorded_runs_took_between_half_and_twice_what_the_rates_give() -> None:
    runs = [run for run in recorded_runs() if run.on_gpu]
    rates = rates_of(runs, gpu=True)
    assert {"cpl-table-6", "mixing-table-1"} <= {run.item for run in runs}
    assert "cpl-table-2" not in {run.item for run in runs}  # ran beside others, so its seconds say little
    assert all(0.5 < run.seconds / seconds_at(rates, run.load) < 2 for run in runs)


@pytest.mark.slow
def test_every_part_has_an_estimate() -> None:
    for item in choose_items(["all"]):
        for part in parts_at(item, "full"):
            assert seconds_of(item, part, "full", gpu=True).seconds > 0, part.name
