"""The one attack loop: advances all live trials tick by tick and retires those that are done.

A tick is one evaluation of the batch (see `tick`); trials may be in different iterations, unless an unknown rests (`Rule`). On a
CPU the host checks after every tick. On a CUDA device it runs several ticks between checks and compacts only at multiples of
`LOOK_EVERY`, so that results do not depend on how often it checks. On a CPU the bits of a trial do not depend on its neighbours:
every chunk ends in spare copies of its first lane (see `lanes`), and weights are per trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from leakscope.attacks.engine.forms import ALONE, Evaluator, trace_after, value_alone, value_at
from leakscope.attacks.engine.state import Finished, Problem, Progress, Recorder, State, Stop, single_numbers
from leakscope.attacks.engine.tick import Ticker, where
from leakscope.attacks.priors import GUESS
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift, map_tensors, take, trials
from leakscope.core.types import Outcome
from leakscope.kernels.checkpoint import Checkpoint
from leakscope.kernels.lanes import VECTOR, lanes, padded, spare_beside, spare_lanes

LOOK_EVERY = 32  # ticks on a CUDA device between two checks of who is done


class Engine:
    """Runs one chunk to its end; can save its state and resume from it."""

    def __init__(
        self,
        model: Model,
        problem: Problem,
        stop: Stop,
        form: str,
        *,
        progress: Callable[[Progress], None] | None = None,
        checkpoint: Checkpoint | None = None,
        record: bool = True,
        out_of_time: Callable[[int], bool] | None = None,
    ) -> None:
        """Check the rules; `record` allows recorded ticks on a CUDA device; `out_of_time` is asked before each evaluation."""
        missing = sorted(set(problem.unknowns) - set(problem.rules))
        if missing:
            raise InputError(f"every unknown needs a rule; none for {', '.join(missing)}")
        problem.optimiser.check(problem.rules)
        self.model, self.problem, self.stop, self.form = model, problem, stop, form
        self.total = trials(problem.unknowns)
        self.progress, self.checkpoint, self.record = progress, checkpoint, record
        self.out_of_time = out_of_time
        self.recorder = Recorder(stop)
        self.device = next(iter(problem.unknowns.values())).device
        self.spare = spare_lanes(model, problem.facts.knowledge, self.device)
        if form in ALONE:  # the network never sees two lanes at once, only what moves the unknowns does
            self.spare = min(self.spare, spare_beside(min(value[0].numel() for value in problem.unknowns.values())))
        self.unpadded = form in ALONE and (self.device.type == "cuda" or self._moves_in_whole_vectors())
        self.tick = 0
        self.running = self.laid_out = self.total
        self.results: State | None = None
        self.ledger = torch.zeros(self.total, dtype=torch.int64)
        self.seconds: list[float] = []  # per tick, at every check
        self.recorded = False  # whether any tick was played from a recording
        self._reported_at = 0.0

    def _moves_in_whole_vectors(self) -> bool:
        """Return whether steps compute number by number and every trial fills whole vectors: then no lane needs copies beside it."""
        whole = all(value[0].numel() % VECTOR == 0 for value in self.problem.unknowns.values())
        return whole and self.problem.optimiser.evaluations == 1

    def run(self) -> Finished:
        """Return the final state of every trial."""
        state = self._resumed() or self._begin()
        ticker = self._bind(state)
        while not self._cut(state):
            began = time.perf_counter()
            ahead = self._ahead()
            for tick in range(self.tick, self.tick + ahead):
                ticker.advance(state, tick)
            self.tick += ahead
            self.recorded = self.recorded or ticker.recorded
            self._rearrange(state, ticker)
            self._look(state)
            self.seconds.append((time.perf_counter() - began) / ahead)
            if not self.running:
                break
            if self._should_compact(state):
                state = self._compact(state)
                ticker = self._bind(state)
            if self.checkpoint is not None and self.checkpoint.due():
                self._save(state)
            self._report(state)
        self._flush(state)
        self._report(state, force=True)
        return self._finished()

    def _cut(self, state: State) -> bool:
        """Return whether the run ends here for lack of time; trials still running then count as exhausted."""
        if self.out_of_time is None or not self.out_of_time(self.tick):
            return False
        state.outcome = torch.where(state.outcome == Outcome.RUNNING, int(Outcome.EXHAUSTED), state.outcome)
        return True

    def rehearse(self) -> tuple[State, Ticker]:
        """Return the state and the evaluators after one tick and its results, without spare lanes: shows what a run needs."""
        state = self._lay_out(torch.arange(self.total, device=self.device), self.total)
        ticker = self._bind(state)
        ticker.advance(state, 1)
        state.outcome.fill_(int(Outcome.EXHAUSTED))
        self._flush(state)
        return state, ticker

    def _ahead(self) -> int:
        """Return how many ticks to run before the next check: 1 on a CPU, else up to a multiple of `LOOK_EVERY` and about a second."""
        if self.device.type == "cpu":
            return 1
        left = int(self.stop.iterations * self.problem.optimiser.evaluations) + 1 - self.tick
        soon = int(1 / self.seconds[-1]) if self.seconds else 1
        if self.problem.moves is not None:
            left = next((n for n in range(1, left) if self.problem.moves.due(self.tick + n)), left)
        return max(min(LOOK_EVERY - self.tick % LOOK_EVERY, left, soon), 1)

    def _rearrange(self, state: State, ticker: Ticker) -> None:
        """Let the moves between ticks change the unknowns of running trials, in place as recorded ticks read them."""
        moves, facts = ticker.problem.moves, ticker.problem.facts
        if moves is None or not moves.due(self.tick):
            return

        def value(unknowns: Tree) -> Tensor:
            if self.form not in ALONE:
                return lift(partial(value_at, self.model))(unknowns, facts, state.iteration)
            trials_alone = [take((unknowns, facts, state.iteration), i) for i in range(self.laid_out)]
            values = torch.stack([value_alone(self.model, *each) for each in trials_alone])
            return torch.cat([values, values[:1].expand(len(state.lane) - self.laid_out)])

        with torch.no_grad():
            new = moves(state.unknowns, facts, self.tick, value)
            running = where(state.outcome == Outcome.RUNNING, new, state.unknowns)
            if not ticker.recorded:
                state.unknowns = running
            else:
                map_tensors(lambda old, moved: old.copy_(moved), state.unknowns, running)

    def _look(self, state: State) -> None:
        """Read which trials are still running; on a CUDA device this synchronises."""
        self.running = state.outcome.tolist().count(Outcome.RUNNING)

    # -- layout

    def _begin(self) -> State:
        index = padded(torch.arange(self.total, device=self.device), self.width(self.total))
        return self._lay_out(index, self.total)

    def width(self, live: int) -> int:
        """Return the number of lanes for so many live trials; no padding where each trial is evaluated and moved alone."""
        return live if self.unpadded else lanes(live, self.spare)

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
            last=map_tensors(torch.clone, unknowns),
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

    def _bind(self, state: State) -> Ticker:
        """Return the ticker for the lanes now in the state."""
        index = state.lane.clamp_min(0)
        pads = state.lane < 0
        if bool(pads.any()):
            index = torch.where(pads, state.lane[0].clamp_min(0), index)
        same = self.unpadded and index.tolist() == list(range(self.total))  # then no copy of the weights is needed
        local = replace(self.problem if same else take(self.problem, index), unknowns=state.unknowns)
        form = self.form
        if form == "compiled" and len(state.lane) < self.width(self.total):
            form = "im2col"  # the tail of a chunk is not worth a second compilation
        if form == "compiled":
            self._report(state, force=True, note="compiling the step (once for this shape; kept on disk)")
        self.laid_out = int((state.lane >= 0).sum())
        after = trace_after(self.stop.iterations * self.problem.optimiser.evaluations)
        make = partial(Evaluator, self.model, state.unknowns, local.facts, form, trace_after=after, real=self.laid_out)
        evaluators = cache(lambda turn: make(wanted=turn))
        return Ticker(local, self.stop, self.recorder, evaluators, record=self.record)

    # -- compaction, results, saving

    def _should_compact(self, state: State) -> bool:
        """Return whether enough trials had ended at the last check."""
        if self.device.type != "cpu" and self.tick % LOOK_EVERY:
            return False
        if self.form in ALONE:
            return self.running < self.laid_out
        share = 8 if self.form == "compiled" else 2
        return self.width(self.running) <= len(state.lane) // share

    def _compact(self, state: State) -> State:
        """Retire finished trials and keep the live ones, at half the width or less."""
        self._flush(state)
        live = (state.outcome == Outcome.RUNNING).nonzero()[:, 0]
        index = padded(live, self.width(len(live)))
        for name in state.memory:  # one after the other: the memory of L-BFGS is most of a state
            state.memory[name] = take(state.memory[name], index)
        compact = replace(take(replace(state, memory={}), index), memory=state.memory)
        compact.lane[len(live) :] = -1
        compact.outcome[len(live) :] = int(Outcome.EXHAUSTED)
        return compact

    def _flush(self, state: State) -> None:
        """Write the trials that are done into the results."""
        done = (state.lane >= 0) & (state.outcome != Outcome.RUNNING)
        diverged = (state.outcome == Outcome.DIVERGED) & done
        rows_done = done.nonzero()[:, 0]
        ended = replace(state, unknowns=where(diverged, state.last, state.unknowns), memory={})
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
