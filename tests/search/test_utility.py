"""Training for utility: the published schedule, torch's own steps, resume to the same bits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.models import build
from leakscope.models.checkpoint import Checkpoint
from leakscope.search import utility
from leakscope.search.utility import Epoch, Examples, Recipe, Schedule, load_trained, train_network

SHORT = Schedule(epochs=4, batch=40, rate=0.1, milestones=(2,))
SMALL = Recipe("lenet_dlg", (("activation", "relu"), ("width", 4)), Transform("7", crop=1, flip=True), SHORT)


def digits(number: int = 160) -> Examples:
    data = load("digits")
    return Examples(
        torch.from_numpy(data.x_train[:number].copy()),
        data.labels("train", range(number)),
        torch.from_numpy(data.x_test[:60].copy()),
        data.labels("test", range(60)),
        10,
        Scaling((0.3,), (0.4,)),
    )


def test_the_schedule_is_the_papers() -> None:
    rates = [Schedule().rate_at(e) for e in (0, 74, 75, 124, 125, 174, 175, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])
    assert (Schedule().batch, Schedule().momentum, Schedule().weight_decay) == (128, 0.9, 5e-4)
    assert Schedule().shortened(50).milestones == (18, 31, 43)


def test_it_learns_and_a_cut_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    seen: list[Epoch] = []
    whole = train_network(SMALL, digits(), directory=tmp_path / "a", watch=seen.append)
    assert [epoch.number for epoch in seen] == [0, 1, 2, 3]
    assert whole.history[-1].loss < whole.history[0].loss
    train_network(SMALL, digits(), directory=tmp_path / "b", epochs=3)
    more = train_network(SMALL, digits(), directory=tmp_path / "b")
    assert more.history == whole.history
    for name, value in whole.model.parameters.items():
        assert torch.equal(value, more.model.parameters[name])
    loaded = load_trained(SMALL, digits(), tmp_path / "b")
    assert loaded is not None
    assert loaded.history == whole.history
    assert all(torch.equal(v, loaded.model.parameters[n]) for n, v in whole.model.parameters.items())
    assert load_trained(SMALL, digits(), tmp_path / "c") is None
    again = Checkpoint(str(tmp_path / "a" / "weights.safetensors")).load(
        build("lenet_dlg", (1, 8, 8), 10, dict(SMALL.settings))
    )
    assert all(torch.equal(v, again.parameters[n]) for n, v in whole.model.parameters.items())


def test_a_step_is_nesterovs_with_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(SMALL, transform=Transform(), schedule=Schedule(epochs=1, batch=160, rate=0.05))
    data = digits()
    module = utility._begin(recipe, data)
    x = data.scaling.scale(data.x_train.float() / 255, 3)
    gradients = torch.autograd.grad(F.cross_entropy(module(x), data.y_train), list(module.parameters()))
    trained = train_network(recipe, data).model.parameters
    for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
        # the first Nesterov step moves by g + 0.9 g
        moved = before - 0.05 * 1.9 * (gradient + 5e-4 * before)
        torch.testing.assert_close(trained[name], moved.detach(), atol=1e-6, rtol=1e-4)


def test_convolutions_begin_with_kaimings_fan_out() -> None:
    recipe = replace(SMALL, network="resnet20", settings=(("width", 16),))
    module = utility._begin(recipe, digits())
    weight = module.get_submodule("stage3.1.conv1").weight
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)
    assert float(module.get_submodule("norm").weight.detach().min()) == 1


def test_batch_norm_statistics_reach_the_model() -> None:
    recipe = replace(SMALL, network="convnet", settings=(("width", 1),), schedule=replace(SHORT, epochs=1))
    data = load("fashion_mnist")
    examples = Examples(
        torch.from_numpy(data.x_train[:80].copy()), data.labels("train", range(80)),
        torch.from_numpy(data.x_test[:40].copy()), data.labels("test", range(40)), 10,
    )  # fmt: skip
    made = train_network(recipe, examples).model
    assert (made.buffers["norm1.running_mean"] != 0).any()


def test_the_share_is_drawn_once_and_kept() -> None:
    data = digits()
    small = utility._on(data, replace(SMALL, share=0.25), "cpu")
    assert len(small.x_train) == 40
    assert torch.equal(small.y_train, utility._on(data, replace(SMALL, share=0.25), "cpu").y_train)
    assert not torch.equal(small.y_train, utility._on(data, replace(SMALL, share=0.25, seed=1), "cpu").y_train)


def test_another_training_or_a_broken_file_is_refused(tmp_path: Path) -> None:
    short = replace(SMALL, schedule=replace(SHORT, epochs=1))
    train_network(short, digits(), directory=tmp_path)
    for other in (replace(short, seed=1), replace(short, transform=Transform("8"))):
        with pytest.raises(InputError, match="holds another training"):
            train_network(other, digits(), directory=tmp_path)
    (tmp_path / "network.safetensors").write_bytes(b"nonsense" * 9)
    with pytest.raises(InputError, match="readable checkpoint"):
        train_network(short, digits(), directory=tmp_path)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"share .*in"):
        Recipe(share=0)
    with pytest.raises(InputError, match="epochs and batch"):
        Schedule(epochs=0)
    with pytest.raises(InputError, match=r"rate .*above 0"):
        Schedule(rate=0)
    with pytest.raises(InputError, match="must be bytes"):
        replace(digits(), x_train=torch.zeros(2, 1, 8, 8))
