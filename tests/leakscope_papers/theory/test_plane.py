"""Shares of gradients in the best plane: against a dense SVD, and the path against the client's own training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.tree import take, to
from leakscope.core.types import LocalTraining
from leakscope.learning.local import draw_order, train
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import Torch, build, draw_parameters
from leakscope_papers.theory.plane import full_gradients, local_path, off_plane, shares_in_plane

KEY = random.key(5)


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 8), columns=st.integers(1, 12), seed=st.integers(0, 999), rank=st.integers(1, 3))
def test_shares_are_those_of_a_dense_svd(rows: int, columns: int, seed: int, rank: int) -> None:
    gradients = random.normal(random.key(seed), (rows, columns), torch.float64)
    rank = min(rank, rows)
    _, _, right = torch.linalg.svd(gradients, full_matrices=False)
    plane = right[:rank]
    slow = (gradients @ plane.T).norm(dim=1) / gradients.norm(dim=1)
    assert_close(shares_in_plane(gradients, rank=rank), slow, rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), scale=st.floats(1e-6, 1e6))
def test_gradients_of_a_plane_lie_in_it_whatever_their_scale(seed: int, scale: float) -> None:
    basis, mix = (
        random.normal(random.key(seed), (2, 9), torch.float64),
        random.normal(random.key(seed + 1), (6, 2), torch.float64),
    )
    gradients = scale * mix @ basis
    assert_close(shares_in_plane(gradients), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-7)
    assert float(off_plane(shares_in_plane(gradients))) < 1e-3  # a root of what rounding leaves
    turned = torch.linalg.qr(random.normal(random.key(seed + 2), (9, 9), torch.float64)).Q
    tilted = gradients + 0.1 * scale * random.normal(random.key(seed + 3), (6, 9), torch.float64)
    assert_close(shares_in_plane(tilted @ turned), shares_in_plane(tilted), rtol=1e-7, atol=1e-7)


def test_the_worst_share_is_g2() -> None:
    shares = torch.tensor([[1.0, 0.8, 0.9], [1.0, 1.0, 1.0]])
    assert_close(off_plane(shares), torch.tensor([0.6, 0.0]))
    padded = torch.cat([shares, torch.full((2, 2), torch.nan)], 1)  # steps of padding: see `sample_lines`
    assert_close(off_plane(padded), off_plane(shares))
    assert shares_in_plane(torch.zeros(3, 4)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(epochs=3, batch_size=2, rate=0.1),
        LocalTraining(epochs=2, batch_size=2, rate=0.1, momentum=0.9),
        LocalTraining(epochs=2, batch_size=3, rate=0.01, optimiser="adam"),
        LocalTraining(epochs=2, batch_size=2, rate=0.1, proximal=0.5),
    ],
    ids=["sgd", "momentum", "adam", "proximal"],
)
def test_the_path_is_the_clients_training(local: LocalTraining) -> None:
    model = to(build("mlp", (1, 4, 4), 3, {"hidden": (5,)}), dtype=torch.float64)
    weights = take(to(draw_parameters(model, Torch(), random.key([1])), dtype=torch.float64), 0)
    x, y = random.uniform(KEY, (5, 1, 4, 4), torch.float64), torch.tensor([0, 1, 2, 1, 0])
    targets, mask = one_hot(y, 3, torch.float64), torch.ones(5, dtype=torch.bool)
    order = draw_order(local, 5, KEY)
    path = local_path(model, cross_entropy, local, weights, {}, x, targets, mask, order, KEY)
    assert len(path) == order.shape[0] + 1
    for step in (1, len(path) - 1):
        after, _ = train(model, cross_entropy, local, weights, {}, x, targets, mask, order[:step], KEY)
        assert_close(path[step], after)
    rows = full_gradients(model, cross_entropy, path[:2], {}, x, targets, mask, KEY)
    module = model.apply.module  # type: ignore[attr-defined]
    for row, point in zip(rows, path, strict=False):
        own = {n: v.clone().requires_grad_() for n, v in point.items()}
        loss = F.cross_entropy(torch.func.functional_call(module, own, (x,)), y)
        slow = torch.cat([g.flatten() for g in torch.autograd.grad(loss, own.values())])
        assert_close(row, slow)
