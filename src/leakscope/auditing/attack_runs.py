"""The simulated clients of an audit and the attacks on them, each within its share of the time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.recipes import prior_only
from leakscope.auditing.limits import Budget, OutOfTimeError, Pace, first_line, iterations_at, iterations_within
from leakscope.auditing.suite import Entry, Untested, labels_problem, plan_suite
from leakscope.auditing.target import Subject
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import to
from leakscope.core.types import Outcome, Reconstruction, make_batch
from leakscope.defences import Defence
from leakscope.metrics.interval import estimate_mean, wilson
from leakscope.metrics.labels import label_overlap
from leakscope.play import AttackResult, Exposure, attack, expose, judge, shared_weights
from leakscope.play import reconstruct as run_attack
from leakscope.play.baselines import baselines
from leakscope.sweep.engines.contract import torch_threads

LEAST_PUBLIC = 8
LONG = 2.0  # seconds of an iteration, from which on all threads are taken untried
Report = Callable[[str], None]
V = TypeVar("V")
MEANING = "the time ended these attacks early; what they did not recover may come back with more minutes"


class CutShort(NamedTuple):
    """An attack stopped after `iterations` of the `most` its authors use, unfinished on `working` of the `clients`."""

    name: str
    iterations: int
    most: int
    working: int
    clients: int

    @property
    def words(self) -> str:
        """Return the progress in words.

        >>> CutShort("ig", 254, 4800, 3, 8).words
        '254 of 4800 iterations, still at work on 3 of 8 clients'
        """
        return (
            f"{self.iterations} of {self.most} iterations, still at work on {self.working} of {self.clients} "
            f"client{'s' if self.clients > 1 else ''}"
        )


def find_cut(
    name: str, reconstruction: Reconstruction, iterations: int, most: int | None, done: Tensor | None = None
) -> CutShort | None:
    """Return how an attack was cut short (fewer iterations than its authors use, all used up on a client not `done`), or None."""
    if most is None or iterations >= most:  # None: not iterative
        return None
    open_ = reconstruction.outcome == Outcome.EXHAUSTED
    if done is not None:  # (T) clients of which everything was recovered
        open_ = open_ & ~done
    working = int(open_.sum())
    return CutShort(name, iterations, most, working, reconstruction.trials) if working else None


def find_cut_of(run: AttackResult, iterations: int, most: int | None) -> CutShort | None:
    """Return how a scored attack was cut short; None if it was not, or if it recovered everything anyway."""
    done = (run.recovered | ~run.scores.scored).all(1)
    return find_cut(run.name, run.reconstruction, iterations, most, done)


@dataclass(frozen=True, slots=True, eq=False)
class UnscoredRun:
    """An attack whose truth is not known."""

    name: str
    note: str
    reconstruction: Reconstruction
    left: Tensor  # (T) final over initial mismatch; small if the reconstruction explains the update
    structure: Tensor  # (T) see `capture_audit.structure`: about 1 for noise, below for images
    seconds: float


class Suite(NamedTuple):
    """Results of a suite: the runs, those that the time cut short, and what could not be run."""

    runs: tuple[AttackResult, ...]
    short: tuple[CutShort, ...]
    untested: tuple[Untested, ...]


def expose_clients(subject: Subject, clients: int, seed: int, *, defences: Sequence[Defence] | None = None) -> Exposure:
    """Return at most `clients` simulated clients that share no example; `defences` replace the configured ones."""
    client = subject.client if defences is None else replace(subject.client, defences=tuple(defences))
    T = max(1, min(clients, len(subject.inputs) // subject.examples))
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    chosen = order[: T * subject.examples].reshape(T, subject.examples)
    targets = None if subject.targets is None else subject.targets[chosen]
    batch = make_batch(
        subject.inputs[chosen], subject.labels[chosen], classes=subject.model.classes, targets=targets
    )  # fmt: skip
    seeds = [seed * 100_000 + t for t in range(T)]
    return expose(subject.model, client, shared_weights(subject.model, T), batch, seeds)


def public_examples(subject: Subject, clients: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of the sample that no client holds."""
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    rest = order[clients * subject.examples :]
    return subject.inputs[rest], subject.labels[rest]


