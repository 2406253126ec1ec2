"""Attacks of an audit within a time budget: shares of the time, runs that end with it, and which of them had enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.exact.peeling import ROUNDS
from leakscope.attacks.feature_inversion import FeatureInversion
from leakscope.attacks.known_policy import KnownPolicy
from leakscope.attacks.restarting import STARTS, Restarting
from leakscope.auditing.limits import LEAST_ITERATIONS, Budget, Pace, first_line
from leakscope.auditing.suite import Entry, Untested
from leakscope.core.errors import InputError, is_failure
from leakscope.core.progress import SILENT, Reporter
from leakscope.core.short_repr import short_repr
from leakscope.core.types import Outcome, Reconstruction
from leakscope.play import AttackResult, Exposure
from leakscope.play import reconstruct as run_attack
from leakscope.servers.fishing import Fishing

EXACT_SHARE = 0.3  # of the time left, for an attack without iterations
PROBE = 60  # evaluations at most; they are traced after 40
PROBE_SHARE = 0.05  # of an attack's time
SPARE = 0.9  # share of an attack's time that its iterations are planned for
GAIN = 1.5  # times as many iterations as before must fit, or an attack is not run again
PASSES = 3
# Share of its authors' iterations from which on an attack may support a good grade. `python benchmarks/audit_share.py`: the latest
# change from a good to a bad grade was seen at 1/8; this leaves a factor of two (docs/reference/audit.md).
ENOUGH_SHARE = 1 / 4
V = TypeVar("V", "AttackResult", "UnscoredRun")
MEANING = "the time ended these attacks early; more minutes may recover more"


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

    @property
    def enough(self) -> bool:
        """Return whether it had the share of its authors' iterations from which on verdicts no longer change."""
        return self.iterations >= ENOUGH_SHARE * self.most


def find_cut(
    name: str, reconstruction: Reconstruction, most: int | None, done: Tensor | None = None
) -> CutShort | None:
    """Return how an attack was cut short on a client that is not `done`, or None.

    It ran out of time or iterations before those of its authors, or stalled or diverged before the share that is enough.
    """
    if most is None:  # not iterative
        return None
    outcome, iterations = reconstruction.outcome, reconstruction.iterations
    lost = ((outcome == Outcome.STALLED) | (outcome == Outcome.DIVERGED)) & (iterations < ENOUGH_SHARE * most)
    open_ = ((outcome == Outcome.EXHAUSTED) & (iterations < most)) | lost
    if done is not None:  # (T) clients of which everything was recovered
        open_ = open_ & ~done
    if not (working := int(open_.sum())):
        return None
    return CutShort(name, int(reconstruction.iterations[open_].min()), most, working, reconstruction.trials)


def find_cut_of(run: AttackResult, most: int | None) -> CutShort | None:
    """Return how a scored attack was cut short; None if it was not, or if it recovered everything anyway."""
    return find_cut(run.name, run.reconstruction, most, run.all_recovered)


@dataclass(frozen=True, slots=True, eq=False)
class UnscoredRun:
    """An attack whose truth is not known."""

    name: str
    note: str
    reconstruction: Reconstruction
    left: Tensor  # (T) final over initial mismatch; small if the reconstruction explains the update
    structure: Tensor  # (T) see `capture_audit.structure`: about 1 for noise, below for images
    seconds: float

    __repr__ = short_repr


def matching_of(entry: Entry) -> Matching | None:
    """Return the attack with its authors' iterations as a `Matching`; None if it is not iterative."""
    attack = None if entry.most is None else entry.make(entry.most)
    attack = attack.base if isinstance(attack, KnownPolicy | FeatureInversion) else attack
    attack = attack.reader if isinstance(attack, Fishing) else attack
    return attack if isinstance(attack, Matching) else None


def evaluations_of(entry: Entry) -> float:
    """Return how many evaluations an attack takes at most with its authors' iterations; 0 if it is not iterative."""
    attack = matching_of(entry)
    return 0.0 if attack is None else attack.most_evaluations()


