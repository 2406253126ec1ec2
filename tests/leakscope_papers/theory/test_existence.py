"""Theorem 2.1 on layers of DLNet and AlexNet: the gradient's row, the direct solve, and bound (11)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.models.convolutional import alexnet
from leakscope.models.lenet import lenet_cpl
from leakscope_papers.theory.existence import dense_matrix, inspect_existence, layer_gradient, solve_input, split

LABEL = torch.tensor(1)


def network(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    module = (
        lenet_cpl(input_shape=(1, 8, 8), classes=4, width=8)
        if kind == "dlnet"
        else alexnet(input_shape=(1, 8, 8), classes=4, width=16, hidden=16, activation="tanh")
    )
    assert isinstance(module, nn.Sequential)
    return module.double()


def image(seed: int = 0) -> Tensor:
    return torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["dlnet", "alexnet"])
def test_a_convolution_is_the_dense_layer_of_its_stacked_kernels(kind: str) -> None:
    module = network(kind)
    _, layer, after = split(module, "conv1")
    matrix = dense_matrix(layer, (1, 8, 8))
    z = layer(image()[None])
    bias = layer.bias.repeat_interleave(z[0, 0].numel())  # type: ignore[union-attr]
    assert_close(matrix @ image().flatten() + bias, z.flatten())
    shared = torch.autograd.grad(cross_entropy(after(z), LABEL[None]), [layer.bias])[0]  # type: ignore[list-item]
    seen = layer_gradient(module, "conv1", image(), LABEL, cross_entropy)
    assert_close(seen.slope.reshape(len(shared), -1).sum(1), shared)  # a client shares the sum over places


@pytest.mark.parametrize(("kind", "layer"), [("dlnet", "conv2"), ("alexnet", "conv2")])
def test_the_direct_solve_finds_the_image_and_bound_11_holds_near_it(kind: str, layer: str) -> None:
    module, x = network(kind), image()
    found = inspect_existence(module, layer, x, LABEL, cross_entropy)
    assert (found.applies, found.rank) == (True, 64)
    seen, before = layer_gradient(module, layer, x, LABEL, cross_entropy), split(module, layer)[0]
    near = x + 1e-4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    assert_close(solve_input(before, seen.w, seen.b, near), x, rtol=0, atol=1e-7)
    other = layer_gradient(module, layer, near, LABEL, cross_entropy)
    b, w = other.slope[seen.unit], other.slope[seen.unit] * other.entering
    apart = ((w - seen.w).norm() ** 2 + (b - seen.b) ** 2).sqrt()
    assert float((x - near).norm()) <= 1.01 * found.constant * float(apart)


def test_the_first_layer_always_applies_and_few_features_never_do() -> None:
    module = network("dlnet")
    first = inspect_existence(module, "conv1", image(), LABEL, cross_entropy)
    assert (first.applies, first.rank, first.condition) == (True, 64, pytest.approx(1.0))
    last = inspect_existence(module, "head", image(), LABEL, cross_entropy)
    assert (last.applies, last.features, last.condition, last.constant) == (False, 32, math.inf, math.inf)
    with pytest.raises(InputError):
        split(module, "conv9")
    with pytest.raises(InputError):
        dense_matrix(nn.MaxPool2d(2), (1, 8, 8))
