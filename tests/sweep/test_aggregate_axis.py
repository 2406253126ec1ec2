"""K clients summed as a setting of a scenario: ids that stay, an axis, and scores of all examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakscope.clients import Aggregation
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.scenario.cell import read_settings
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


def test_dropouts_are_of_the_aggregate_and_change_the_id() -> None:
    cells = [*scenario_of({**SUMMED, "grid": {"client.aggregate": [4, {"clients": 4, "dropouts": 1}]}}).cells()]
    attacked = [cell for cell in cells if not cell.baseline]
    assert len({cell.id for cell in attacked}) == 2
    assert read_settings(attacked[1].settings).client.aggregation == Aggregation(4, dropouts=1)
    with pytest.raises(ScenarioError, match="dropouts"):
        scenario_of({**SUMMED, "client": {"aggregate": {"clients": 4, "dropouts": 4}}})


@pytest.mark.slow
def test_clients_summed_are_an_axis_whose_scores_are_of_all_examples(tmp_path: Path) -> None:
    scenario = scenario_of({**SUMMED, "grid": {"client.aggregate": [1, 4, {"clients": 4, "dropouts": 1}]}})
    run_scenario(scenario, tmp_path / "run", progress=False, measure=False)
    run = Run.open(tmp_path / "run")
    samples = {
        (cell.baseline, str(cell.axes.get("client.aggregate")), len(record.samples))
        for cell in run.cells()
        for record in run.records(cell=cell.id)
    }
    fewer = "clients=4 dropouts=1 skew=1.0"
    attacked = {(False, "1", 2), (False, "4", 8), (False, fewer, 6)}
    assert samples == attacked | {(True, "None", 2), (True, "None", 8)}