def fitting_iterations(exposure: Exposure, entry: Entry, seconds: float) -> int:
    """Return how many iterations to give an attack for it to take `seconds`: all if its steps do not depend on their number."""
    attack = matching_of(entry)
    if entry.most is None or attack is None:
        return 0
    if not any(rule.schedule for rule in attack.rules.values()):
        return entry.most
    return iterations_within(exposure, entry, seconds)


def iterations_within(exposure: Exposure, entry: Entry, seconds: float) -> int:
    """Return how many iterations of an attack fit into `seconds` by the pace of its first evaluations; 0 if there is no time to begin."""
    if (entry.most or 0) <= LEAST_ITERATIONS:
        return entry.most or 0
    pace = Pace(most=PROBE)
    began = pace.clock()
    pace.until = began + PROBE_SHARE * seconds
    reconstruct(exposure, entry, entry.most or 1, pace)
    used = pace.clock() - began + pace.overhead(began)
    if used > seconds:
        return 0
    each = (pace.seconds or 0.0) * evaluations_of(entry) / (entry.most or 1)
    return max(1, min(entry.most or 1, math.floor((SPARE * seconds - used) / max(each, 1e-9))))


def reconstruct(
    exposure: Exposure, entry: Entry, iterations: int, pace: Pace | None = None, report: Reporter = SILENT
) -> Reconstruction:
    """Return what an attack of the suite makes of all clients; `pace` times it and may end it."""
    execution = timed(exposure.device, entry, iterations, pace, report)
    exposure = exposure.with_labels() if entry.knows_targets else exposure
    return run_attack(exposure, attack_of(entry, iterations), execution, informed=entry.informed)


def attack_of(entry: Entry, iterations: int) -> Attack:
    """Return an attack of the suite; one that stalls or diverges begins again until it had the share of iterations that is enough."""
    attack = entry.make(iterations)
    if entry.most is None or matching_of(entry) is None:
        return attack
    return Restarting(attack, min(iterations, math.ceil(ENOUGH_SHARE * entry.most)))


def timed(device: torch.device, entry: Entry, iterations: int, pace: Pace | None, report: Reporter) -> Execution:
    """Return how an attack runs that `pace` may end and that reports its iterations."""

    def tick(progress: Progress) -> None:
        report(entry.name, done=progress.iteration, total=iterations)

    return replace(execution_on(device), out_of_time=pace, progress=tick if report.listener else None)


def execution_on(device: torch.device) -> Execution:
    """Return how the attacks of an audit run: as one batch on a CPU, in the form that is fastest on a CUDA device."""
    return Execution(device=str(device), form="native" if device.type == "cpu" else None)


def iterations_note(entry: Entry, iterations: int, reconstruction: Reconstruction) -> str:
    """Return the iterations in words, beside what the authors use."""
    if entry.most is None:
        proved = reconstruction.proved
        return "no iterations" if proved is None else f"{int(proved.sum())} of {proved.numel()} proved by the update"
    starts = int(reconstruction.learned[STARTS].max()) if STARTS in reconstruction.learned else 1
    reached = int(reconstruction.iterations.max())
    reached = min(iterations, reached) if starts == 1 else reached
    several = f" from up to {starts} starts" if starts > 1 else ""
    return f"{reached} iterations{several}; its authors run up to {entry.most}"