def fitting_iterations(exposure: Exposure, entry: Entry, seconds: float) -> int:
    """Return how many iterations of an attack fit into the seconds; 0 if it is not iterative."""
    if entry.most is None:
        return 0
    if exposure.device.type == "cpu":
        return iterations_within(seconds, lambda n: seconds_of(exposure, entry, n), entry.most)
    began = time.monotonic()
    pace = measured_pace(exposure, entry)
    return iterations_at(pace, seconds - (time.monotonic() - began), entry.most)


def measured_pace(exposure: Exposure, entry: Entry) -> float:
    """Return the seconds per iteration on a CUDA device: of a whole run, since recording a step takes as long as many played ones."""
    pace = Pace()

    def hear(progress: Progress) -> None:
        pace.hear(progress)
        if pace.settled:
            raise OutOfTimeError

    execution = replace(execution_on(exposure.device), progress=hear)
    began = time.monotonic()
    with contextlib.suppress(OutOfTimeError):
        run_attack(exposure, entry.make(entry.most or 1), execution, informed=entry.informed)
    return pace.seconds or (time.monotonic() - began) / max(pace.reports[-1][1], 1)


def seconds_of(exposure: Exposure, entry: Entry, iterations: int) -> float:
    """Return the run time of an attack with the given iterations."""
    began = time.perf_counter()
    reconstruct(exposure, entry, iterations)
    return time.perf_counter() - began


def reconstruct(exposure: Exposure, entry: Entry, iterations: int) -> Reconstruction:
    """Return what an attack of the suite makes of all clients."""
    return run_attack(exposure, entry.make(iterations), execution_on(exposure.device), informed=entry.informed)


def execution_on(device: torch.device) -> Execution:
    """Return how the attacks of an audit run: as one batch on a CPU, in the form that is fastest on a CUDA device."""
    return Execution(device=str(device), form="native" if device.type == "cpu" else None)


def run_with(exposure: Exposure, entry: Entry, iterations: int) -> AttackResult:
    """Return the scored result of one attack on all clients, with at most `iterations`."""
    method, note = entry.make(iterations), iterations_note(entry, iterations)
    return attack(
        exposure, method, name=entry.name, note=note, informed=entry.informed, execution=execution_on(exposure.device)
    )


def iterations_note(entry: Entry, iterations: int) -> str:
    """Return the iteration limit in words, beside what the authors use."""
    return "no iterations" if entry.most is None else f"{iterations} iterations at most; its authors run {entry.most}"


def plan_exposure(
    exposure: Exposure, *, unmatched: str | None = None, unknown: Sequence[str] = ()
) -> tuple[list[Entry], list[Untested]]:
    """Return the attacks to run on these clients, and what cannot be run; see `plan_suite`."""
    local = exposure.client.local
    return plan_suite(
        exposure.model,
        exposure.knowledge,
        exposure.informed,
        steps=1 if local is None else local.steps(exposure.batch.samples),
        shares=exposure.observation.shares,
        unmatched=unmatched,
        unknown=unknown,
    )


def fastest_threads(exposure: Exposure, entries: Sequence[Entry]) -> int:
    """Return 1 or all torch threads, whichever runs the first iterative attack faster: small networks lose by multithreading."""
    heavy = next((entry for entry in entries if entry.most is not None), None)
    every = torch.get_num_threads()
    if heavy is None or every == 1 or exposure.device.type != "cpu":
        return every
    entry = heavy

    def seconds(threads: int) -> float:
        with torch_threads(threads):
            return seconds_of(exposure, entry, 1)

    try:
        if seconds(every) > LONG:  # the first run includes one-time start-up costs
            return every
        return min((1, every), key=seconds)
    except (InputError, RuntimeError):
        return 1  # the error is reported when the attack is run


def run_entries(exposure: Exposure, entries: Sequence[Entry], budget: Budget, report: Report) -> Suite:
    """Return the results of all attacks, each given an even share of the time left; failures are listed as untested."""

    def run(number: int, entry: Entry) -> tuple[AttackResult, CutShort | None]:
        heavy = sum(each.most is not None for each in entries[number:]) or 1
        iterations = fitting_iterations(exposure, entry, budget.left / heavy)
        result = run_with(exposure, entry, iterations)
        return result, find_cut_of(result, iterations, entry.most)

    runs, short, untested = try_each(entries, run, report, f"{exposure.batch.trials} clients")
    return Suite(tuple(runs), tuple(short), tuple(untested))


