"""The values that cross the walls: what a batch must be, and how an update reads as a gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, take
from leakscope.core.types import (
    Batch,
    Knowledge,
    LocalTraining,
    Observation,
    Outcome,
    Reconstruction,
    Round,
    Shares,
    direction,
    make_batch,
    to_gradient,
)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def tree(seed: int, trials: int = 2) -> Tree:
    return {"a": draw(seed, trials, 3), "b": draw(seed + 1, trials, 2, 2)}


def pictures() -> Tensor:
    return draw(0, 2, 3, 1, 4, 4)


LABELS = torch.tensor([[0, 1, 2], [2, 2, 0]])


# -- batches


def test_a_good_batch_is_kept_as_it_is() -> None:
    batch = make_batch(pictures(), LABELS.to(torch.int32), classes=3)
    assert torch.equal(batch.inputs, pictures())
    assert batch.labels.dtype == torch.int64
    assert torch.equal(batch.labels, LABELS)
    assert batch.mask.dtype == torch.bool
    assert batch.mask.all()
    assert (batch.trials, batch.samples) == (2, 3)


def test_a_mask_of_numbers_becomes_one_of_truths() -> None:
    batch = make_batch(pictures(), LABELS, classes=3, mask=torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert batch.mask.tolist() == [[True, True, False], [True, False, False]]


def test_tables_are_batches_too() -> None:
    assert make_batch(draw(0, 2, 3, 5), LABELS, classes=3).samples == 3


def spoiled(value: float) -> Tensor:
    x = pictures()
    x[1, 2, 0, 3, 3] = value
    return x


BAD: dict[str, tuple[Callable[[], Batch], str]] = {
    "no trial dimension": (lambda: make_batch(draw(0, 3, 4), LABELS[0], classes=3), "T x N"),
    "labels of another shape": (lambda: make_batch(pictures(), LABELS[:, :2], classes=3), "T x N"),
    "mask of another shape": (lambda: make_batch(pictures(), LABELS, classes=3, mask=torch.ones(2, 2)), "mask"),
    "no trial": (lambda: make_batch(pictures()[:0], LABELS[:0], classes=3), "empty batch"),
    "no sample": (lambda: make_batch(pictures()[:, :0], LABELS[:, :0], classes=3), "empty batch"),
    "a trial all masked": (
        lambda: make_batch(pictures(), LABELS, classes=3, mask=torch.tensor([[1, 1, 1], [0, 0, 0]])),
        "empty batch",
    ),
    "not a number": (lambda: make_batch(spoiled(float("nan")), LABELS, classes=3), "NaN or infinity"),
    "infinite": (lambda: make_batch(spoiled(float("inf")), LABELS, classes=3), "NaN or infinity"),
    "above the box": (lambda: make_batch(spoiled(1.01), LABELS, classes=3), r"\[0, 1\].*1\.01"),
    "below the box": (lambda: make_batch(spoiled(-0.01), LABELS, classes=3), r"\[0, 1\].*-0\.01"),
    "bytes of pictures": (lambda: make_batch(255 * pictures(), LABELS, classes=3), r"\[0, 1\]"),
    "labels as floats": (lambda: make_batch(pictures(), LABELS.float(), classes=3), "whole numbers"),
    "label too high": (lambda: make_batch(pictures(), LABELS, classes=2), r"0\.\.1.*got 0\.\.2"),
    "label below 0": (lambda: make_batch(pictures(), LABELS - 1, classes=3), r"got -1\.\.1"),
    "inputs that are whole numbers": (
        lambda: make_batch(pictures().round().to(torch.uint8), LABELS, classes=3),
        "float",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_bad_batch_is_refused_in_one_line_that_names_the_rule(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


# -- updates


def test_a_gradient_is_its_own_direction_and_weights_give_before_minus_after() -> None:
    seen = Round(tree(0), {}, tree(4))
    assert direction(seen, Shares.GRADIENT) is seen.sent
    expected = {name: seen.before[name] - seen.sent[name] for name in seen.sent}
    assert_close(direction(seen, Shares.WEIGHTS), expected, rtol=0, atol=0)


def test_a_direction_has_the_names_that_were_sent() -> None:
    seen = Round(tree(0), {}, {"b": tree(4)["b"]})
    assert set(direction(seen, Shares.WEIGHTS)) == {"b"}


@settings(deadline=None, max_examples=20)
@given(rate=st.floats(1e-3, 10), seed=st.integers(0, 100))
def test_to_gradient_undoes_one_step_of_descent(rate: float, seed: int) -> None:
    before, gradient = ({n: v.double() for n, v in tree(s).items()} for s in (seed, seed + 7))
    after = {name: before[name] - rate * gradient[name] for name in before}
    sent = Observation((Round(before, {}, after), Round(after, {}, before)), Shares.WEIGHTS, torch.ones(2))
    made = to_gradient(sent, rate)
    assert made.shares is Shares.GRADIENT
    assert_close(made.rounds[0].sent, gradient, rtol=1e-8, atol=1e-8)
    assert_close(made.rounds[1].sent, {n: -g for n, g in gradient.items()}, rtol=1e-8, atol=1e-8)
    assert made.rounds[0].before is before


def test_a_gradient_needs_no_rate_to_be_one() -> None:
    sent = Observation((Round(tree(0), {}, tree(4)),), Shares.GRADIENT, torch.ones(2))
    assert to_gradient(sent, 0.0) is sent


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_weights_without_a_rate_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="learning rate above 0"):
        to_gradient(Observation((Round(tree(0), {}, tree(4)),), Shares.WEIGHTS, torch.ones(2)), rate)


def test_an_observation_counts_its_trials() -> None:
    assert Observation((Round(tree(0, 5), {}, tree(1, 5)),), Shares.GRADIENT, torch.ones(5)).trials == 5


# -- local training


@settings(deadline=None, max_examples=60)
@given(samples=st.integers(1, 30), size=st.one_of(st.none(), st.integers(1, 40)), epochs=st.integers(1, 4))
def test_steps_are_those_of_a_loop_over_slices(samples: int, size: int | None, epochs: int) -> None:
    walked = sum(1 for _ in range(epochs) for _ in range(0, samples, size or samples))
    assert LocalTraining(epochs=epochs, batch_size=size).steps(samples) == walked


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"optimiser": "lion"},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -0.1},
        {"weight_decay": float("nan")},
        {"rate": float("inf")},
        {"weight_decay": float("inf")},
        {"epochs": 1.5},
        {"epochs": 2.0},
        {"batch_size": 2.5},
        {"batch_size": float("inf")},
        {"optimiser": "adam", "momentum": 0.9},
    ],
)
def test_local_training_that_makes_no_sense_is_refused_by_the_name_of_its_field(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"LocalTraining.*{list(given)[-1]}"):
        LocalTraining(**given)


# -- all of them


def test_values_cannot_be_changed() -> None:
    values = (
        make_batch(pictures(), LABELS, classes=3),
        Observation((), Shares.GRADIENT, torch.ones(1)),
        Round({}, {}, {}),
        LocalTraining(),
        Knowledge((1,), 2, 1),
        Reconstruction(*[torch.zeros(3, 2)] * 11),
    )
    for value in values:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)


def test_the_attacker_is_told_nothing_unless_someone_tells() -> None:
    optional = ("labels", "local", "order", "public", "mask", "bound", "bits", "sigma")
    assert all(getattr(Knowledge((1,), 2, 1), name) is None for name in optional)


def test_trials_of_a_reconstruction_are_taken_together() -> None:
    whole = Reconstruction(*[draw(i, 3, 2) for i in range(11)])
    part = take(whole, torch.tensor([2, 0]))
    assert part.trials == 2
    assert torch.equal(part.mismatch, whole.mismatch[[2, 0]])


def test_outcomes_keep_their_numbers_because_records_hold_them() -> None:
    assert [(o.name, int(o)) for o in Outcome] == [
        ("RUNNING", 0),
        ("CONVERGED", 1),
        ("EXHAUSTED", 2),
        ("STALLED", 3),
        ("DIVERGED", 4),
        ("PROVED", 5),
    ]
