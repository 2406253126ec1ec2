"""The memory of a run, predicted from one tick of a single lane."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import ALONE, THREADED, trace_after
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.state import Problem, Stop
from leakscope.core.errors import TooLargeError
from leakscope.core.model import Model
from leakscope.core.tree import take, tensors, trials
from leakscope.kernels.lanes import NARROWEST, lanes
from leakscope.kernels.memory import OverLimitError, V, count_bytes, is_out_of_memory

HEAP = 1.5  # bytes of the process per byte of tensors on a CPU: gaps between blocks, workspaces of kernels (benchmarks/memory.py)
BASE = 32 * 2**20  # bytes of a run on a CPU beside its tensors: graphs, threads, code loaded on the way
NODE = 24 * 2**10  # bytes of an operation in a graph while it is traced
MOST_TRIALS = 10**6


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a run in one form: for each lane, for each trial evaluated alone at a time, and for each trial.

    A lane holds the state, the facts and, unless trials are evaluated alone, its evaluation. `trial` is held from start to end,
    `other` by each trial while its client is played and its result is scored. `graph` is the traced evaluation itself, `network`
    the network and its first weights.
    """

    form: str
    lane: int
    alone: int
    trial: int
    other: int
    graph: int
    network: int
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
        return self._in_process(trials * self.trial + max(run, trials * self.other))

    def measuring(self, lanes: int, beside: int = 0) -> int:
        """Return the bytes of one trial whose form is measured on so many lanes, with so many bytes of other tensors."""
        at_once = min(torch.get_num_threads() if self.form in THREADED else 1, lanes)
        return self._in_process(self.trial + lanes * self.lane + at_once * self.alone + beside)

    def _in_process(self, tensors: int) -> int:
        if not self.on_cpu:
            return tensors + self.network
        bases = (
            1 + torch.get_num_threads() if self.form == "split" else 1
        )  # a graph on a thread of its own takes as much again
        return int(HEAP * (tensors + self.network)) + bases * BASE + self.graph

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

    @property
    def stored(self) -> int:
        """Return the bytes of the problem of one lane."""
        return bytes_of(tensors(self.problem)) // trials(self.problem.unknowns)

    def need(self, form: str) -> Footprint:
        """Return the memory of a form, probed once; OverLimitError if one trial does not fit."""
        if form not in self._known:
            self._known[form] = self._probe(form)
        return self._known[form]

    def _probe(self, form: str) -> Footprint:
        """Return the memory of a form from one tick of one lane, which is stopped before all it adds reaches the limit."""
        on_cpu = next(iter(self.problem.unknowns.values())).device.type == "cpu"
        network = network_bytes(self.model) if on_cpu else 0
        probed = {"compiled": "im2col", "split": "native"}.get(form, "loop" if form in ALONE else form)
        engine = Engine(self.model, take(self.problem, slice(0, 1)), self.stop, probed, record=False)
        at_once = 1 if form in ALONE else NARROWEST
        left = (tensors_within(self.limit, self.model, on_cpu) - self.trial - self.restarts * self.stored) // at_once
        try:
            _, held, peak, operations = count_bytes(engine.rehearse, left)
        except OverLimitError:
            raise _more_than(self.limit, on_cpu) from None
        most = self.stop.iterations * self.problem.optimiser.evaluations
        traced = form in THREADED or (most > trace_after(most) and form != "loop")
        need = Footprint(
            form,
            lane=held if form in ALONE else peak,
            alone=peak - held if form in ALONE else 0,
            trial=self.trial + self.restarts * self.stored,
            other=self.other,
            graph=operations * NODE if traced else 0,
            network=network,
            spare=engine.spare,
            restarts=self.restarts,
            on_cpu=on_cpu,
        )
        if need.at(1) > self.limit:
            raise OverLimitError(f"one trial needs about {_size(need.at(1))}")
        return need

    def fits(self, form: str, trials: int) -> bool:
        """Return whether so many trials fit in a form."""
        try:
            return self.need(form).at(trials) <= self.limit
        except OverLimitError:
            return False

    def measurable(self, form: str, lanes: int, *, beside: int = 0) -> bool:
        """Return whether a form can be measured on so many lanes, with the problem of `beside` others in memory.

        On a CUDA device the batch of the run is measured, so what fits there does.
        """
        try:
            need = self.need(form)
            if not need.on_cpu:
                return self.fits(form, -(-lanes // self.restarts))
            return need.measuring(lanes, beside * self.stored) <= self.limit
        except OverLimitError:
            return False

    def most_lanes(self, form: str, most: int) -> int:
        """Return on how many lanes, at most `most` and at least one, a form can be measured."""
        return next((lanes for lanes in range(most, 1, -1) if self.measurable(form, lanes)), 1)

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


def count_within(limit: int, f: Callable[[], V], model: Model, *, on_cpu: bool) -> tuple[V, int, int, int]:
    """Return what `count_bytes` returns; an InputError if `f` needs more than `limit` leaves for tensors."""
    try:
        return count_bytes(f, tensors_within(limit, model, on_cpu))
    except OverLimitError:
        raise _refusal(_more_than(limit, on_cpu), limit) from None


def tensors_within(limit: int, model: Model, on_cpu: bool) -> int:
    """Return the bytes of tensors that a process may hold beside its network."""
    return max(int((limit - BASE) / HEAP) - network_bytes(model), 0) if on_cpu else limit


def network_bytes(model: Model) -> int:
    """Return the bytes of a network on a CPU: its module and its first weights."""
    return 2 * bytes_of([*model.parameters.values(), *model.buffers.values()])


def bytes_of(values: Iterable[Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(value.numel() * value.element_size() for value in values)


def _more_than(limit: int, on_cpu: bool) -> OverLimitError:
    """Return that one trial needs more than a limit, and at least what any run on a CPU needs."""
    return OverLimitError(f"one trial needs over {_size(max(limit, BASE) if on_cpu else limit)}")


def _refusal(error: OverLimitError, limit: int) -> TooLargeError:
    return TooLargeError(f"{error}, the memory limit is {_size(limit)}")


def _size(number: int) -> str:
    return f"{number / 2**20:.0f} MiB" if number >= 2**20 else f"{number} bytes"
