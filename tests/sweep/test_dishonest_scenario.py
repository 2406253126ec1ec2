"""Manipulations as the attacks of a scenario: they are played, they misfit in one line, and pages name their threat model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from leakscope.core.registry import summary
from leakscope.report.threat import CHOSEN, threat_of
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.servers.catalogue import MANIPULATIONS
from leakscope.store import Run
from leakscope.sweep import run_scenario

EXAMPLE = Path(__file__).parents[2] / "examples" / "dishonest_server.yaml"
PLAYED: dict[str, Any] = {
    "name": "dishonest",
    "data": {"name": "digits", "samples": 4},
    "model": {"name": "mlp", "hidden": [40]},
    "attacks": ["analytic", "imprint", {"name": "loki", "clients": 2, "units": 32}],
    "client": {"aggregate": 2},
    "trials": 2,
    "baselines": ["class_mean"],
}


@pytest.mark.slow
def test_a_scenario_plays_manipulations_on_clients_that_get_their_weights(tmp_path: Path) -> None:
    run_scenario(scenario_of(PLAYED), tmp_path / "run", progress=False, measure=False)
    run = Run.open(tmp_path / "run")
    mse = {
        str(cell.settings["attack"]["name"]): min(
            each.mse for record in run.records(cell=cell.id) for each in record.samples
        )  # type: ignore[index, call-overload]
        for cell in run.cells()
    }
    assert mse["imprint"] < 1e-4 < mse["class_mean"]
    assert mse["loki"] < 1e-2
    threat = threat_of([*run.cells()])
    assert "G (Data-Enhanced Manipulator)" in threat.words
    assert CHOSEN in threat.mixed  # analytic does not choose them


def test_the_example_shows_a_dishonest_server_and_noise_that_stops_it(tmp_path: Path) -> None:
    file = yaml.safe_load(EXAMPLE.read_text())
    file["data"]["samples"], file["model"]["hidden"], file["trials"] = 12, [64], 2
    noises = [float(each) for each in file["grid"]["defences.1.sigma"]]
    file["grid"]["defences.1.sigma"] = [noises[0], noises[-1]]
    run_scenario(scenario_of(file), tmp_path / "run", progress=False, measure=False)
    run, shares = Run.open(tmp_path / "run"), {}
    for cell in run.cells():
        samples = [each for record in run.records(cell=cell.id) for each in record.samples]
        if "defences" in cell.settings:  # not of a baseline
            key = cell.settings["attack"]["name"], cell.settings["defences"][1]["sigma"]  # type: ignore[index, call-overload]
            shares[key] = sum(each.mse < 1e-4 for each in samples) / len(samples)
    assert shares["imprint", 0] > 0.5 > shares["analytic", 0]
    assert shares["imprint", noises[-1]] == shares["analytic", noises[-1]] == 0


def test_a_page_says_of_every_manipulation_what_it_does_to_the_weights() -> None:
    words = threat_of([*scenario_of(PLAYED).cells()]).server
    assert "curious" in words
    assert all(words.count(f"{name}: {summary(MANIPULATIONS[name])}.") == 1 for name in ("imprint", "loki"))
    curious = threat_of([*scenario_of({**PLAYED, "attacks": ["analytic"]}).cells()]).server
    assert not any(f"{name}: " in curious for name in MANIPULATIONS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "cnn_mnist"}, "imprint can insert one"),
        ({"client": {"aggregate": 4}}, "loki is made for clients=2"),
        ({"attacks": [{"name": "fishing", "target": 10}]}, "below 10 classes"),
        ({"attacks": ["decepticons"]}, "is for sentences"),
        ({"attacks": [{"name": "imprint", "inserted": 1}]}, "at least 2 units"),
    ],
)
def test_a_manipulation_that_does_not_fit_says_why(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=why):
        run_scenario(scenario_of({**PLAYED, **change}), tmp_path / "run", progress=False, measure=False)
