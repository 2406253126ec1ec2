"""Membership: the share of wrong labels, counted by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.inference.membership import classified, membership
from leakscope.models import Uniform, build, draw_parameters


def test_it_is_the_share_of_wrong_labels_after_pairing() -> None:
    truth = torch.rand(3, 4, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1], [2, 0, 2, 0]])
    order = torch.tensor([3, 1, 0, 2])
    guess, said = truth[:, order], labels[:, order].clone()
    said[0, 0] = 5  # the guess of sample 3
    said[2, :2] = torch.tensor([7, 7])
    made = membership(truth, labels, guess, said, classes=10)
    assert_close(made.each, torch.tensor([0.25, 0.0, 0.5], dtype=torch.float64))
    assert made.distance.value == pytest.approx(3 / 12)
    assert (made.distance.n, made.distance.trials) == (12, 3)
    assert made.distance.low < 0.25 < made.distance.high
    assert made.chance == 0.9


def test_padding_does_not_count() -> None:
    truth, labels = torch.rand(1, 2, 1, 4, 4), torch.tensor([[3, 4]])
    made = membership(truth, labels, truth, torch.tensor([[3, 9]]), classes=10, mask=torch.tensor([[True, False]]))
    assert (made.distance.value, made.distance.n) == (0.0, 1)


def test_labels_that_are_no_class_are_refused_but_none_is_wrong() -> None:
    truth, labels = torch.rand(1, 2, 1, 4, 4), torch.tensor([[3, 4]])
    with pytest.raises(InputError, match=r"truth_labels .*got 4"):
        membership(truth, labels, truth, labels, classes=4)
    with pytest.raises(InputError, match=r"truth_labels .*got -1"):
        membership(truth, labels - 4, truth, labels, classes=10)
    with pytest.raises(InputError, match=r"guess_labels .*got 12"):
        membership(truth, labels, truth, 3 * labels, classes=10)
    assert membership(truth, labels, truth, torch.tensor([[3, -1]]), classes=10).distance.value == 0.5
    padded = torch.tensor([[True, False]])
    assert membership(truth, labels, truth, labels, classes=4, mask=padded).distance.value == 0


def test_a_diverged_reconstruction_is_wrong_only_where_its_label_is() -> None:
    truth, labels = torch.rand(1, 1, 1, 4, 4), torch.tensor([[3]])
    gone = torch.full_like(truth, torch.nan)
    assert membership(truth, labels, gone, labels, classes=10).distance.value == 0
    assert membership(truth, labels, gone, labels + 1, classes=10).distance.value == 1
    with pytest.raises(InputError, match=r"classes must.* got 1"):
        membership(truth, labels, gone, labels, classes=1)


def test_labels_by_classifying_are_those_of_the_network_itself() -> None:
    model = build("lenet_dlg", (1, 8, 8), 4, {"width": 2})
    weights = draw_parameters(model, Uniform(0.5), random.key([1, 2, 3]))
    inputs = 3 * torch.rand(3, 5, 1, 8, 8) - 1
    inputs[1, 2, 0, 0, 0] = torch.nan
    scaling = Scaling((0.4,), (0.2,))
    made = classified(model, weights, inputs, scaling)
    shown = torch.nan_to_num(inputs, nan=0.5).clamp(0, 1)
    for i in range(3):
        own = {name: value[i] for name, value in weights.items()}
        logits, _ = model.apply(own, {}, (shown[i] - 0.4) / 0.2, torch.tensor(0))
        assert torch.equal(made[i], logits.argmax(1))


def test_unpaired_is_the_mean_over_all_orders_of_the_guesses() -> None:
    truth, guess = torch.tensor([[0, 1, 1], [2, 2, 0]]), torch.tensor([[1, 0, 1], [0, 1, -1]])
    inputs = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    orders = torch.tensor(list(itertools.permutations(range(3))))
    slow = torch.stack([(truth != guess[:, order]).double().mean(1) for order in orders]).mean(0)
    assert_close(membership(inputs, truth, inputs, guess, classes=3).unpaired, slow)
    two = torch.tensor([[True, True, False]]).expand(2, 3)
    cut = membership(inputs, truth, inputs, guess, classes=3, mask=two).unpaired
    assert_close(cut, torch.tensor([0.5, 1.0], dtype=torch.float64))


@pytest.mark.slow
def test_right_labels_in_any_order_have_the_distance_of_the_formula() -> None:
    classes, samples = 10, 4
    labels = torch.randint(0, classes, (20000, samples), generator=torch.Generator().manual_seed(0))
    inputs = torch.zeros(20000, samples, 1)
    found = membership(inputs, labels, inputs, labels, classes=classes)
    assert float(found.unpaired.mean()) == pytest.approx((1 - 1 / samples) * (1 - 1 / classes), abs=3e-3)
