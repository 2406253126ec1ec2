"""The clients of an audit and the attacks on them: each attack within its share of the time, scored against the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.recipes import prior_only
from leakscope.audit.budget import Budget, iterations_within
from leakscope.audit.cut_short import CutShort, find_cut_of
from leakscope.audit.guessing import expected_overlap, overlap_interval
from leakscope.audit.suite import Entry, Untested, labels_problem, plan_suite
from leakscope.audit.target import Subject
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, Knowledge, Observation, Reconstruction, make_batch
from leakscope.defences import Defence
from leakscope.metrics import score, summarise
from leakscope.metrics.labels import label_overlap
from leakscope.play.baselines import baselines
from leakscope.play.story import AttackRun, play
from leakscope.sweep.engines.contract import torch_threads

LEAST_PUBLIC = 8
LONG = 2.0  # seconds of an iteration, from which on all threads are taken untried
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """T clients with N examples each, what the server saw of them, and what it knows without and with the defences."""

    subject: Subject
    client: Client
    batch: Batch
    weights: Tree
    seeds: tuple[int, ...]
    observation: Observation
    knowledge: Knowledge
    informed: Knowledge | None
    execution: Execution


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The share of labels that a rule read off the update, beside what guessing has on average; each a mean overlap."""

    rule: str
    share: float
    guessing: float
    n: int
    low: float | None = None  # of the 95 % interval of the share
    high: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class UnscoredRun:
    """An attack whose truth is not known: what came back, and what can be said of it without the truth.

    `left` is the mismatch at the end as a share of that at the start (T): small where the guess explains the update.
    `structure` is the total variation of the guess over that of its own points shuffled (T): about 1 for noise, below for
    pictures; NaN for what is no picture.
    """

    name: str
    note: str
    reconstruction: Reconstruction
    left: Tensor
    structure: Tensor
    seconds: float


@dataclass(frozen=True, slots=True)
class Suite:
    """What came of the attacks of a suite: the runs, those of them that the time cut short, and what could not be run."""

    runs: tuple[AttackRun, ...]
    short: tuple[CutShort, ...]
    untested: tuple[Untested, ...]


