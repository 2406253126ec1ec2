"""ResNet20 normalised by the batch at hand: what a module in train mode computes, under vmap, and why DLG's variant needs it."""

from __future__ import annotations

import pytest
import torch

from leakscope.core import random
from leakscope.models import Torch, build, draw_parameters
from leakscope.models.resnet import resnet20, resnet20_dlg


@pytest.mark.parametrize("make", [resnet20, resnet20_dlg])
def test_it_computes_what_a_module_in_train_mode_computes(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    always, usual = make(width=4, batch_statistics=True), make(width=4)
    usual.load_state_dict(always.state_dict(), strict=False)
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(always.eval()(x), usual.train()(x))


def squared_distance(**settings: bool) -> float:
    """Return how far the gradients of two pictures of one class are apart."""
    model = build("resnet20_dlg", (3, 32, 32), 10, {"width": 4, **settings})
    weights = {n: w[0] for n, w in draw_parameters(model, Torch(), random.key([0])).items()}
    pictures = torch.rand(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        output, _ = model.apply(weights, dict(model.buffers), x, random.key(0))
        return torch.nn.functional.cross_entropy(output, torch.tensor([3]))

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, pictures)
    return float(sum((g[0] - g[1]).square().sum() for g in gradients.values()))


def test_sigmoids_wash_the_picture_out_unless_the_batch_normalises() -> None:
    assert squared_distance() < 1e-8
    assert squared_distance(batch_statistics=True) > 1e-3