def try_each(
    entries: Sequence[Entry], run: Callable[[int, Entry], tuple[V, CutShort | None]], report: Report, whom: str
) -> tuple[list[V], list[CutShort], list[Untested]]:
    """Return the result of each attack, those cut short, and those that failed with the reason."""
    runs: list[V] = []
    short: list[CutShort] = []
    untested: list[Untested] = []
    for number, entry in enumerate(entries):
        report(f"{entry.name}: {whom}")
        try:
            result, cut = run(number, entry)
        except (InputError, RuntimeError) as error:  # such as a layer that cannot be differentiated
            untested.append(Untested(entry.name, str(error) if isinstance(error, InputError) else first_line(error)))
            continue
        runs.append(result)
        short += [] if cut is None else [cut]
    return runs, short, untested


def null_runs(exposure: Exposure, public: tuple[Tensor, Tensor] | None = None) -> list[AttackResult]:
    """Return what one gets without the update; class mean and nearest image only where there are enough public examples."""
    seeds, truth, execution = list(exposure.seeds), exposure.batch, execution_on(exposure.device)
    if public is not None and len(public[0]) >= LEAST_PUBLIC:
        classes, scaling = exposure.model.classes, exposure.client.scaling
        guesses = baselines(
            truth, *public, classes=classes, seeds=seeds, scaling=scaling, prior=prior_only(), execution=execution
        )
    else:
        known = replace(exposure.knowledge, labels=truth.labels)
        guesses = {"prior_only": prior_only().guess(known, seeds, execution)}
    return [judge(truth, guess, name=name, note="without the update") for name, guess in guesses.items()]


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The share of labels that a rule read off the update, and the expected share of uniform guessing; each a mean overlap."""

    rule: str
    share: float
    guessing: float
    n: int
    low: float | None = None  # 95 % interval of the share
    high: float | None = None


def read_labels(exposure: Exposure) -> LabelReading | Untested:
    """Return the share of labels that an analytic rule reads off the update."""
    knowledge = exposure.informed or exposure.knowledge
    problem = labels_problem(exposure.model, knowledge, exposure.observation.shares)
    if problem is not None:
        return Untested("label recovery", problem)
    rule = "cpl" if knowledge.samples == 1 else "counts"
    keys = random.key(list(exposure.seeds), device=exposure.device)
    try:
        known = to(knowledge, device=exposure.device)
        guess = LABEL_RULES[rule](exposure.model, exposure.observation, known, keys).cpu()
    except (InputError, RuntimeError) as error:
        return Untested("label recovery", first_line(error))
    truth, mask = exposure.batch.labels, exposure.batch.mask
    overlap, blind = label_overlap(truth, guess, mask), expected_overlap(truth, mask, knowledge.classes)
    low, high = overlap_interval(overlap, knowledge.samples)
    return LabelReading(rule, float(overlap.double().mean()), blind, int(mask.sum()), low, high)


def expected_overlap(labels: Tensor, mask: Tensor, classes: int) -> float:
    """Return the expected mean overlap of uniform guesses with T x N true labels.

    With n_c examples of class c among the N of a client and B ~ Binomial(N, 1/C) guesses of it,

        E sum_c min(n_c, B) / N = 1/N sum_c sum_{k=1}^{n_c} P(B >= k).

    >>> round(expected_overlap(torch.tensor([[3]]), torch.tensor([[True]]), 10), 6)
    0.1
    """
    from scipy.stats import binom

    shares = []
    for client_labels, real in zip(labels, mask, strict=True):
        number = int(real.sum())
        counts = torch.bincount(client_labels[real], minlength=classes).tolist()
        at_least = [float(binom.sf(k, number, 1 / classes)) for k in range(max(counts))]  # P(B >= 1), P(B >= 2), ...
        shares.append(sum(sum(at_least[:count]) for count in counts) / max(number, 1))
    return sum(shares) / len(shares)


def overlap_interval(overlaps: Tensor, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a mean overlap over T clients with `samples` labels each."""
    low, high = wilson(float(overlaps.double().mean()), len(overlaps) * samples)  # over labels
    if len(overlaps) == 1 or samples == 1:
        return low, high
    counted = torch.ones_like(overlaps[:, None], dtype=torch.bool)
    between = estimate_mean(overlaps[:, None], counted, within=(0.0, 1.0))  # over clients, whose labels share an update
    return (low, high) if math.isnan(between.low) else (min(low, between.low), max(high, between.high))