@dataclass(slots=True, eq=False)
class Attempt(Generic[V]):
    """An attack of the suite: its result so far, how it was cut short, why it failed, and (measured or guessed) seconds.

    `pace` is that of an evaluation, `overhead` that of what comes before the first.
    """

    entry: Entry
    clients: int
    result: V | None = None
    cut: CutShort | None = None
    failure: Untested | None = None
    broken: bool = False  # it applies, and failed
    pace: float | None = None
    overhead: float = 0.0

    def may_gain(self, seconds: float) -> bool:
        """Return whether it was not run yet, or would get clearly farther in so many seconds."""
        if self.cut is None or self.failure is not None:
            return self.result is None and self.failure is None
        if self.entry.most is None:
            return self.result is None or seconds > GAIN * self.result.seconds
        each = (self.pace or math.inf) * evaluations_of(self.entry) / self.cut.most
        return (seconds - self.overhead) / each >= GAIN * self.cut.iterations + 1

    def take(self, result: V, cut: CutShort | None) -> None:
        """Keep a result, unless an earlier one recovered more: a leak that was found stands."""
        old = self.result
        if (
            isinstance(old, AttackResult)
            and isinstance(result, AttackResult)
            and old.recovered.sum() > result.recovered.sum()
        ):
            return
        self.result, self.cut = result, cut
        ends = result.reconstruction
        diverged = ends.outcome == Outcome.DIVERGED
        idle = bool(((ends.outcome == Outcome.STALLED) | diverged).all())
        if not idle or int(ends.evaluations.max()) > 1:
            done = result.all_recovered if isinstance(result, AttackResult) else torch.zeros_like(diverged)
            # below an absolute threshold before the first iteration: the update is too small for it
            blind = (ends.outcome == Outcome.CONVERGED) & (ends.iterations == 0) & (self.entry.most is not None)
            self.broken = 2 * int(((diverged | blind) & ~done).sum()) >= len(
                done
            )  # what it did not recover says little
            return
        lost = "is NaN or infinite" if bool(diverged.any()) else "does not change with the guess"
        why = f"its loss {lost} at the start" if self.entry.most else "the gradient of the first layer is zero"
        self.result, self.failure = None, Untested(self.entry.name, f"{why}, for every client")
        self.broken = self.entry.most is not None


Run = Callable[[Entry, int, Pace], tuple[V, CutShort | None]]


def run_attempts(
    exposure: Exposure, attempts: Sequence[Attempt[V]], budget: Budget, report: Reporter, run: Run[V]
) -> None:
    """Run attacks, each for a share of the time left by its evaluations, and again those that may get farther in what is left."""
    for _ in range(PASSES):
        waiting = [each for each in attempts if each.may_gain(budget.left)]
        for place, attempt in enumerate(waiting):
            rest = sum(evaluations_of(each.entry) for each in waiting[place:])
            exact = attempt.entry.most is None
            seconds = budget.left * (EXACT_SHARE if exact else evaluations_of(attempt.entry) / max(rest, 1.0))
            if attempt.may_gain(seconds):
                report(attempt.entry.name, f"{attempt.clients} updates, {seconds:.0f} s")
                _attempt(exposure, attempt, seconds, budget, run)


def _attempt(exposure: Exposure, attempt: Attempt[V], seconds: float, budget: Budget, run: Run[V]) -> None:
    """Run one attack for about `seconds`, never past the end of the budget."""
    entry = attempt.entry
    try:
        end = budget.clock() + seconds
        iterations = fitting_iterations(exposure, entry, seconds) if seconds > attempt.overhead else 0
        if entry.most is not None and not iterations:
            attempt.cut = attempt.cut or CutShort(entry.name, 0, entry.most, attempt.clients, attempt.clients)
            return
        pace = Pace(budget.clock, until=min(budget.end, end))
        began = budget.clock()
        attempt.take(*run(entry, iterations, pace))
        if entry.most is None and pace.ended:
            attempt.cut = CutShort(entry.name, 0, ROUNDS, attempt.clients, attempt.clients)
        attempt.pace, attempt.overhead = pace.seconds or attempt.pace, pace.overhead(began)
    except (
        Exception
    ) as error:  # such as a layer that cannot be differentiated; an attack of the user's may raise anything
        if not (entry.own or isinstance(error, InputError | RuntimeError | MemoryError)):
            raise
        attempt.broken = is_failure(error)
        attempt.failure = Untested(entry.name, first_line(error) if attempt.broken else str(error))


def seconds_needed(attempts: Sequence[Attempt[V]]) -> float | None:
    """Return how long all attacks take with the least iterations that are enough, by their paces; None if none is known."""
    paces = [each.pace for each in attempts if each.pace is not None]
    if not paces:
        return None
    total = 0.0
    for each in attempts:
        enough = each.cut is None or each.cut.enough
        used = 0.0 if each.result is None else each.result.seconds
        rounds = 0 if each.cut is None else each.cut.most * each.clients  # of an exact attack
        work = (each.pace or max(paces)) * (ENOUGH_SHARE * evaluations_of(each.entry) or rounds)
        total += used if enough else (each.overhead + work) / SPARE
    return total
