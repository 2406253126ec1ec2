"""One tick: evaluate all lanes, find whose iteration ended and who is done, record traces, move the rest.

A tick reads nothing back to the host, so on a CUDA device its kernels are recorded and replayed in one launch, several ticks
between two checks by the host. All changes are masked by live trials. Ticks with the same operations share a recording
(`Optimiser.phase`); numbers that depend on the tick alone (`Optimiser.numbers`) are read from device memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import Evaluation, Evaluator
from leakscope.attacks.engine.state import Problem, Recorder, State, Stop
from leakscope.attacks.optimisers.rules import Moment, Numbers, moving
from leakscope.core.tree import Tree, rows
from leakscope.core.types import Outcome
from leakscope.kernels.recordings import Fetched, NotRecordableError, record_update, update_in_place

AHEAD = 32  # ticks whose numbers are in device memory at a time


class Ticker:
    """Advances the state of a chunk tick by tick; on a CUDA device a kind of tick is recorded from its second run on."""

    def __init__(
        self,
        problem: Problem,
        stop: Stop,
        recorder: Recorder,
        evaluators: Callable[[tuple[str, ...]], Evaluator],
        *,
        record: bool = True,
    ) -> None:
        """Prepare for the lanes of `problem`; without `record` every tick launches its kernels one by one."""
        self.problem, self.stop, self.recorder, self.evaluators = problem, stop, recorder, evaluators
        device = next(iter(problem.unknowns.values())).device
        self.numbers = _TickNumbers(problem, device)
        self.record = record and device.type == "cuda"
        self.marks = recorder.on(device)
        self._pool = torch.cuda.graph_pool_handle() if self.record else None
        self._constants: dict[Hashable, list[Tensor | None]] = {}
        self._recordings: dict[Hashable, Callable[[], None]] = {}

    def advance(self, state: State, tick: int) -> None:
        """Run tick number `tick` on the state, in place."""
        self.numbers.prepare(tick)
        kind = (moving(state.unknowns, self.problem.rules, tick), tick == 0, self.problem.optimiser.phase(tick))
        if self.record and kind in self._constants and kind not in self._recordings:
            self._try_recording(kind, state, tick)
        if kind in self._recordings:
            self._recordings[kind]()
        elif self.record:  # the first of its kind runs directly, in the recordings' memory, and sets up its kernels
            with Fetched() as fetched:
                update_in_place(partial(self.step, tick=tick), state)
            self._constants[kind] = fetched.values
        else:
            self.step(state, tick)

    @property
    def recorded(self) -> bool:
        """Return whether any kind of tick is recorded."""
        return bool(self._recordings)

    def _try_recording(self, kind: Hashable, state: State, tick: int) -> None:
        """Record a kind of tick; if that fails, all later ticks run without recordings."""
        try:
            step = partial(self.step, tick=tick)
            self._recordings[kind] = record_update(step, state, self._constants[kind], self._pool)
        except NotRecordableError as error:
            self.record = False
            self._recordings.clear()  # direct runs create new tensors
            warnings.warn(f"a step could not be recorded ({error}): same results, slower", stacklevel=2)

    @torch.no_grad()
    def step(self, state: State, tick: int) -> None:
        """Evaluate, settle, judge, record and move: the only way a state advances, on any device."""
        turn = moving(state.unknowns, self.problem.rules, tick)
        evaluation = self.evaluators(turn)(state.unknowns, state.iteration)
        self._move(state, self._read(state, evaluation, tick))
        self.numbers.pass_tick()

    def _read(self, state: State, evaluation: Evaluation, tick: int) -> Moment:
        """Update iteration counts, mismatches and outcomes from an evaluation."""
        live = state.outcome == Outcome.RUNNING
        now = partial(Moment, evaluation.gradient, evaluation.total, tick=tick, numbers=self.numbers.now())
        ended, vanished = self.problem.optimiser.settle(state.memory, now(iteration=state.iteration))
        boundary = live if tick == 0 else live & ended
        state.iteration = state.iteration + (live & ended)
        state.evaluations = state.evaluations + live
        state.mismatch = torch.where(live, evaluation.mismatch, state.mismatch)
        finite = torch.isfinite(evaluation.total)
        for g in evaluation.gradient.values():
            finite = finite & torch.isfinite(rows(g).abs().amax(1))
        state.last = where(live & finite, state.unknowns, state.last, state.lane)
        self._judge(state, live, boundary, finite, vanished)
        self.recorder.write(state, boundary & finite, self.marks)
        return now(iteration=state.iteration)

    def _judge(self, state: State, live: Tensor, boundary: Tensor, finite: Tensor, vanished: Tensor | None) -> None:
        better = boundary & (state.mismatch < state.best * (1 - self.stop.gain))
        state.best = torch.where(better, state.mismatch, state.best)
        state.best_at = torch.where(better, state.iteration, state.best_at)
        if vanished is not None:
            _mark(state, live & vanished, Outcome.STALLED)
        if self.stop.patience is not None:
            _mark(state, boundary & (state.iteration - state.best_at >= self.stop.patience), Outcome.STALLED)
        _mark(state, boundary & (state.iteration >= self.stop.iterations), Outcome.EXHAUSTED)
        if self.stop.threshold > 0:
            _mark(state, boundary & self._under(state), Outcome.CONVERGED)
        _mark(state, live & ~finite, Outcome.DIVERGED)

    def _under(self, state: State) -> Tensor:
        """Return who is under the threshold; 0 means never, even if rounding makes a cosine distance negative."""
        return (state.mismatch < self.stop.threshold) & (self.stop.threshold > 0)

    def _move(self, state: State, moment: Moment) -> None:
        live = state.outcome == Outcome.RUNNING
        optimiser = self.problem.optimiser
        midway = optimiser.midway(state.memory, moment)
        new, stuck = optimiser.move(
            state.unknowns, state.memory, moment, self.problem.rules, self.problem.facts.knowledge
        )
        state.unknowns = where(live, new, state.unknowns, state.lane)
        if stuck is None:
            return
        # a trial that cannot move ends the iteration it is in
        state.iteration = state.iteration + (live & stuck & midway)
        _mark(state, live & stuck, Outcome.STALLED)
        _mark(state, live & stuck & self._under(state), Outcome.CONVERGED)


class _TickNumbers:
    """Inputs of a step that depend on the tick alone: a table and a counter on a CUDA device, computed directly on a CPU."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem
        self.names = list(problem.unknowns)
        self.first: int | None = None
        self.width = len(problem.optimiser.numbers(problem.rules[self.names[0]], 0))
        self.on_device = device.type == "cuda" and self.width > 0
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.table = torch.zeros(AHEAD, len(self.names), self.width, dtype=torch.float64, device=device)

    def prepare(self, tick: int) -> None:
        """Make the numbers of a tick available; called for every tick, in order."""
        if self.on_device and (self.first is None or tick >= self.first + AHEAD):
            self.first = tick
            rules = [self.problem.rules[name] for name in self.names]
            rows = [[self.problem.optimiser.numbers(rule, tick + i) for rule in rules] for i in range(AHEAD)]
            self.table.copy_(torch.tensor(rows, dtype=torch.float64))
            self.clock.zero_()

    def now(self) -> Numbers:
        """Return the numbers of this tick for each unknown; empty on a CPU."""
        if not self.on_device:
            return {}
        row = self.table.index_select(0, self.clock)[0]
        return {name: tuple(numbers.unbind()) for name, numbers in zip(self.names, row.unbind(), strict=True)}

    def pass_tick(self) -> None:
        """Advance to the next tick, on the device too."""
        if self.on_device:
            self.clock.add_(1)


def _mark(state: State, who: Tensor, outcome: Outcome) -> None:
    state.outcome = torch.where(who, int(outcome), state.outcome)


def where(mask: Tensor, new: Tree, old: Tree, lane: Tensor | None = None) -> Tree:
    """Return the new values of the trials in `mask`, the old ones of the others; of padding (`lane` -1) either.

    On a CPU the new values themselves are returned if all trials are in the mask.
    """
    if lane is not None and not mask.is_cuda and bool((mask | (lane < 0)).all()):
        return dict(new)
    return {
        name: torch.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) for name, value in new.items()
    }
