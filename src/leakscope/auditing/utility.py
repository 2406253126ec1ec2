"""What a defence costs: the accuracy of a short federated training on the user's own sample, with and without it.

A few clients hold three quarters of the sample, the rest is the test. In each round every client computes one gradient on its
share, protects it, and the server steps along the mean. A defence changes the length of updates, for which a real server
would tune its rate; here the server steps as far as it would without the defence. It is a yardstick for ranking
defences, not a forecast of the accuracy of a real training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.auditing.target import Subject
from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.defences import Defence
from leakscope.defences.stack import State, begin, protect
from leakscope.federated import train_by_gradients
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import LOSSES, one_hot

CLIENTS = 4
ROUNDS = 30
RATES = (0.03, 0.1, 0.3, 1.0)
LEAST_SAMPLE = 40
MARGIN = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A short training that works: its rate and accuracy without a defence, and how long each step was."""

    subject: Subject
    rate: float
    accuracy: float
    steps: tuple[float, ...]
    rounds: int


def find_course(subject: Subject, *, rounds: int = ROUNDS) -> Course | str:
    """Return the best short training of a few rates, or why accuracy cannot be measured on this sample."""
    if len(subject.inputs) < LEAST_SAMPLE:
        return f"the sample has {len(subject.inputs)} examples; {LEAST_SAMPLE} are needed to train and test on it"
    _, (_, labels) = split(subject)
    common = float(torch.bincount(labels, minlength=subject.model.classes).max()) / len(labels)
    courses = [Course(subject, rate, *train_briefly(subject, (), rate, None, rounds), rounds) for rate in RATES]
    best = max(courses, key=lambda course: course.accuracy)
    if best.accuracy < common + MARGIN:
        return (
            f"{rounds} rounds on the sample reach {best.accuracy:.0%}, the commonest class alone {common:.0%}: "
            "too little to compare"
        )
    return best


def accuracy_with(course: Course, defences: Sequence[Defence]) -> float:
    """Return the accuracy of the same training with the defences."""
    return train_briefly(course.subject, defences, course.rate, course.steps, course.rounds)[0]


def split(subject: Subject) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training examples (a multiple of the clients) and test examples; the order is drawn once and for all."""
    order = random.permutation(random.fold(random.key(0), "audit utility"), len(subject.inputs))
    each = 3 * len(order) // (4 * CLIENTS)
    train, test = order[: each * CLIENTS], order[each * CLIENTS :]
    return (subject.inputs[train], subject.labels[train]), (subject.inputs[test], subject.labels[test])


def train_briefly(
    subject: Subject, defences: Sequence[Defence], rate: float, steps: Sequence[float] | None, rounds: int
) -> tuple[float, tuple[float, ...]]:
    """Return the test accuracy after some rounds, and the length of every step; `steps` are lengths to keep to."""
    model, client = subject.model, subject.client
    (x, y), (test_x, test_y) = split(subject)
    rank = len(model.input_shape)
    x = client.scaling.scale(x, rank).unflatten(0, (CLIENTS, -1))
    targets = one_hot(y, model.classes, x.dtype).unflatten(0, (CLIENTS, -1))
    keys = random.fold(random.key(list(range(CLIENTS))), "audit utility")
    buffers = _for_clients(model.buffers)
    stack = tuple(defences)
    memory = begin(stack, _for_clients(model.shared(model.parameters)))

    def one(memory: State, weights: Tree, buffers: Tree, x: Tensor, t: Tensor, key: Tensor) -> tuple[Tree, State]:
        mask = torch.ones(len(x), dtype=torch.bool)
        gradient, _, _, _ = loss_and_gradient(model, LOSSES[client.loss], weights, buffers, x, t, mask, key)
        return protect(stack, model.shared(gradient), memory, key)

    def answer(weights: Tree, number: int) -> Tree:
        nonlocal memory
        update, memory = lift(one)(memory, _for_clients(weights), buffers, x, targets, random.fold(keys, number))
        return update

    trained = train_by_gradients(model.parameters, answer, rounds, rate=rate, lengths=steps)
    with torch.no_grad():
        output = model.apply(trained.weights, model.buffers, client.scaling.scale(test_x, rank), keys[0])[0]
    if not bool(output.isfinite().all()):
        return 0.0, trained.lengths
    return float((output.argmax(1) == test_y).double().mean()), trained.lengths


def _for_clients(tree: Tree) -> Tree:
    """Return the same values for every client."""
    return {name: value.expand(CLIENTS, *value.shape) for name, value in tree.items()}
