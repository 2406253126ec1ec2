"""The memory of a run, predicted from one tick of a single lane."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from leakscope.attacks.engine.forms import ALONE, THREADED, trace_after
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.state import Problem, Stop
from leakscope.core.errors import TooLargeError
from leakscope.core.model import Model
from leakscope.core.tree import take, tensors, trials
from leakscope.kernels.lanes import NARROWEST, lanes
from leakscope.kernels.memory import OverLimitError, V, count_bytes, is_out_of_memory

HEAP = 1.15  # bytes of the process per byte of tensors on a CPU: gaps between blocks, workspaces of kernels (benchmarks/memory.py)
BASE = 32 * 2**20  # bytes of a run on a CPU beside its tensors: graphs, threads, code loaded on the way
NODE = 24 * 2**10  # bytes of an operation in a graph while it is traced
MOST_TRIALS = 10**6


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a run in one form: for each lane, for each trial evaluated alone at a time, and for each trial.

    A lane holds the state, the facts and, unless trials are evaluated alone, its evaluation. `trial` is held from start to end,
    `other` by each trial while its client is played and its result is scored. `graph` is the traced evaluation itself.
    """

    form: str
    lane: int
    alone: int
    trial: int
    other: int
    graph: int
    spare: int
    restarts: int
    on_cpu: bool

    def at(self, trials: int) -> int:
        """Return the bytes of a chunk of so many trials, spare lanes included."""
        live, threads = trials * self.restarts, torch.get_num_threads()
        parts = threads if self.form == "split" else 1
        width = max(lanes(live, self.spare), parts * lanes(-(-live // parts), self.spare))
        at_once = min(threads if self.form in THREADED else 1, live)
        run = width * self.lane + at_once * self.alone
        total = trials * self.trial + max(run, trials * self.other)
        bases = 1 + threads if self.form == "split" else 1  # a traced graph on a thread of its own takes as much again
        return int(HEAP * total) + bases * BASE + self.graph if self.on_cpu else total

    def fits(self, limit: int) -> int:
        """Return the most trials of a chunk that needs at most `limit` bytes; 0 if not even one fits."""
        return bisect.bisect_right(range(1, MOST_TRIALS), limit, key=self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """A memory limit and what the forms of a run need of it; `trial` and `other` are bytes beside the run, see `Footprint`."""

    model: Model
    problem: Problem
    stop: Stop
    limit: int
    restarts: int = 1
    trial: int = 0
    other: int = 0
    _known: dict[str, Footprint] = field(default_factory=dict)

    def need(self, form: str) -> Footprint:
        """Return the memory of a form, probed once; OverLimitError if one trial does not fit."""
        if form not in self._known:
            self._known[form] = self._probe(form)
        return self._known[form]

    def _probe(self, form: str) -> Footprint:
        """Return the memory of a form from one tick of one lane, which is stopped at the limit."""
        probed = {"compiled": "im2col", "split": "native"}.get(form, "loop" if form in ALONE else form)
        engine = Engine(self.model, take(self.problem, slice(0, 1)), self.stop, probed, record=False)
        at_once = 1 if form in ALONE else NARROWEST
        _, held, peak, operations = count_bytes(engine.rehearse, self.limit // at_once)
        most = self.stop.iterations * self.problem.optimiser.evaluations
        traced = form in THREADED or (most > trace_after(most) and form != "loop")
        stored = sum(t.numel() * t.element_size() for t in tensors(self.problem)) // trials(self.problem.unknowns)
        need = Footprint(
            form,
            lane=held if form in ALONE else peak,
            alone=peak - held if form in ALONE else 0,
            trial=self.trial + self.restarts * stored,
            other=self.other,
            graph=operations * NODE if traced else 0,
            spare=engine.spare,
            restarts=self.restarts,
            on_cpu=engine.device.type == "cpu",
        )
        if need.at(1) > self.limit:
            raise OverLimitError(f"one trial needs about {need.at(1) / 2**20:.0f} MiB")
        return need

    def fits(self, form: str, trials: int) -> bool:
        """Return whether so many trials fit in a form."""
        try:
            return self.need(form).at(trials) <= self.limit
        except OverLimitError:
            return False

    def settle(self, form: str | None) -> str | None:
        """Return the form to use, None if there is a choice: 'loop' if vmap does not support the model or does not fit.

        Raises an InputError if not even one trial fits.
        """
        try:
            self.need(form or "native")
            return form
        except OverLimitError as error:
            if form is not None:
                raise _refusal(error, self.limit) from None
        except RuntimeError as error:
            if form is not None or is_out_of_memory(error):
                raise
            reason = str(error).strip().split("\n")[0]
            warnings.warn(
                f"model {self.model.name!r} cannot be evaluated for many trials at once ({reason}); running them one by one: "
                "same results, slower",
                stacklevel=4,
            )
        return self.settle("loop")


def count_within(limit: int, f: Callable[[], V]) -> tuple[V, int, int, int]:
    """Return what `count_bytes` returns; an InputError if `f` needs more than `limit`."""
    try:
        return count_bytes(f, limit)
    except OverLimitError as error:
        raise _refusal(error, limit) from None


def _refusal(error: OverLimitError, limit: int) -> TooLargeError:
    return TooLargeError(f"{error}, the memory limit is {limit / 2**20:.0f} MiB")
