"""The line between two sets of weights: cosines against plain autograd, statistics, the shape that SME relies on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import take, to
from leakscope.core.types import LocalTraining
from leakscope.data import load
from leakscope.learning.losses import cross_entropy, one_hot
from leakscope.models import Torch, build, draw_parameters
from leakscope_papers.theory.line import Lines, cosines_on_line, describe, sample_lines
from leakscope_papers.theory.plane import shares_in_plane


def test_cosines_agree_with_plain_autograd() -> None:
    model = to(build("mlp", (1, 4, 4), 3, {"hidden": (5,)}), dtype=torch.float64)
    before, after = (take(to(draw_parameters(model, Torch(), random.key([s])), dtype=torch.float64), 0) for s in (1, 2))
    x, y = random.uniform(random.key(0), (4, 1, 4, 4), torch.float64), torch.tensor([0, 2, 1, 1])
    alphas = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    got = cosines_on_line(
        model, cross_entropy, before, after, {}, x, one_hot(y, 3, x.dtype), mask, alphas, random.key(0)
    )
    update = torch.cat([(before[n] - after[n]).flatten() for n in before])
    for alpha, cosine in zip(alphas, got, strict=True):
        own = {n: ((1 - alpha) * before[n] + alpha * after[n]).requires_grad_() for n in before}
        loss = F.cross_entropy(torch.func.functional_call(model.apply.module, own, (x[:3],)), y[:3])  # type: ignore[attr-defined]
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, own.values())])
        assert_close(cosine, F.cosine_similarity(slope, update, dim=0))


def played(local: LocalTraining, trials: int = 3, samples: int = 6) -> Lines:
    data = load("digits")
    model = build("mlp", (1, 8, 8), 10, {"hidden": (20,), "activation": "tanh"})
    index = torch.arange(trials * samples)
    inputs = data.pictures("test", index).unflatten(0, (trials, samples))
    labels = data.labels("test", index).unflatten(0, (trials, samples))
    keys = random.key(list(range(trials)))
    return sample_lines(model, local, draw_parameters(model, Torch(), keys), inputs, labels, keys)


def test_one_step_of_the_whole_batch_goes_along_its_gradient() -> None:
    lines = played(LocalTraining(epochs=1, rate=0.1))
    assert_close(lines.at_before, torch.ones_like(lines.at_before), atol=1e-5, rtol=0)
    assert lines.best_alpha.tolist() == [0.0] * 3
    assert_close(lines.shares, torch.ones_like(lines.shares))


def test_after_many_steps_the_best_place_is_inside_and_the_cosine_has_an_inverted_u() -> None:
    """Figure 4: rises from w0, falls towards wT, and is positive all the way."""
    lines = played(LocalTraining(epochs=20, rate=0.05))
    assert bool((lines.greatest > lines.at_before + 0.01).all())
    assert bool(((lines.best_alpha > 0) & (lines.best_alpha < 1)).all())
    assert bool((lines.cosines > 0).all())
    top = lines.cosines.argmax(1)
    for row, k in zip(lines.cosines, top.tolist(), strict=True):
        steps = row.diff()
        assert bool((steps[:k] > -2e-3).all())
        assert bool((steps[k:] < 2e-3).all())


def test_statistics_are_means_and_deviations_over_clients() -> None:
    lines = played(LocalTraining(epochs=4, batch_size=3, rate=0.2))
    rows = describe(lines)
    least = lines.shares.min(1).values.double()
    assert (rows["least_share"].mean, rows["least_share"].n) == (pytest.approx(float(least.mean())), 3)
    assert rows["least_share"].deviation == pytest.approx(float(least.std(correction=1)))
    assert rows["objective_error"].mean == pytest.approx(1 - rows["cosine_before"].mean)
    assert rows["cosine_greatest"].mean >= rows["cosine_before"].mean
    alone = Lines(lines.alphas, lines.shares[:1], lines.cosines[:1])
    assert describe(alone)["least_share"].deviation != describe(alone)["least_share"].deviation  # NaN: one says nothing


def test_clients_are_measured_as_if_alone() -> None:
    many = played(LocalTraining(epochs=2, batch_size=3, rate=0.2))
    data = load("digits")
    model = build("mlp", (1, 8, 8), 10, {"hidden": (20,), "activation": "tanh"})
    keys = random.key([1])
    inputs, labels = data.pictures("test", range(6, 12))[None], data.labels("test", range(6, 12))[None]
    one = sample_lines(
        model,
        LocalTraining(epochs=2, batch_size=3, rate=0.2),
        draw_parameters(model, Torch(), keys),
        inputs,
        labels,
        keys,
    )
    assert_close(one.shares[0], many.shares[1])
    assert_close(one.cosines[0], many.cosines[1])
    assert shares_in_plane(torch.eye(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_padding_changes_neither_shares_nor_cosines(momentum: float) -> None:
    """A client of 4 beside one of 12: two of its three steps an epoch have no example."""
    data, local = load("digits"), LocalTraining(epochs=4, batch_size=4, rate=0.3, momentum=momentum)
    model = build("mlp", (1, 8, 8), 10, {"hidden": (20,), "activation": "tanh"})
    keys = random.key([0, 1])
    weights = draw_parameters(model, Torch(), keys)
    inputs = data.pictures("test", range(24)).unflatten(0, (2, 12))
    labels = data.labels("test", range(24)).unflatten(0, (2, 12))
    mask = torch.stack([torch.ones(12, dtype=torch.bool), torch.arange(12) < 4])
    both = sample_lines(model, local, weights, inputs, labels, keys, mask=mask)
    small = {name: value[1:] for name, value in weights.items()}
    alone = sample_lines(model, local, small, inputs[1:, :4], labels[1:, :4], keys[1:])
    here = ~both.shares[1].isnan()
    assert here.tolist() == [True, False, False] * 4
    assert_close(both.shares[1][here], alone.shares[0], rtol=0, atol=1e-5)
    assert_close(both.least_share[1], alone.shares[0].min(), rtol=0, atol=1e-5)
    assert_close(both.mean_share[1], alone.shares[0].mean(), rtol=0, atol=1e-5)
    assert_close(both.cosines[1], alone.cosines[0], rtol=0, atol=1e-5)
    assert not bool(both.shares[0].isnan().any())


def test_a_client_without_a_step_has_no_share() -> None:
    lines = Lines(torch.tensor([0.0]), torch.tensor([[0.8, torch.nan], [torch.nan] * 2]), torch.ones(2, 1))
    assert_close(lines.least_share, torch.tensor([0.8, torch.nan]), equal_nan=True)
    assert_close(lines.mean_share, torch.tensor([0.8, torch.nan]), equal_nan=True)


def test_a_line_needs_two_places() -> None:
    model = build("linear", (4,), 2)
    with pytest.raises(InputError, match="at least 2"):
        sample_lines(
            model, LocalTraining(), {}, torch.zeros(1, 1, 4), torch.zeros(1, 1).long(), random.key([0]), points=1
        )
