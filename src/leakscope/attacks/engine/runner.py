"""Runs a plan chunk by chunk, halves chunks that do not fit into memory, and saves the state of the current one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution, Plan, make_plan
from leakscope.attacks.engine.state import Finished, Problem, Progress, Stop
from leakscope.core.errors import TooLargeError
from leakscope.core.model import Model
from leakscope.core.tree import map_tensors, take, trials
from leakscope.kernels.checkpoint import Checkpoint
from leakscope.kernels.heap import give_back
from leakscope.kernels.memory import is_out_of_memory


def run_problem(
    model: Model, problem: Problem, stop: Stop, execution: Execution, stamp: str, evaluations: float
) -> Finished:
    """Return the end of every trial, following the plan in `execution.directory` if there is one."""
    plan = Plan.read(execution.directory, stamp, trials(problem.unknowns)) if execution.directory else None
    with precision(execution.tf32 if plan is None else plan.tf32):
        if plan is None:
            plan = make_plan(model, problem, execution, evaluations, stop)
            if execution.directory:
                plan.write(execution.directory, stamp)
        try:
            return _Run(model, problem, stop, execution, stamp, plan).finish()
        finally:
            give_back()


def too_large(device: str) -> TooLargeError:
    """Return the error for a trial that does not fit by itself."""
    return TooLargeError(f"one trial does not fit into the memory of {device}: attack fewer images at a time")


class _Run:
    """One run of a plan; out-of-memory errors may shrink its chunks."""

    def __init__(
        self, model: Model, problem: Problem, stop: Stop, execution: Execution, stamp: str, plan: Plan
    ) -> None:
        self.model, self.problem, self.stop = model, problem, stop
        self.execution, self.stamp, self.plan = execution, stamp, plan
        self.done: list[Progress] = []

    def finish(self) -> Finished:
        """Return the results of all chunks."""
        parts: list[Finished] = []
        position = 0
        while position < len(self.plan.chunks):
            first, last = self.plan.chunks[position]
            try:
                parts.append(self._chunk(first, last))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if last - first < 2:
                    raise too_large(self.execution.device) from error
            else:
                position += 1
                continue
            self._halve(position)  # outside the handler: the error keeps the tensors of the failed chunk alive
        return map_tensors(lambda *each: torch.cat(each), parts[0], *parts[1:])

    def _halve(self, position: int) -> None:
        """Split every chunk from this position on, and write the new plan."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        give_back()
        smaller: list[tuple[int, int]] = []
        for first, last in self.plan.chunks[position:]:
            middle = (first + last + 1) // 2
            smaller += [(first, middle), (middle, last)] if last - first > 1 else [(first, last)]
        self.plan = replace(self.plan, chunks=(*self.plan.chunks[:position], *smaller))
        warnings.warn(f"out of memory: chunks halved to {smaller[0][1] - smaller[0][0]} trials", stacklevel=2)
        if self.execution.directory:
            self.plan.write(self.execution.directory, self.stamp)

    def _chunk(self, first: int, last: int) -> Finished:
        checkpoint = self._checkpoint(first, last)
        part = take(self.problem, slice(first, last))
        engine = Engine(
            self.model,
            part,
            self.stop,
            self.plan.form,
            progress=self._reporter(),
            checkpoint=checkpoint,
            out_of_time=self.execution.out_of_time,
        )
        finished = engine.run()
        if checkpoint is not None:
            checkpoint.remove()
        return finished

    def _checkpoint(self, first: int, last: int) -> Checkpoint | None:
        folder: Path | None = self.execution.directory
        if folder is None:
            return None
        stamp = f"{self.stamp}:{self.plan.form}:{first}-{last}"
        return Checkpoint(folder / f"chunk-{first}-{last}.safetensors", stamp, self.execution.save_every)

    def _reporter(self) -> Callable[[Progress], None] | None:
        """Return a callback that adds the chunks already done to this one's progress."""
        progress = self.execution.progress
        if progress is None:
            return None
        before = list(self.done)
        self.done.append(Progress(0, 0, 0, 0, 0, 0))
        slot = len(self.done) - 1
        total = trials(self.problem.unknowns)

        def report(now: Progress) -> None:
            self.done[slot] = now
            progress(
                Progress(
                    total,
                    now.done + sum(p.done for p in before),
                    now.converged + sum(p.converged for p in before),
                    now.diverged + sum(p.diverged for p in before),
                    now.iteration,
                    now.evaluations,
                    now.note,
                )
            )

        return report


@contextlib.contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Set TF32 for CUDA matrix products and convolutions, and restore it; its default for convolutions doubled the L-BFGS steps."""
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions
