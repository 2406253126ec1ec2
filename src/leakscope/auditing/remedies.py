"""The remedies that an audit tries, the finding on each, and their ranking."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.auditing.changes import FEWEST, Change, changes_for
from leakscope.auditing.target import Subject
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, count, lift, norm, to
from leakscope.core.types import Batch, Outcome, direction
from leakscope.defences import DEFENCES, Defence
from leakscope.defences.stack import State, begin, check_stack, protect
from leakscope.defences.strengths import Unit, strengths_of
from leakscope.federated import train_by_gradients
from leakscope.learning.gradients import loss_and_gradient
from leakscope.learning.losses import loss_of, one_hot
from leakscope.metrics import estimate_mean
from leakscope.play import AttackResult, Exposure

ONE_STRENGTH = "one strength"
COST = 0.01  # accuracy; smaller losses are not distinguished
ELSEWHERE = (
    ("transformed pictures", "no strengths are declared for it; set on_data of the client and audit again"),
    ("a private head", "no strengths are declared for it; set on_model of the client and audit again"),
)  # (what, why): defences not tried because they do not act on the update


class Finding(enum.Enum):
    """The finding of the informed attacker on a remedy; the value is the text shown to users."""

    HELPS = "helps"
    USELESS = "does not help"
    CHANCE = "may be chance, with so few examples"
    SHORT = "not tested long enough"
    BLIND = "met no attacker who knows it"


@dataclass(frozen=True, slots=True, eq=False)
class Remedy:
    """A defence at one strength, or a change of the clients, and what the attack still recovers under it."""

    name: str
    strength: str
    defence: Defence | Change
    run: AttackResult
    finding: Finding
    met: str = ""  # the attack and its iterations
    accuracy: float | None = None
    lost: float | None = None  # accuracy it costs; None: not measured
    batch: Batch | None = None  # what was attacked, where a change gives clients other examples than the audit's

    __repr__ = short_repr

    @property
    def words(self) -> str:
        """Return the name and strength."""
        return f"{self.name} ({self.strength})"

    @property
    def confirmed(self) -> str:
        """Return the full attack that it withstood; "" if none."""
        return self.met if self.finding is Finding.HELPS else ""

    @property
    def recovered(self) -> float:
        """Return the share of examples still recovered."""
        return self.run.summary.content.value

    @property
    def psnr(self) -> float:
        """Return the mean PSNR of the reconstructions in dB."""
        return self.run.summary.means["psnr"].value


def remedies_for(exposure: Exposure) -> list[tuple[str, str, Defence | Change]]:
    """Return (name, strength in words, remedy): every registered defence at both strengths that it declares, and the changes."""
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    length = float(lift(norm)(update).median())
    size = length / math.sqrt(count(update) / exposure.batch.trials)  # root mean square of a coordinate
    units = {Unit.ONE: None, Unit.COORDINATE: size, Unit.LENGTH: length}  # relative to the update, for any model
    weak: list[
        tuple[str, str, Defence | Change]
    ] = []  # before the strong ones, so that a short budget covers every kind
    strong: list[tuple[str, str, Defence | Change]] = []
    for name, make in DEFENCES.items():
        strengths = strengths_of(make)
        if strengths is None:
            weak.append((name, ONE_STRENGTH, make()))  # declares no strengths
            continue
        unit = units[strengths.unit]
        for options, strength in ((weak, strengths.weak), (strong, strengths.strong)):
            value = strength if unit is None else strength * unit
            words = f"{strengths.setting} {value:g}" if unit is None else f"{strengths.setting} {value:.2g}"
            options.append((name, words, make(**{strengths.setting: value})))
    return [*weak, *changes_for(exposure.model, exposure.client), *strong]


def find(run: AttackResult, control: AttackResult, *, whole: bool, knows: bool) -> Finding:
    """Return the finding from a run under a remedy and the control run without it."""
    shares = control.summary.content.value > 0  # else compare PSNRs
    before, after = (each.summary.content if shares else each.summary.means["psnr"] for each in (control, run))
    if after.value >= before.value:  # any attack shows this, however short
        return Finding.USELESS
    if not (_falls(control, run) if shares else after.high < before.low):  # paired by example
        return Finding.CHANCE
    if not knows:  # the attacker does not know the defence
        return Finding.BLIND
    return Finding.HELPS if whole else Finding.SHORT  # whole: all the iterations its authors use


def _falls(control: AttackResult, run: AttackResult) -> bool:
    """Return whether the recovered share falls significantly: 95 % interval of the difference, clustered by client."""
    if control.recovered.shape != run.recovered.shape:  # other clients: their intervals must not meet
        before, after = control.summary.content, run.summary.content
        return min(before.trials, after.trials) >= FEWEST and after.high < before.low
    gone = control.recovered.double() - run.recovered.double()
    lost = estimate_mean(gone, control.scores.scored, within=(-1.0, 1.0))
    return lost.trials >= FEWEST and lost.low > 0


def cut_off(run: AttackResult) -> bool:
    """Return whether some trial used up its iterations, so that more might recover more."""
    return bool((run.reconstruction.outcome == Outcome.EXHAUSTED).any())


def by_leakage(remedy: Remedy) -> tuple[float, float]:
    """Return the sort key: share recovered, then PSNR."""
    return (remedy.recovered, remedy.psnr)


def by_cost(before: float) -> Callable[[Remedy], tuple[float, float]]:
    """Return the sort key: recovered share prevented per accuracy lost, best first."""

    def key(remedy: Remedy) -> tuple[float, float]:
        lost = max(remedy.lost or 0.0, 0.0) + COST
        return (-(before - remedy.recovered) / lost, remedy.psnr)

    return key


def stacked(configured: Sequence[Defence], added: Defence) -> tuple[Defence, ...]:
    """Return the configured defences with one more, after or before them as the stacking rules allow."""
    behind, before = (*configured, added), (added, *configured)
    try:
        check_stack(behind)
    except InputError:
        check_stack(before)
        return before
    return behind


CLIENTS = 4
ROUNDS = 30
RATES = (0.03, 0.1, 0.3, 1.0)
LEAST_SAMPLE = 40
MARGIN = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A short training that works: learning rate, accuracy without a defence, and the length of each step."""

    subject: Subject
    rate: float
    accuracy: float
    steps: tuple[float, ...]
    rounds: int


