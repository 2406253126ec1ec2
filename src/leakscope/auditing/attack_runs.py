"""The simulated clients of an audit and the attacks on them, each within its share of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from leakscope.attacks.label_rules.choice import read_batch
from leakscope.attacks.labels import LABEL_RULES, chosen_rule
from leakscope.attacks.null import class_mean
from leakscope.attacks.recipes import prior_only
from leakscope.auditing.attempts import (
    Attempt,
    CutShort,
    attack_of,
    execution_on,
    find_cut_of,
    iterations_note,
    reconstruct,
    run_attempts,
    seconds_needed,
    timed,
)
from leakscope.auditing.limits import Budget, Pace, first_line
from leakscope.auditing.suite import Entry, Untested, labels_problem, plan_suite
from leakscope.auditing.target import Subject, UntestedError
from leakscope.core import random
from leakscope.core.errors import InputError, is_failure
from leakscope.core.plugins import registered
from leakscope.core.progress import SILENT, Reporter
from leakscope.core.tree import take, to
from leakscope.core.types import IMAGE_RANK, Batch, Reconstruction, direction, make_batch
from leakscope.defences import Defence
from leakscope.metrics import METRICS
from leakscope.metrics.interval import estimate_rate
from leakscope.metrics.labels import label_overlap
from leakscope.play import AttackResult, Exposure, attack, expose, judge, shared_weights
from leakscope.play.baselines import nearest_public
from leakscope.sweep.chunk_records import with_metrics
from leakscope.sweep.engines.contract import torch_threads

LEAST_PUBLIC = 8
PUBLIC_BASELINES = ("class_mean", "nearest_public")
COLD = 5.0  # seconds that a first call may take for loading code alone
PLAY_SHARE = 0.25  # largest share of the time for the clients' updates: an evaluation of an attack takes longer
INTERRUPTED = "the audit was interrupted"
FAILED = "failed"  # more time does not help such an attack
LONG = 0.5  # seconds of an evaluation, from which on all threads are taken untried


class Suite(NamedTuple):
    """Results of a suite: the runs, those cut short, what could not be run, what broke, the seconds that would do, what is missing."""

    runs: tuple[AttackResult, ...]
    short: tuple[CutShort, ...]
    untested: tuple[Untested, ...]
    broken: tuple[str, ...] = ()  # attacks that apply and failed
    needed: float | None = None  # None: no evaluation was timed
    unplayed: str = ""  # clients that there was no time for, in words
    division_alone: bool = False  # whether no attack that matches updates could be run
    interrupted: bool = False

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Return, in words, what was cut before it had enough iterations, failed or is missing; () if a good grade can be given."""
        cuts = (f"{cut.name} ran {cut.iterations} of {cut.most} iterations" for cut in self.short if not cut.enough)
        alone = "only the division of the first layer can be run" if self.division_alone else ""
        more = self.unplayed, alone, INTERRUPTED if self.interrupted else ""
        return (*cuts, *(f"{name} {FAILED}" for name in self.broken), *filter(None, more))


def expose_clients(subject: Subject, clients: int, seed: int, *, defences: Sequence[Defence] | None = None) -> Exposure:
    """Return at most `clients` simulated clients that share no example; `defences` replace the configured ones."""
    client = subject.client if defences is None else replace(subject.client, defences=tuple(defences))
    batch, seeds = clients_batch(subject, clients, seed)
    return expose(subject.model, client, shared_weights(subject.model, batch.trials), batch, seeds)


def clients_batch(subject: Subject, clients: int, seed: int) -> tuple[Batch, list[int]]:
    """Return the examples of at most `clients` clients that share none, and a seed for each."""
    T = most_clients(subject, clients)
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    chosen = order[: T * subject.behind].reshape(T, subject.behind)
    targets = None if subject.targets is None else subject.targets[chosen]
    batch = make_batch(
        subject.inputs[chosen], subject.labels[chosen], classes=subject.model.classes, targets=targets
    )  # fmt: skip
    return batch, [seed * 100_000 + t for t in range(T)]