def make_world(subject: Subject, clients: int, seed: int, *, defences: Sequence[Defence] | None = None) -> World:
    """Return the clients of an audit: at most `clients`, no example twice; `defences` in the place of the configured."""
    client = subject.client if defences is None else replace(subject.client, defences=tuple(defences))
    T = max(1, min(clients, len(subject.inputs) // subject.examples))
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    chosen = order[: T * subject.examples].reshape(T, subject.examples)
    batch = make_batch(subject.inputs[chosen], subject.labels[chosen], classes=subject.model.classes)
    weights = {name: value.expand(T, *value.shape) for name, value in subject.model.parameters.items()}
    seeds = tuple(seed * 100_000 + t for t in range(T))
    observation = client.observe(subject.model, weights, batch, seeds)
    knowledge = told(subject.model, client, batch)
    informed = tell_defences(knowledge, client, observation) if guarded(client) else None
    return World(subject, client, batch, weights, seeds, observation, knowledge, informed, Execution(form="native"))


def guarded(client: Client) -> bool:
    """Return whether a client defends itself at all: its update, its data or its network."""
    return bool(client.defences) or client.on_data is not None or client.on_model is not None


def public_examples(subject: Subject, world: World, seed: int) -> tuple[Tensor, Tensor]:
    """Return the examples of the sample that no client of the audit holds."""
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    rest = order[world.batch.trials * subject.examples :]
    return subject.inputs[rest], subject.labels[rest]


def fitting_iterations(world: World, entry: Entry, seconds: float) -> int:
    """Return how many iterations of an attack fit into the seconds; 0 where it has none."""
    if entry.most is None:
        return 0

    def probe(n: int) -> float:
        began = time.perf_counter()
        entry.make(n).run(
            world.subject.model, world.observation, known_to(world, entry), list(world.seeds), world.execution
        )
        return time.perf_counter() - began

    return iterations_within(seconds, probe, entry.most)


def run_with(world: World, entry: Entry, iterations: int) -> AttackRun:
    """Return one attack on all clients, with so many iterations at most."""
    note = "no iterations" if entry.most is None else f"{iterations} iterations at most; its authors run {entry.most}"
    args = (world.subject.model, world.observation, known_to(world, entry))
    return play(entry.name, note, entry.make(iterations), *args, world.batch, list(world.seeds), world.execution)


def known_to(world: World, entry: Entry) -> Knowledge:
    """Return what an attack knows in a world: of the defences too, where it is one that is told."""
    return world.informed if entry.informed and world.informed is not None else world.knowledge


def plan_world(world: World, *, unknown: Sequence[str] = ()) -> tuple[list[Entry], list[Untested]]:
    """Return the suite for the clients of a world, and what of it cannot be run; `unknown` names defences that tell nothing."""
    local, subject = world.client.local, world.subject
    return plan_suite(
        subject.model,
        world.knowledge,
        world.informed,
        steps=1 if local is None else local.steps(subject.examples),
        shares=world.observation.shares,
        unmatched=subject.unmatched,
        unknown=unknown,
    )


def fastest_threads(world: World, entries: Sequence[Entry]) -> int:
    """Return one thread, or all that torch has: whichever evaluates the first attack faster here and now.

    Small networks lose more by sharing work than they gain, most of all on a machine that does other things too. Where an iteration
    takes seconds, nothing is compared: there is work enough to share, and no time to waste.
    """
    heavy = next((entry for entry in entries if entry.most is not None), None)
    every = torch.get_num_threads()
    if heavy is None or every == 1:
        return every
    attack = heavy.make(1)

    def seconds(threads: int) -> float:
        with torch_threads(threads):
            began = time.perf_counter()
            attack.run(
                world.subject.model, world.observation, known_to(world, heavy), list(world.seeds), world.execution
            )
            return time.perf_counter() - began

    try:
        if seconds(every) > LONG:  # the first run pays for what later ones find ready
            return every
        return min((1, every), key=seconds)
    except (InputError, RuntimeError):
        return 1  # what is wrong with the attack is said when it is run


def run_entries(world: World, entries: Sequence[Entry], budget: Budget, tell: Tell) -> Suite:
    """Return the runs of all attacks, each given an even share of what is left; what fails is untested, and why."""
    runs: list[AttackRun] = []
    short: list[CutShort | None] = []
    untested: list[Untested] = []
    for number, entry in enumerate(entries):
        heavy = sum(each.most is not None for each in entries[number:]) or 1
        tell(f"{entry.name}: {world.batch.trials} clients")
        try:
            iterations = fitting_iterations(world, entry, budget.left / heavy)
            runs.append(run_with(world, entry, iterations))
            short.append(find_cut_of(runs[-1], iterations, entry.most))
        except InputError as error:
            untested.append(Untested(entry.name, str(error)))
        except RuntimeError as error:  # a layer of the user's network that cannot be differentiated
            untested.append(Untested(entry.name, (str(error).strip() or type(error).__name__).splitlines()[0]))
    return Suite(tuple(runs), tuple(cut for cut in short if cut is not None), tuple(untested))


def null_runs(subject: Subject, world: World, seed: int) -> list[AttackRun]:
    """Return what one gets without the update; class mean and nearest picture only where examples are to spare."""
    public, labels = public_examples(subject, world, seed)
    seeds, scaling = list(world.seeds), world.client.scaling
    if len(public) >= LEAST_PUBLIC:
        made = baselines(
            world.batch, public, labels, classes=subject.model.classes, seeds=seeds, scaling=scaling, prior=prior_only()
        )
    else:
        known = replace(world.knowledge, labels=world.batch.labels)
        made = {"prior_only": prior_only().guess(known, seeds)}
    return [scored(name, "without the update", world.batch, result, 0.0) for name, result in made.items()]


def scored(name: str, note: str, truth: Batch, made: Reconstruction, seconds: float) -> AttackRun:
    """Return a reconstruction scored against the truth."""
    scores = score(truth.inputs, truth.labels, made.inputs, made.labels, mask=truth.mask)
    summary = summarise(scores, outcomes=made.outcome, iterations=made.iterations)
    return AttackRun(name, note, made, scores, summary, seconds)


def read_labels(world: World) -> LabelReading | Untested:
    """Return how many labels the update gives away before any search."""
    knowledge = world.informed or world.knowledge
    problem = labels_problem(world.subject.model, knowledge, world.observation.shares)
    if problem is not None:
        return Untested("label recovery", problem)
    rule = "cpl" if knowledge.samples == 1 else "counts"
    keys = random.key(list(world.seeds))
    try:
        guess = LABEL_RULES[rule](world.subject.model, world.observation, knowledge, keys)
    except (InputError, RuntimeError) as error:
        return Untested("label recovery", (str(error).strip() or type(error).__name__).splitlines()[0])
    truth, mask = world.batch.labels, world.batch.mask
    found, blind = label_overlap(truth, guess, mask), expected_overlap(truth, mask, knowledge.classes)
    low, high = overlap_interval(found, knowledge.samples)
    return LabelReading(rule, float(found.double().mean()), blind, int(mask.sum()), low, high)
