"""The rank analysis against the rank of the whole matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.analysis.ranks import LayerRank, layer_rank

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def explicit_rank(layer: Layer, shape: tuple[int, ...], batch: int) -> int:
    """Return the rank of [outputs; weight gradients] as a matrix over all inputs of a batch, built column by column."""
    layer = layer.double()
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64)
    like = layer(torch.zeros(batch, *shape, dtype=torch.float64))
    derivative = torch.randn(like.shape, generator=generator, dtype=torch.float64)

    def output(x: Tensor, weight: Tensor) -> Tensor:
        values = {"weight": weight} | ({} if layer.bias is None else {"bias": torch.zeros_like(layer.bias)})
        return torch.func.functional_call(layer, values, (x.reshape(batch, *shape),))

    def equations(x: Tensor) -> Tensor:
        gradient = torch.func.grad(lambda w: (output(x, w) * derivative).sum())(weight)
        known = [output(x, weight), *([gradient] if layer.weight.requires_grad else [])]
        return torch.cat([each.flatten() for each in known])

    columns = torch.func.vmap(equations)(torch.eye(batch * torch.Size(shape).numel(), dtype=torch.float64))
    return int(torch.linalg.matrix_rank(columns, rtol=1e-10))


def from_shapes(layer: Layer, shape: tuple[int, ...], batch: int) -> LayerRank:
    entering = (2, *shape)
    leaving = tuple(layer(torch.zeros(entering, dtype=layer.weight.dtype)).shape)
    return layer_rank("layer", layer, entering, leaving, batch)


CASES = [
    (nn.Linear(6, 3), (6,), 1, 0),
    (nn.Linear(6, 3), (6,), 3, 0),
    (nn.Linear(6, 3), (6,), 5, 6),  # (6 - 3) (5 - 3): more examples than units
    (nn.Linear(6, 2), (4, 6), 1, 8),  # four tokens meet the weights
    (nn.Conv2d(2, 3, 1), (2, 3, 3), 1, 0),
    (nn.Conv2d(3, 2, 2, stride=2), (3, 4, 4), 1, 20),  # patches do not overlap: (12 - 2) (4 - 2)
    (nn.Conv2d(1, 2, 1, stride=2), (1, 4, 4), 1, 12),  # pixels that no kernel meets
    (nn.Conv2d(1, 4, 3, padding=1), (1, 4, 4), 1, 0),
    (nn.Conv2d(2, 2, 2, groups=2), (2, 3, 3), 1, 4),
    (nn.Conv1d(2, 1, 3, padding="same"), (2, 6), 1, 1),
    (nn.Conv3d(1, 2, 2), (1, 3, 2, 2), 1, 0),
]


@pytest.mark.parametrize(("layer", "shape", "batch", "left"), CASES)
def test_the_rank_from_shapes_is_that_of_the_matrix(
    layer: Layer, shape: tuple[int, ...], batch: int, left: int
) -> None:
    rank = from_shapes(layer, shape, batch)
    assert rank.unknowns == batch * torch.Size(shape).numel()
    assert rank.rank == explicit_rank(layer, shape, batch)
    assert rank.left == left


def test_a_frozen_layer_gives_its_outputs_alone() -> None:
    layer = nn.Linear(6, 2).requires_grad_(False)
    assert from_shapes(layer, (6,), 1).rank == explicit_rank(layer, (6,), 1) == 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_no_convolution_fixes_more_than_its_shapes_allow(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    channels, units, kernel, stride, padding = draw(1, 3), draw(1, 6), draw(1, 3), draw(1, 3), draw(0, 1)
    shape, batch = (channels, draw(3, 5), draw(3, 5)), draw(1, 2)
    assume(padding < kernel)
    layer = nn.Conv2d(channels, units, kernel, stride, padding)
    rank, true = from_shapes(layer, shape, batch), explicit_rank(layer, shape, batch)
    assert true <= rank.rank <= rank.unknowns
    if stride >= kernel and not padding:
        assert rank.rank == true
