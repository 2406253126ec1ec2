"""Metrics that compare with public examples and the attacked network: slow versions, the null, edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.metrics import (
    METRICS,
    Context,
    ContextMetric,
    Direction,
    iip_pixels,
    rank_pixels,
    rdlv,
    score,
    ssim,
    trial_means,
)

TABLE = {name: metric for name, metric in METRICS.items() if isinstance(metric, ContextMetric)}
every_metric = pytest.mark.parametrize("metric", TABLE.values(), ids=TABLE)
T, N, CLASSES, SHAPE = 3, 4, 2, (1, 12, 12)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(trial: int, inputs: Tensor) -> Tensor:
    """Another network for each trial."""
    return torch.tanh(inputs.flatten(1) @ (draw(90 + trial, 144, 5) - 0.5))


def context(public: int = 60) -> Context:
    labels = torch.arange(T * N).reshape(T, N) % CLASSES
    return Context(labels, draw(7, public, *SHAPE), torch.arange(public) % CLASSES, features)


TRUTH = draw(0, T, N, *SHAPE)
NOISE = draw(1, T, N, *SHAPE) - 0.5


def slow_rank(metric: str, truth: Tensor, guess: Tensor, seen: Context, trial: int, sample: int) -> float:
    def view(x: Tensor) -> list[float]:
        return [float(v) for v in (features(trial, x[None])[0] if metric.endswith("features") else x.flatten())]

    own = math.dist(view(guess[trial, sample]), view(truth[trial, sample]))
    label = int(seen.labels[trial, sample])
    candidates = [x for x, y in zip(seen.public, seen.public_labels.tolist(), strict=True) if y == label][:99]
    return sum(math.dist(view(guess[trial, sample]), view(x)) <= own for x in candidates) / len(candidates)


def slow(metric: str, truth: Tensor, guess: Tensor, seen: Context, trial: int, sample: int) -> float:
    x, y, label = truth[trial, sample], guess[trial, sample], seen.labels[trial, sample]
    if metric == "rdlv":
        mean = seen.public[seen.public_labels == label].mean(0)
        before, after = float(ssim(x[None], mean[None])), float(ssim(x[None], y[None]))
        return (after - before) / max(before, 0.01)
    if metric == "feature_distance":
        a, b = features(trial, x[None])[0], features(trial, y[None])[0]
        return math.dist(a.tolist(), b.tolist()) / math.hypot(*a.tolist())
    rank = slow_rank(metric, truth, guess, seen, trial, sample)
    return float(rank == 0) if metric.startswith("iip") else rank


@every_metric
@pytest.mark.parametrize("level", [0.1, 0.7, 1.5])
def test_agrees_with_a_slow_obvious_version(metric: ContextMetric, level: float) -> None:
    guess, seen = (TRUTH + level * NOISE).clamp(0, 1), context(30)
    expected = [[slow(metric.name, TRUTH, guess, seen, t, n) for n in range(N)] for t in range(T)]
    assert_close(metric.function(TRUTH, guess, seen), torch.tensor(expected, dtype=torch.float64))


@every_metric
def test_the_truth_is_best_and_an_unrelated_guess_worse(metric: ContextMetric) -> None:
    seen = context()
    best, other = metric.function(TRUTH, TRUTH.clone(), seen), metric.function(TRUTH, draw(3, *TRUTH.shape), seen)
    if metric.best is not None:
        assert_close(best, torch.full_like(best, metric.best))
    better = best.mean() < other.mean() if metric.direction is Direction.LOWER else best.mean() > other.mean()
    assert bool(better)


@every_metric
def test_one_value_per_example_in_the_dtype_of_the_input_which_is_left_alone(metric: ContextMetric) -> None:
    truth, guess = TRUTH.float(), (TRUTH + 0.1 * NOISE).float()
    before = truth.clone(), guess.clone()
    seen = context()
    single = Context(seen.labels, seen.public.float(), seen.public_labels, lambda t, x: features(t, x.double()).float())
    values = metric.function(truth, guess, single)
    assert (values.shape, values.dtype) == ((T, N), torch.float32)
    assert torch.equal(values, metric.function(truth, guess, single))
    assert torch.equal(truth, before[0])
    assert torch.equal(guess, before[1])


@every_metric
def test_a_trial_by_itself_has_the_same_values(metric: ContextMetric) -> None:
    guess, seen = TRUTH + 0.3 * NOISE, context()
    alone = Context(seen.labels[1:2], seen.public, seen.public_labels, lambda t, x: features(t + 1, x))
    assert_close(metric.function(TRUTH[1:2], guess[1:2], alone)[0], metric.function(TRUTH, guess, seen)[1])


def test_a_guess_that_knows_only_the_class_ranks_by_chance() -> None:
    """The null that the docstring derives: uniform ranks, an IIP of 1 / (K + 1)."""
    trials, classes, K = 1000, 500, 9
    labels = torch.arange(trials)[:, None] % classes
    truth, guess = draw(20, trials, 1, 1, 4, 4), draw(21, trials, 1, 1, 4, 4)
    seen = Context(labels, draw(22, K * classes, 1, 4, 4), torch.arange(K * classes) % classes)
    assert abs(float(rank_pixels(truth, guess, seen).mean()) - 0.5) < 0.03
    assert abs(float(iip_pixels(truth, guess, seen).mean()) - 1 / (K + 1)) < 0.03


def test_a_public_copy_of_the_private_example_is_no_candidate() -> None:
    seen = context()
    seen.public[0] = TRUTH[0, 0]  # of class 0, as the example is
    assert float(iip_pixels(TRUTH, TRUTH, seen)[0, 0]) == 1.0


def test_a_flat_prior_does_not_make_the_gain_infinite() -> None:
    x = torch.zeros(1, 1, 1, 12, 12, dtype=torch.float64)
    x[..., ::2] = 1
    seen = Context(torch.zeros(1, 1, dtype=torch.int64), 1 - x[0], torch.zeros(1, dtype=torch.int64))
    assert 0 < float(rdlv(x, x, seen)) < 300


def test_a_class_without_public_examples_and_a_missing_network_are_refused() -> None:
    seen = context()
    with pytest.raises(InputError, match="class 1"):
        iip_pixels(TRUTH, TRUTH, Context(seen.labels, seen.public[:1], seen.public_labels[:1]))
    with pytest.raises(InputError, match="network"):
        TABLE["iip_features"].function(TRUTH, TRUTH, Context(seen.labels, seen.public, seen.public_labels))


def test_means_leave_out_what_has_no_context_or_no_network() -> None:
    seen = context()
    scores = score(TRUTH, seen.labels, TRUTH, None)
    names = ["ms_ssim", *TABLE]
    assert list(trial_means(names, TRUTH, TRUTH, scores)) == ["ms_ssim"]
    assert set(trial_means(names, TRUTH, TRUTH, scores, seen)) == set(names)
    baseline = Context(seen.labels, seen.public, seen.public_labels)
    with_public = {name for name, metric in TABLE.items() if not metric.network}
    assert set(trial_means(names, TRUTH, TRUTH, scores, baseline)) == {"ms_ssim", *with_public}
