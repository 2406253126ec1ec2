"""A first dense layer behind a fixed scaling of the input is read as one that reads the input itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.attack import Attack
from leakscope.attacks.exact.scaled_entry import AtScaledEntry, read_scaled_entry
from leakscope.attacks.recipes import analytic, peeling
from leakscope.auditing.suite import plan_suite
from leakscope.clients import Client, attacker_knowledge
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take
from leakscope.core.types import Shares, make_batch
from leakscope.models import from_module
from leakscope.play import shared_weights

SHAPE = (3, 4, 4)
SCALING = Scaling((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


class Prepared(nn.Module):
    """A network of dense layers that prepares its inputs."""

    def __init__(self, prepare: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.prepare = prepare
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers(self.prepare(x))
        return output


def by_channel(x: Tensor) -> Tensor:
    return (x - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]


def network(prepare: Callable[[Tensor], Tensor], *, training: bool = False) -> Model:
    torch.manual_seed(0)
    module = Prepared(prepare)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer(torch.rand(8, *SHAPE))
    return from_module(module.train(training), input_shape=SHAPE)


@pytest.mark.parametrize("scaling", [Scaling(), SCALING])
@pytest.mark.parametrize(
    "prepare", [by_channel, lambda x: 4 * x - 1, nn.BatchNorm2d(3)], ids=["by channel", "one for all", "batch norm"]
)
@pytest.mark.parametrize(("attack", "number"), [(analytic(), 1), (peeling(), 6)], ids=["division", "peeling"])
def test_images_come_back_from_behind_a_fixed_scaling(
    prepare: Callable[[Tensor], Tensor], scaling: Scaling, attack: Attack, number: int
) -> None:
    model = network(prepare)
    images = torch.rand(2, number, *SHAPE, generator=torch.Generator().manual_seed(1))
    batch = make_batch(images, torch.arange(2 * number).reshape(2, number) % 3, classes=3)
    client = Client(scaling=scaling)
    seen = client.observe(model, shared_weights(model, 2), batch, [0, 1])
    knowledge = attacker_knowledge(model, client, batch)
    with pytest.raises(InputError, match="dense layer"):
        attack.run(model, seen, knowledge, [0, 1])
    result = AtScaledEntry(attack).run(model, seen, knowledge, [0, 1])
    nearest = torch.cdist(result.inputs.flatten(2), images.flatten(2)).min(1)
    assert_close(nearest.values, torch.zeros(2, number), rtol=0, atol=2e-3)
    assert result.proved is None or bool(result.proved.all())
    entries, untested = plan_suite(model, knowledge, None, steps=1, shares=Shares.GRADIENT)
    assert attack.name in {entry.name for entry in entries}
    assert "analytic" not in {item.what for item in untested}


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: x,
        lambda x: 1 - x,
        lambda x: x.flip(1),
        lambda x: x.square(),
        lambda x: x * 0,
        lambda x: x * torch.linspace(1, 2, 4),
        nn.AvgPool2d(3, 1, 1),
        nn.LayerNorm(SHAPE),
        nn.Dropout(0.5),
        nn.BatchNorm2d(3),
    ],
    ids=[
        "none",
        "inverted",
        "other order",
        "curved",
        "nothing",
        "by place",
        "pool",
        "layer norm",
        "dropout",
        "batch norm",
    ],
)
def test_no_other_preparation_is_taken_for_a_scaling(prepare: Callable[[Tensor], Tensor]) -> None:
    assert read_scaled_entry(network(prepare, training=True), SCALING) is None


def test_each_client_is_read_by_its_own_scaling_and_rounds_that_differ_are_refused() -> None:
    model = network(nn.BatchNorm2d(3))
    images = torch.rand(2, 1, *SHAPE, generator=torch.Generator().manual_seed(1))
    batch = make_batch(images, torch.tensor([[0], [1]]), classes=3)
    weights = shared_weights(model, 2)
    weights["prepare.weight"] = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
    seen = Client().observe(model, weights, batch, [0, 1])
    knowledge = attacker_knowledge(model, Client(), batch)
    result = AtScaledEntry(analytic()).run(model, seen, knowledge, [0, 1])
    assert_close(result.inputs, images, rtol=0, atol=1e-4)
    one, other = (take(seen, torch.tensor([t])) for t in (0, 1))
    with pytest.raises(InputError, match="from round to round"):
        AtScaledEntry(analytic()).run(model, replace(one, rounds=one.rounds + other.rounds), knowledge, [0])