def most_clients(subject: Subject, clients: int) -> int:
    """Return how many of so many clients there are examples for, at least 1."""
    return max(1, min(clients, len(subject.inputs) // subject.behind))


def affordable_clients(subject: Subject, clients: int, seed: int, budget: Budget) -> tuple[Exposure, float]:
    """Return the simulated clients, as many as a share of the time left allows, and the seconds that their updates took."""

    def play(number: int) -> tuple[Exposure, float]:
        began = budget.used
        return expose_clients(subject, number, seed), budget.used - began

    def fitting() -> int:
        return min(clients, int(few * max(LONG, PLAY_SHARE * budget.left) / max(seconds, 1e-9)))

    few = min(clients, 2)  # two show whether updates depend on the data
    exposure, seconds = play(few)
    if seconds < COLD and fitting() < clients:
        exposure, seconds = play(few)
    return play(number) if (number := fitting()) > few else (exposure, seconds)


def public_examples(subject: Subject, clients: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of the sample that no client holds."""
    order = random.permutation(random.fold(random.key(seed), "audit"), len(subject.inputs))
    rest = order[clients * subject.behind :]
    return subject.inputs[rest], subject.labels[rest]


def check_finite(exposure: Exposure) -> list[Tensor]:
    """Return the numbers of all updates, T x ... each; refuse those that hold NaN or infinity, and those that are all zero."""
    updates = [direction(seen, exposure.observation.shares) for seen in exposure.observation.rounds]
    values = [value.flatten(1) for update in updates for value in update.values()]
    broken = torch.stack([~value.isfinite().all(1) for value in values]).any(0)
    if bool(broken.any()):
        raise UntestedError(f"the updates of {int(broken.sum())} of {len(broken)} clients hold NaN or infinity")
    if all(bool((value == 0).all()) for value in values):
        why = "a defence" if exposure.client.defences else "does forward detach or stop gradients?"
        raise UntestedError(f"the updates are zero: nothing of the data reaches them ({why})")
    return values


def check_updates(exposure: Exposure) -> None:
    """Refuse updates that say nothing of the data: not finite, all zero, or the same for clients with different data."""
    values = check_finite(exposure)
    inputs = exposure.batch.inputs
    differ = bool((inputs != inputs[:1]).any())
    if differ and all(torch.equal(value, value[:1].expand_as(value)) for value in values):
        raise UntestedError("the updates are the same for clients with different data: they contain nothing about it")


def run_with(
    exposure: Exposure, entry: Entry, iterations: int, pace: Pace | None = None, report: Reporter = SILENT
) -> AttackResult:
    """Return the scored result of one attack on all clients, with at most `iterations`; `pace` times it and may end it."""
    execution = timed(exposure.device, entry, iterations, pace, report)
    method = attack_of(entry, iterations)
    exposure = exposure.with_labels() if entry.knows_targets else exposure
    run = attack(exposure, method, name=entry.name, informed=entry.informed, execution=execution)
    run = with_metrics(own_metrics(exposure), exposure.batch, run)
    return replace(run, note=iterations_note(entry, iterations, run.reconstruction))


def plan_exposure(
    exposure: Exposure, *, unmatched: str | None = None, unknown: Sequence[str] = ()
) -> tuple[list[Entry], list[Untested]]:
    """Return the attacks to run on these clients, and what cannot be run; see `plan_suite`."""
    local = exposure.client.local
    return plan_suite(
        exposure.model,
        exposure.knowledge,
        exposure.informed,
        steps=1 if local is None else local.steps(exposure.batch.samples // exposure.client.aggregation.answers),
        shares=exposure.observation.shares,
        unmatched=unmatched,
        unknown=unknown,
        targets=exposure.batch.targets is not None,
        buffers=exposure.observation.rounds[0].buffers_after is not None,
    )


def fastest_threads(exposure: Exposure, entries: Sequence[Entry]) -> int:
    """Return 1 or all torch threads, whichever runs the first iterative attack faster: small networks lose by multithreading."""
    heavy = next((entry for entry in entries if entry.most is not None), None)
    every = torch.get_num_threads()
    if heavy is None or every == 1 or exposure.device.type != "cpu":
        return every
    entry = heavy

    def seconds(threads: int, evaluations: int) -> float:
        pace = Pace(most=evaluations)
        with torch_threads(threads):
            reconstruct(exposure, entry, 1, pace)
        return pace.seconds or 0.0

    try:
        if seconds(every, 1) > LONG:
            return every
        return min((1, every), key=lambda threads: seconds(threads, 3))
    except Exception:  # whatever a user's model raises: the error is reported when the attack is run
        return 1


def run_entries(
    exposure: Exposure, attempts: Sequence[Attempt[AttackResult]], budget: Budget, report: Reporter
) -> Suite:
    """Return the results of the attacks after running those that may get farther within the budget."""

    def run(entry: Entry, iterations: int, pace: Pace) -> tuple[AttackResult, CutShort | None]:
        result = run_with(exposure, entry, iterations, pace, report)
        return result, find_cut_of(result, entry.most)

    run_attempts(exposure, attempts, budget, report, run)
    return suite_of(attempts)


def suite_of(attempts: Sequence[Attempt[AttackResult]], *, interrupted: bool = False) -> Suite:
    """Return the results of the attacks so far."""
    return Suite(
        tuple(each.result for each in attempts if each.result is not None),
        tuple(each.cut for each in attempts if each.cut is not None and each.failure is None),
        tuple(each.failure for each in attempts if each.failure is not None),
        tuple(each.entry.name for each in attempts if each.broken),
        seconds_needed(attempts),
        division_alone=any(each.result for each in attempts)
        and not any(each.entry.most and (each.result or each.cut) for each in attempts),
        interrupted=interrupted,
    )


def null_runs(
    exposure: Exposure, public: tuple[Tensor, Tensor] | None = None, pace: Pace | None = None
) -> tuple[list[AttackResult], list[Untested]]:
    """Return what one gets without the update, and which baselines there are not; `public` None asks for none with public examples."""
    truth, classes = exposure.batch, exposure.model.classes
    execution = replace(execution_on(exposure.device), out_of_time=pace)
    known = replace(exposure.knowledge, labels=truth.labels)
    guesses: dict[str, Callable[[], Reconstruction]] = {
        "prior_only": lambda: prior_only().guess(known, list(exposure.seeds), execution)
    }
    if public is not None and len(public[0]) >= LEAST_PUBLIC:
        mean = class_mean(*public, classes=classes)
        guesses = {
            "class_mean": lambda: mean.guess(known, truth.trials, execution),
            **guesses,
            "nearest_public": lambda: nearest_public(truth, *public, classes=classes).reconstruction,
        }
    why = "" if public is None else f"needs {LEAST_PUBLIC} examples that no client holds, there are {len(public[0])}"
    runs, left_out = [], [Untested(f"baseline {name}", why) for name in PUBLIC_BASELINES if why and name not in guesses]
    for name, guess in guesses.items():
        try:
            run = judge(truth, guess(), name=name, note="without the update")
            runs.append(with_metrics(own_metrics(exposure), truth, run))
        except (
            InputError,
            RuntimeError,
            MemoryError,
        ) as error:  # such as too little memory, or no example but the clients'
            left_out.append(Untested(f"baseline {name}", first_line(error).partition("; ")[0]))
    return runs, left_out


def own_metrics(exposure: Exposure) -> list[str]:
    """Return the registered metrics that can score these examples."""
    images = len(exposure.model.input_shape) >= IMAGE_RANK
    return [name for name in registered("metric") if images or METRICS[name].tables]


@dataclass(frozen=True, slots=True)
class LabelReading:
    """The share of labels that a rule read off the update, and the expected share of uniform guessing; each a mean overlap."""

    rule: str
    share: float
    guessing: float
    n: int
    low: float | None = None  # 95 % interval of the share
    high: float | None = None
    sure: float | None = None  # share of clients whose update the counts explain; None for one example


def read_labels(exposure: Exposure, budget: Budget | None = None) -> LabelReading | Untested:
    """Return the share of labels that a rule reads off the update, of at least one client and as many as a budget allows."""
    knowledge = exposure.informed or exposure.knowledge
    problem = labels_problem(exposure.model, knowledge, exposure.observation.shares)
    if problem is not None:
        return Untested("label recovery", problem)
    rule = chosen_rule("auto", knowledge.samples, known=False)
    keys = random.key(list(exposure.seeds), device=exposure.device)
    known, sure = to(knowledge, device=exposure.device), list[float]()
    guesses: list[Tensor] = []
    try:
        for part in torch.arange(exposure.trials).split(exposure.trials if budget is None else 1):
            began = 0.0 if budget is None else budget.used
            facts = take((exposure.observation, known, keys), part.to(exposure.device))
            if knowledge.samples == 1:
                guesses.append(LABEL_RULES[rule](exposure.model, *facts).cpu())
            else:
                batch = read_batch(exposure.model, *facts)
                guesses.append(batch.labels.cpu())
                sure.extend(batch.sure.double().tolist())
            if budget is not None and budget.used - began > max(LONG, budget.left):
                break
    except (InputError, RuntimeError) as error:
        return Untested("label recovery", first_line(error), failed=is_failure(error))
    guess = torch.cat(guesses)
    truth, mask = exposure.batch.labels[: len(guess)], exposure.batch.mask[: len(guess)]
    blind = expected_overlap(truth, mask, knowledge.classes)
    place, sizes = torch.arange(mask.shape[1]), mask.sum(1, keepdim=True)
    hits = (label_overlap(truth, guess, mask)[:, None].double() * sizes).round()
    share = estimate_rate(place < hits, place < sizes)  # labels of one client share an update
    return LabelReading(
        rule, share.value, blind, share.n, share.low, share.high, sum(sure) / len(sure) if sure else None
    )


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