def find_course(subject: Subject, *, rounds: int = ROUNDS, seconds: float = math.inf) -> Course | str:
    """Return the best short training over `RATES`, or why accuracy cannot be measured: such a training takes over `seconds`, say."""
    if len(subject.inputs) < LEAST_SAMPLE:
        return f"the sample has {len(subject.inputs)} examples; {LEAST_SAMPLE} are needed to train and test on it"
    if subject.targets is not None:
        return "accuracy is that of one class an example; this loss has other targets"
    if rounds * _seconds_of_round(subject) > seconds:
        return "there was no time to train on the sample"
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


def _seconds_of_round(subject: Subject) -> float:
    """Return about how long a round takes on the whole sample, from a round on a few examples of it."""
    few = replace(subject, inputs=subject.inputs[: 2 * CLIENTS], labels=subject.labels[: 2 * CLIENTS])
    times = []
    for _ in range(2):  # the first is cold
        began = time.monotonic()
        train_briefly(few, (), RATES[0], None, 1)
        times.append(time.monotonic() - began)
    return times[-1] * (1 + len(subject.inputs) / len(few.inputs)) / 2  # a part does not grow with the examples


def accuracy_with(course: Course, defences: Sequence[Defence]) -> float:
    """Return the accuracy of the same training with the defences."""
    return train_briefly(course.subject, defences, course.rate, course.steps, course.rounds)[0]


def split(subject: Subject) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training examples (a multiple of the clients) and test examples, in a fixed random order."""
    order = random.permutation(random.fold(random.key(0), "audit utility"), len(subject.inputs))
    each = 3 * len(order) // (4 * CLIENTS)
    train, test = order[: each * CLIENTS], order[each * CLIENTS :]
    return (subject.inputs[train], subject.labels[train]), (subject.inputs[test], subject.labels[test])


def train_briefly(
    subject: Subject, defences: Sequence[Defence], rate: float, steps: Sequence[float] | None, rounds: int
) -> tuple[float, tuple[float, ...]]:
    """Return the test accuracy after `rounds` and the length of every step; `steps` prescribes the lengths."""
    model, client = subject.model, subject.client
    (x, y), (test_x, test_y) = to(split(subject), device=subject.device)
    rank = len(model.input_shape)
    x = client.scaling.scale(x, rank).unflatten(0, (CLIENTS, -1))
    targets = one_hot(y, model.classes, x.dtype).unflatten(0, (CLIENTS, -1))
    keys = random.fold(random.key(list(range(CLIENTS)), device=subject.device), "audit utility")
    buffers = _for_clients(model.buffers)
    stack = tuple(defences)
    memory = begin(stack, _for_clients(model.shared(model.parameters)))

    def one(memory: State, weights: Tree, buffers: Tree, x: Tensor, t: Tensor, key: Tensor) -> tuple[Tree, State]:
        mask = torch.ones(len(x), dtype=torch.bool, device=x.device)
        gradient, _, _, _ = loss_and_gradient(model, loss_of(client.loss), weights, buffers, x, t, mask, key)
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
    """Return the tree with a leading client dimension, equal values for every client."""
    return {name: value.expand(CLIENTS, *value.shape) for name, value in tree.items()}
