"""Objectives that wrap another one, named in a scenario file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))
from leakscope.attacks import Execution, cpl, defended, units
from leakscope.attacks.defended import Clipped, Rounded, Sent
from leakscope.attacks.distances import l1, l2
from leakscope.attacks.objectives import Match
from leakscope.attacks.units import GAINS, AtLeast, InNoiseUnits, PerGradient, Scaled, ToLength
from leakscope.scenario import scenario_of
from leakscope.scenario.catalogue import catalogue
from leakscope.scenario.components import KINDS
from leakscope.scenario.schema import check_cell
from leakscope.store import Run
from leakscope.sweep.chunk import Chunk, expose_chunk
from leakscope.sweep.driver import unfold
from sweeper import sweep

CELL: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "defences": [{"name": "random_mask", "share": 0.5}, {"name": "quantise", "bits": 6}],
    "knowledge": {"defence": True},
    "trials": 2,
    "baselines": [],
    "precision": {"form": "native"},
}
ARGUMENTS: dict[type, dict[str, float]] = {AtLeast: {"gain": 2.0, "least": 3.0}, ToLength: {"gain": 2.0, "length": 3.0}}
WRITTEN = {"name": "scaled", "gain": 100, "inner": {"name": "sent", "inner": {"name": "rounded", "pull": 0.1}}}
BUILT = Scaled(Sent(Rounded(Match(), 0.1)), 100.0)


def read(objective: Any) -> Any:
    settings, problems = check_cell({**CELL, "attack": {"name": "cpl", "objective": objective}})
    assert not problems
    assert settings is not None
    return KINDS["attack"].build(settings["attack"]).objective


def refused(objective: Any) -> tuple[tuple[str | int, ...], str]:
    _, [problem] = check_cell({**CELL, "attack": {"name": "cpl", "objective": objective}})
    return problem.path[2:], problem.message


@pytest.mark.parametrize("module", [defended, units])
def test_every_objective_and_gain_of_the_modules_can_be_read_from_a_file(module: Any) -> None:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    assert len(kinds) >= 5
    listed = {(kind, name) for kind, name, line in catalogue() if line}
    for make in kinds:
        kind = "gain" if make in GAINS.values() else "objective"
        piece = make(**ARGUMENTS.get(make, {}))
        settings = KINDS[kind].describe(piece)
        assert (kind, settings["name"]) in listed
        assert read({"name": "scaled", "gain": settings} if kind == "gain" else settings) == (
            Scaled(gain=piece) if kind == "gain" else piece
        )
        assert dataclasses.asdict(piece).keys() == settings.keys() - {"name"}


def test_wrappers_nest_as_they_do_in_python() -> None:
    nested = {"name": "in_noise_units", "slack": 0.5, "inner": {"name": "clipped", "inner": "l2"}}
    assert read(nested) == InNoiseUnits(Clipped(Match(l2)), 0.5)
    gain = {"name": "to_length", "length": 10, "gain": {"name": "at_least", "least": 2, "gain": "per_gradient"}}
    assert read({"name": "scaled", "inner": "l1", "gain": gain}) == Scaled(
        Match(l1), ToLength(AtLeast(PerGradient(), 2.0), 10.0)
    )


@pytest.mark.parametrize(
    ("objective", "path", "words"),
    [
        ({"name": "sent", "inner": {"name": "cliped"}}, ("inner",), "'cliped'; did you mean 'clipped'"),
        ({"name": "sent", "inner": {"name": "clipped", "iner": 1}}, ("inner", "iner"), "'iner'; did you mean 'inner'"),
        ({"name": "sent", "inner": {"name": "rounded", "pull": -3}}, ("inner", "pull"), "Rounded.pull must be in"),
        ({"name": "scaled", "gain": {"name": "at_leest"}}, ("gain",), "'at_leest'; did you mean 'at_least'"),
        ({"name": "scaled", "gain": True}, ("gain",), "must be a valid number, got True"),
        ({"name": "scaled", "gain": -1}, ("gain",), "Scaled.gain must be in (0, inf), got -1"),
    ],
)
def test_a_mistake_inside_is_shown_at_its_field(objective: Any, path: tuple[str, ...], words: str) -> None:
    place, message = refused(objective)
    assert place == path
    assert words in message


@pytest.mark.slow
def test_a_run_of_a_nested_objective_has_the_bits_of_the_python_objective(tmp_path: Path) -> None:
    scenario = scenario_of({**CELL, "attack": {"name": "cpl", "iterations": 2, "objective": WRITTEN}})
    assert sweep(tmp_path / "run", scenario).left == 0
    run = Run.open(tmp_path / "run")
    unfolded = unfold(scenario)
    chunk = Chunk("python", unfolded.trials, dict(enumerate(unfolded.cells)))
    exposure = expose_chunk(chunk)
    attack = cpl(iterations=2, objective=BUILT)
    rebuilt = attack.run(
        exposure.model, exposure.observation, exposure.known(informed=True), chunk.seeds, Execution(form="native")
    )
    for trial, inputs in zip(chunk.trials, rebuilt.inputs, strict=True):
        assert torch.equal(run.tensors(trial.id)["inputs"], inputs)
