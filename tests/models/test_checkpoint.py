"""Checkpoints: what was written comes back, and weights of another network are refused with one line that says why."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.models import INITS, build, draw_parameters, from_module
from leakscope.models.batch_norm import in_train_mode
from leakscope.models.checkpoint import Checkpoint, file_name, pack_checkpoint

KEYS = random.key([1, 2])


def resnet(**settings: object) -> Model:
    return build("resnet20", (1, 8, 8), 4, {"width": 2, **settings}, seed=3)


def written(directory: Path, model: Model, number: int = 5) -> Path:
    file = directory / file_name(number)
    file.parent.mkdir(parents=True, exist_ok=True)
    buffers = {n: b + 0.5 if b.is_floating_point() else b + 7 for n, b in model.buffers.items()}
    file.write_bytes(pack_checkpoint(model, model.parameters, buffers, {"round": number}))
    return file


def refusal(checkpoint: Checkpoint, model: Model) -> str:
    with pytest.raises(InputError) as error:
        checkpoint.load(model)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_weights_and_buffers_come_back_by_file_and_by_round(tmp_path: Path) -> None:
    trained, fresh = resnet(), build("resnet20", (1, 8, 8), 4, {"width": 2}, seed=9)
    file = written(tmp_path, trained)
    for checkpoint in (Checkpoint(str(file)), Checkpoint(str(tmp_path), 5), Checkpoint(str(file), 5)):
        loaded = checkpoint.load(fresh)
        assert all(torch.equal(loaded.parameters[n], v) for n, v in trained.parameters.items())
        assert torch.equal(loaded.buffers["norm.running_mean"], trained.buffers["norm.running_mean"] + 0.5)
        assert loaded.buffers["norm.num_batches_tracked"] == 7
    drawn = draw_parameters(fresh, INITS["checkpoint"](path=str(file)), KEYS)
    assert all(torch.equal(drawn[n][1], v) for n, v in trained.parameters.items())
    drawn["head.bias"][0] += 1
    assert torch.equal(drawn["head.bias"][1], trained.parameters["head.bias"])


def test_a_network_in_train_mode_and_one_with_dropout_are_the_same_network(tmp_path: Path) -> None:
    file = written(tmp_path, in_train_mode(resnet()))
    Checkpoint(str(file)).load(resnet())
    with_dropout = build("lenet_cpl", (1, 8, 8), 4, {"dropout": 0.5})
    file = written(tmp_path, with_dropout)
    Checkpoint(str(file)).load(build("lenet_cpl", (1, 8, 8), 4))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: resnet(activation="tanh"), r"ReLU\(\), .*Tanh\(\)"),
        (lambda: build("resnet20_dlg", (1, 8, 8), 4, {"width": 2, "activation": "relu"}), r"stride=\(2, 2\)"),
        (lambda: resnet(width=3), r"holds resnet20 \(1x8x8, 4"),
        (lambda: build("mlp", (1, 8, 8), 4), "it holds resnet20"),
        (lambda: build("resnet20", (1, 8, 8), 5, {"width": 2}), "out_features=4"),
    ],
)
def test_another_architecture_is_refused_even_where_all_shapes_agree(tmp_path: Path, other: object, said: str) -> None:
    assert callable(other)
    assert re.search(said, refusal(Checkpoint(str(written(tmp_path, resnet()))), other()))


def test_any_safetensors_file_with_the_right_names_will_do(tmp_path: Path) -> None:
    model = build("mlp", (4,), 3, {"hidden": (5,)})
    values = {name: torch.rand_like(value).double() for name, value in model.parameters.items()}
    save_file(values, tmp_path / "mine.safetensors")
    loaded = Checkpoint(str(tmp_path / "mine.safetensors")).load(model)
    assert loaded.parameters["head.bias"].dtype == torch.float32
    assert torch.equal(loaded.parameters["head.bias"], values["head.bias"].float())
    for change, said in (
        ({"head.bias": torch.zeros(4)}, r"mlp needs (3,)"),
        ({"head.bias": None}, "no head.bias"),
        ({"more": torch.zeros(1)}, "has more"),
        ({"head.bias": torch.full((3,), float("nan"))}, "'head.bias' holds NaN"),
    ):
        kept = {name: value for name, value in {**values, **change}.items() if value is not None}
        save_file(kept, tmp_path / "other.safetensors")
        assert said in refusal(Checkpoint(str(tmp_path / "other.safetensors")), model)


def test_private_parameters_are_neither_written_nor_asked_for(tmp_path: Path) -> None:
    model = replace(build("mlp", (4,), 3, {"hidden": (5,)}), private=frozenset({"head.weight", "head.bias"}))
    file = written(tmp_path, model)
    assert b"head.weight" not in file.read_bytes()
    assert Checkpoint(str(file)).load(model).parameters.keys() == model.parameters.keys()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    model = resnet()
    absent = refusal(Checkpoint(str(tmp_path / "none.safetensors")), model)
    assert f"no checkpoint {tmp_path / 'none.safetensors'}" in absent
    assert "Error" not in absent
    assert "rounds: none" in refusal(Checkpoint(str(tmp_path)), model)
    file = written(tmp_path, model)
    written(tmp_path, model, 20)
    assert "rounds: 5, 20" in refusal(Checkpoint(str(tmp_path), 6), model)
    assert "round 5, not" in refusal(Checkpoint(str(file), 6), model)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    assert "bad.safetensors is not" in refusal(Checkpoint(str(tmp_path / "bad.safetensors")), model)
    with pytest.raises(InputError, match=r"Checkpoint.path"):
        Checkpoint("")
    with pytest.raises(InputError, match=r"Checkpoint\.round must\b"):
        Checkpoint("a", -1)


def test_content_that_changed_is_refused(tmp_path: Path) -> None:
    model = resnet()
    file = written(tmp_path, model)
    held = replace(Checkpoint(str(file)), sha256=Checkpoint(str(file)).digest())
    held.load(model)
    moved = {name: value + 1 for name, value in model.parameters.items()}
    file.write_bytes(pack_checkpoint(model, moved, model.buffers, {"round": 5, "more": 1}))
    assert f"sha256 {held.sha256[:12]}" in refusal(held, model)


def test_a_model_without_layers_is_checked_by_its_tensors(tmp_path: Path) -> None:
    model = from_module(nn.Linear(4, 3), input_shape=(4,))
    file = written(tmp_path, model)
    bare = replace(model, apply=lambda p, b, x, k: (x @ p["weight"].T + p["bias"], b))
    Checkpoint(str(file)).load(bare)
