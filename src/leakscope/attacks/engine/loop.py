"""The one loop: evaluates all live trials, lets the optimiser move them, and retires those that are done.

A tick is one evaluation of the batch; trials need not be in the same iteration. Only where they are may an unknown rest (`Rule`).

A CPU run does not depend on a trial's neighbours, to the bit: every chunk ends in spare copies of its first lane (see
`lanes`), and weights are per trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import ALONE, Evaluation, Evaluator
from leakscope.attacks.engine.state import Finished, Problem, Progress, Recorder, State, Stop, single_numbers
from leakscope.attacks.optimisers.rules import Moment, moving
from leakscope.attacks.priors import GUESS
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, map_tensors, rows, take, trials
from leakscope.core.types import Outcome
from leakscope.kernels.checkpoint import Checkpoint
from leakscope.kernels.lanes import lanes, padded, spare_lanes


class Engine:
    """Runs one chunk to its end; may save its state on the way and go on from a saved one."""

    def __init__(
        self,
        model: Model,
        problem: Problem,
        stop: Stop,
        form: str,
        *,
        progress: Callable[[Progress], None] | None = None,
        checkpoint: Checkpoint | None = None,
        timed: bool = False,
    ) -> None:
        """Check the rules and lay out the state; `timed` keeps the seconds of every evaluation and of the rest of its tick."""
        missing = sorted(set(problem.unknowns) - set(problem.rules))
        if missing:
            raise InputError(f"every unknown needs a rule; none for {', '.join(missing)}")
        problem.optimiser.check(problem.rules)
        self.model, self.problem, self.stop, self.form = model, problem, stop, form
        self.total = trials(problem.unknowns)
        self.progress, self.checkpoint = progress, checkpoint
        self.recorder = Recorder(stop)
        self.device = next(iter(problem.unknowns.values())).device
        self.spare = spare_lanes(model, problem.facts.knowledge, self.device)
        self.tick = 0
        self.running = self.laid_out = self.total
        self.results: State | None = None
        self.ledger = torch.zeros(self.total, dtype=torch.int64)
        self.timed = timed
        self.evaluating: list[float] = []
        self.stepping: list[float] = []
        self._reported_at = 0.0

    def run(self) -> Finished:
        """Return every trial's end."""
        state = self._resumed() or self._begin()
        local, evaluators = self._bind(state)
        while True:
            began = self._now()
            turn = moving(state.unknowns, local.rules, self.tick)
            evaluation = evaluators(turn)(state.unknowns, state.iteration)
            between = self._now()
            moment = self._read(state, evaluation, local)
            if not self.running:
                break
            self._move(state, moment, local)
            self.tick += 1
            if self._should_compact(state):
                state = self._compact(state)
                local, evaluators = self._bind(state)
            if self.checkpoint is not None and self.checkpoint.due():
                self._save(state)
            self._report(state)
            self.evaluating.append(between - began)
            self.stepping.append(self._now() - between)
        self._flush(state)
        self._report(state, force=True)
        return self._finished()

    def _now(self) -> float:
        if self.timed and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() if self.timed else 0.0

    # -- layout

    def _begin(self) -> State:
        index = padded(torch.arange(self.total, device=self.device), self.width(self.total))
        return self._lay_out(index, self.total)

    def width(self, live: int) -> int:
        """Return the lanes laid out for so many live trials."""
        return lanes(live, self.spare)

    def _lay_out(self, index: Tensor, live: int) -> State:
        unknowns = take(self.problem.unknowns, index)
        width = len(index)
        first = next(iter(unknowns.values()))
        device = first.device
        whole = torch.zeros(width, dtype=torch.int64, device=device)
        guess = unknowns[GUESS]
        lane = index.clone().to(device)
        lane[live:] = -1
        unseen = torch.full((width, len(self.recorder.trace_at)), float("nan"), device=device)
        return State(
            lane=lane,
            unknowns=unknowns,
            last=unknowns,
            memory=take(self.problem.optimiser, index).begin(unknowns),
            iteration=whole.clone(),
            evaluations=whole.clone(),
            outcome=torch.where(lane >= 0, int(Outcome.RUNNING), int(Outcome.EXHAUSTED)),
            mismatch=first.new_full((width,), float("nan")),
            best=first.new_full((width,), float("inf")),
            best_at=whole.clone(),
            trace=unseen,
            courses={name: unseen.clone() for name in single_numbers(unknowns)},
            snapshots=guess.new_full((width, len(self.recorder.snapshots_at), *guess.shape[1:]), float("nan")),
        )

    def _bind(self, state: State) -> tuple[Problem, Callable[[tuple[str, ...]], Evaluator]]:
        """Return the fixed part for the lanes now in the state, and its evaluators, by the unknowns that move."""
        index = state.lane.clamp_min(0)
        pads = state.lane < 0
        if bool(pads.any()):
            index = torch.where(pads, state.lane[0].clamp_min(0), index)
        local = replace(
            self.problem,
            unknowns=state.unknowns,
            facts=take(self.problem.facts, index),
            optimiser=take(self.problem.optimiser, index),
            rules=take(dict(self.problem.rules), index),
        )
        form = self.form
        if form == "compiled" and len(state.lane) < self.width(self.total):
            form = "im2col"  # the tail of a chunk is not worth a second compilation
        if form == "compiled":
            self._report(state, force=True, note="compiling the step (once for this shape; kept on disk)")
        self.laid_out = int((state.lane >= 0).sum())
        make = partial(Evaluator, self.model, state.unknowns, local.facts, form, real=self.laid_out)
        return local, cache(lambda turn: make(wanted=turn))

    # -- one tick

    def _read(self, state: State, evaluation: Evaluation, local: Problem) -> Moment:
        """Take an evaluation in: whose iteration ended, what it was worth, who is done."""
        live = state.outcome == Outcome.RUNNING
        before = Moment(evaluation.gradient, evaluation.total, state.iteration, self.tick)
        ended, vanished = local.optimiser.settle(state.memory, before)
        state.iteration = state.iteration + (ended & live)
        state.evaluations += live
        state.mismatch = torch.where(live, evaluation.mismatch, state.mismatch)
        boundary = live & (ended | (self.tick == 0))
        finite = torch.isfinite(evaluation.total)
        for g in evaluation.gradient.values():
            finite = finite & torch.isfinite(rows(g).abs().amax(1))
        state.last = _where(live & finite, state.unknowns, state.last)
        self._judge(state, live, boundary, finite, vanished)
        written = boundary & finite
        # one look at the device in a tick: each makes it wait
        iterations, outcomes, marks = torch.stack([state.iteration, state.outcome, written.long()]).tolist()
        self.running = outcomes.count(Outcome.RUNNING)
        self.recorder.write(
            state, written, {iteration for iteration, mark in zip(iterations, marks, strict=True) if mark}
        )
        return replace(before, iteration=state.iteration)

    def _judge(self, state: State, live: Tensor, boundary: Tensor, finite: Tensor, vanished: Tensor) -> None:
        under = self._under(state)
        better = boundary & (state.mismatch < state.best * (1 - self.stop.gain))
        state.best = torch.where(better, state.mismatch, state.best)
        state.best_at = torch.where(better, state.iteration, state.best_at)
        stalled = vanished
        if self.stop.patience is not None:
            stalled = stalled | (boundary & (state.iteration - state.best_at >= self.stop.patience))
        self._mark(state, live & stalled, Outcome.STALLED)
        self._mark(state, boundary & (state.iteration >= self.stop.iterations), Outcome.EXHAUSTED)
        self._mark(state, boundary & under, Outcome.CONVERGED)
        self._mark(state, live & ~finite, Outcome.DIVERGED)

    def _under(self, state: State) -> Tensor:
        """Return who is under the threshold; 0 means never, though rounding lets a cosine fall below 0."""
        return (state.mismatch < self.stop.threshold) & (self.stop.threshold > 0)

    @staticmethod
    def _mark(state: State, who: Tensor, outcome: Outcome) -> None:
        state.outcome = torch.where(who, int(outcome), state.outcome)

    def _move(self, state: State, moment: Moment, local: Problem) -> None:
        live = state.outcome == Outcome.RUNNING
        midway = local.optimiser.midway(state.memory, moment)
        new, stuck = local.optimiser.move(state.unknowns, state.memory, moment, local.rules, local.facts.knowledge)
        state.unknowns = _where(live, new, state.unknowns)
        # a trial that cannot move ends the iteration it is in
        state.iteration = state.iteration + (live & stuck & midway)
        under = self._under(state)
        self._mark(state, live & stuck, Outcome.STALLED)
        self._mark(state, live & stuck & under, Outcome.CONVERGED)

    # -- compaction, results, saving

    def _should_compact(self, state: State) -> bool:
        """Return whether enough trials had ended when the last evaluation was read."""
        if self.form in ALONE:
            return self.running < self.laid_out
        share = 8 if self.form == "compiled" else 2
        return self.width(self.running) <= len(state.lane) // share

    def _compact(self, state: State) -> State:
        """Retire finished trials and keep the live ones, at half the width or less."""
        self._flush(state)
        live = (state.outcome == Outcome.RUNNING).nonzero()[:, 0]
        if not len(live):
            return state  # those left could not move: the next look ends the run
        index = padded(live, self.width(len(live)))
        compact = take(state, index)
        compact.lane[len(live) :] = -1
        compact.outcome[len(live) :] = int(Outcome.EXHAUSTED)
        return compact

    def _flush(self, state: State) -> None:
        """Write the trials that are done into the results."""
        done = (state.lane >= 0) & (state.outcome != Outcome.RUNNING)
        diverged = (state.outcome == Outcome.DIVERGED) & done
        rows_done = done.nonzero()[:, 0]
        ended = replace(state, unknowns=_where(diverged, state.last, state.unknowns), memory={})
        part = map_tensors(lambda t: t[rows_done].cpu(), ended)
        if self.results is None:
            self.results = map_tensors(lambda t: t.new_zeros((self.total, *t.shape[1:])), part)
        map_tensors(lambda whole, new: whole.index_copy_(0, part.lane, new), self.results, part)

    def _finished(self) -> Finished:
        r = self.results
        if r is None:
            raise RuntimeError("the engine finished without results")
        trace_at = torch.tensor(self.recorder.trace_at).expand(self.total, -1)
        snapshots_at = torch.tensor(self.recorder.snapshots_at).expand(self.total, -1)
        seen = torch.isfinite(r.snapshots.flatten(2)[..., :1]).all(-1)
        return Finished(
            unknowns=r.unknowns,
            mismatch=r.mismatch,
            iteration=r.iteration,
            evaluations=r.evaluations,
            outcome=r.outcome,
            trace=r.trace,
            trace_at=torch.where(torch.isfinite(r.trace), trace_at, -1),
            courses=r.courses,
            snapshots=r.snapshots,
            snapshots_at=torch.where(seen, snapshots_at, -1),
        )

    def _save(self, state: State) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save({"state": state, "results": self.results}, tick=self.tick)

    def _resumed(self) -> State | None:
        if self.checkpoint is None:
            return None
        saved = self.checkpoint.load()
        if saved is None:
            return None
        lane = saved.tensors["state/lane"]
        index = torch.where(lane < 0, 0, lane)
        device = next(iter(self.problem.unknowns.values())).device
        state = saved.restore("state", self._lay_out(index.to(device), len(lane)))
        blank = replace(self._lay_out(torch.arange(self.total), self.total), memory={})
        if any(name.startswith("results/") for name in saved.tensors):
            self.results = map_tensors(lambda t: t.cpu(), saved.restore("results", blank))
        self.tick = saved.tick
        if self.results is not None:
            self.ledger = self.results.outcome.clone()
        return state

    def _report(self, state: State, *, force: bool = False, note: str = "") -> None:
        now = time.monotonic()
        if self.progress is None or (now - self._reported_at < 0.2 and not force):
            return
        self._reported_at = now
        real = (state.lane >= 0).cpu()
        self.ledger[state.lane.cpu()[real]] = state.outcome.cpu()[real]
        number = torch.bincount(self.ledger, minlength=len(Outcome)).tolist()
        self.progress(
            Progress(
                total=self.total,
                done=self.total - number[Outcome.RUNNING],
                converged=number[Outcome.CONVERGED],
                diverged=number[Outcome.DIVERGED],
                iteration=int(state.iteration.max()),
                evaluations=self.tick,
                note=note,
            )
        )


def _where(mask: Tensor, new: Tree, old: Tree) -> Tree:
    return {
        name: torch.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) for name, value in new.items()
    }
