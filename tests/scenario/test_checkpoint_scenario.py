"""Checkpoints as the first weights of an attack: found from the file, refused from the file, known by their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.models import build, draw_parameters
from leakscope.models.checkpoint import file_name, pack_checkpoint
from leakscope.scenario import ScenarioError, scenario_of
from leakscope.scenario.cell import read_settings
from leakscope.scenario.scenario import scenario_from_text
from leakscope.sweep.chunk import Chunk, expose_chunk
from leakscope.sweep.driver import unfold
from leakscope.sweep.objects import network_of


def network(**settings: object) -> Model:
    return build("resnet20", (1, 8, 8), 10, {"width": 2, **settings}, seed=1)


def write(directory: Path, number: int, shift: float = 0.0) -> Path:
    model = network()
    file = directory / file_name(number)
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value + shift + number / 1000 for name, value in model.parameters.items()}
    buffers = {name: value + 1 for name, value in model.buffers.items()}
    file.write_bytes(pack_checkpoint(model, weights, buffers, {"round": number}))
    return file


def scenario(**weights: Any) -> dict[str, Any]:
    return {
        "data": "digits",
        "model": {"name": "resnet20", "width": 2},
        "weights": {"name": "checkpoint", **weights},
        "attack": {"name": "ig", "iterations": 2},
        "trials": 2,
        "baselines": [],
    }


def ids(**weights: Any) -> list[str]:
    return [trial.id for trial in unfold(scenario_of(scenario(**weights))).trials]


def test_trials_start_from_the_weights_and_buffers_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 5)
    sweep = unfold(scenario_of(scenario(path=str(file))))
    settings: Any = sweep.cells[0].settings
    assert len(settings["weights"]["sha256"]) == 64
    typed = read_settings(settings)
    model = network_of(typed)
    drawn = draw_parameters(model, typed.weights, random.key([0]))
    assert torch.equal(drawn["head.bias"][0], network().parameters["head.bias"] + 0.005)
    assert torch.equal(model.buffers["norm.running_var"], network().buffers["norm.running_var"] + 1)
    seen = expose_chunk(Chunk("all", sweep.trials, {0: sweep.cells[0]})).observation
    assert torch.equal(seen.rounds[0].before["head.bias"][1], network().parameters["head.bias"] + 0.005)
    assert torch.equal(seen.rounds[0].buffers["norm.running_var"][0], model.buffers["norm.running_var"])


def test_a_trial_is_known_by_the_content_of_its_checkpoint(tmp_path: Path) -> None:
    file = write(tmp_path / "a", 5)
    first = ids(path=str(file))
    assert first == ids(path=str(tmp_path / "a"), round=5)
    copied = tmp_path / "elsewhere.safetensors"
    copied.write_bytes(file.read_bytes())
    assert first == ids(path=str(copied))
    write(tmp_path / "a", 5, shift=0.25)
    assert set(first).isdisjoint(ids(path=str(file)))


def test_rounds_are_an_axis_and_each_is_a_trial_of_its_own(tmp_path: Path) -> None:
    for number in (5, 10, 20):
        write(tmp_path, number)
    data = {**scenario(path=str(tmp_path), round=5), "grid": {"weights.round": [5, 10, 20]}}
    sweep = unfold(scenario_of(data))
    assert [cell.axes["weights.round"] for cell in sweep.cells] == [5, 10, 20]
    assert len({trial.id for trial in sweep.trials}) == 6
    prints = [cell.settings["weights"]["sha256"] for cell in sweep.cells]  # type: ignore[index]
    assert len(set(prints)) == 3


def test_a_file_that_changes_after_the_trials_were_named_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, 5)
    settings = unfold(scenario_of(scenario(path=str(file)))).cells[0].settings
    write(tmp_path, 5, shift=0.5)
    with pytest.raises(ValueError, match="content differs"):
        draw_parameters(network(), read_settings(settings).weights, random.key([0]))


def test_mistakes_are_told_with_their_line(tmp_path: Path) -> None:
    file = write(tmp_path, 5)
    text = (
        "data: digits\nmodel: {name: resnet20, width: 2, activation: tanh}\nattack: ig\n"
        f"weights:\n  name: checkpoint\n  path: {file}\n"
    )
    with pytest.raises(ScenarioError, match=r"s.yaml:4: weights: .*ReLU.*Tanh") as error:
        unfold(scenario_from_text(text, "s.yaml"))
    assert "\n" not in str(error.value)
    with pytest.raises(ScenarioError, match=r"s.yaml:4: weights: .*00006"):
        unfold(scenario_from_text(text.replace("00005", "00006"), "s.yaml"))
    with pytest.raises(ScenarioError, match=r"weights.path: missing"):
        scenario_from_text(text.replace(f"  path: {file}\n", ""), "s.yaml")
    with pytest.raises(ScenarioError, match=r"s.yaml:7: weights.rounds: .*'round'"):
        scenario_from_text(text + "  rounds: 5\n", "s.yaml")
