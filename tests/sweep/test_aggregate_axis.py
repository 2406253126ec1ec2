"""K clients summed as a setting of a scenario: ids that stay, an axis, and scores of all examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakscope.scenario import scenario_of
from leakscope.store import Run
from leakscope.sweep import run_scenario

SUMMED: dict[str, Any] = {
    "name": "summed",
    "data": {"name": "digits", "samples": 2},
    "model": {"name": "mlp", "hidden": [60]},
    "attack": {"name": "analytic"},
    "trials": 2,
    "baselines": ["prior_only"],
}


def test_an_aggregate_of_one_keeps_the_ids_of_cells() -> None:
    plain, one = ([*scenario_of({**SUMMED, **more}).cells()] for more in ({}, {"client": {"aggregate": 1}}))
    assert [cell.id for cell in plain] == [cell.id for cell in one]
    assert all("aggregate" not in str(cell.settings) for cell in plain)


@pytest.mark.slow
def test_clients_summed_are_an_axis_whose_scores_are_of_all_examples(tmp_path: Path) -> None:
    scenario = scenario_of({**SUMMED, "grid": {"client.aggregate": [1, 4]}})
    run_scenario(scenario, tmp_path / "run", progress=False, measure=False)
    run = Run.open(tmp_path / "run")
    samples = {
        (cell.baseline, cell.axes.get("client.aggregate"), len(record.samples))
        for cell in run.cells()
        for record in run.records(cell=cell.id)
    }
    assert samples == {(False, 1, 2), (False, 4, 8), (True, None, 2), (True, None, 8)}
