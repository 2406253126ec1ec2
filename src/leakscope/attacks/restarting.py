"""An attack that begins again from other starts where it ended early: what an attacker does whose optimiser got stuck."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.core.model import Model
from leakscope.core.tree import map_tensors, take
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Seeds

MOST_COPIES = 16  # starts of a trial at once: twice as many in each turn, as one may run for all its iterations
APART = 2**32  # between the seeds of a trial's starts
STARTS = "starts"


@dataclass(frozen=True, slots=True)
class Restarting:
    """`base`, restarted where it stalled or diverged until a trial had `least` iterations in all.

    The start with the smallest mismatch is kept; the private data are never consulted. Iterations and evaluations are those of all
    starts, whose number is `learned["starts"]`. A trial that stalled at its first evaluation is left alone: no step could be taken.
    """

    base: Attack
    least: int

    @property
    def name(self) -> str:
        """Return the name of the attack."""
        return self.base.name

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the reconstruction of every trial."""
        best = self.base.run(model, observation, knowledge, seeds, execution)
        used, evaluations, starts = best.iterations.clone(), best.evaluations.clone(), torch.ones_like(best.iterations)
        moved, copies, before = best.evaluations > 1, 1, int(best.evaluations.max())
        while len(places := _stuck(best, moved & (used < self.least))) and not _over(execution, before):
            lanes = places.repeat_interleave(copies)
            number = starts[lanes] + torch.arange(copies, device=starts.device).repeat(len(places))
            others = [seeds[t] + APART * n for t, n in zip(lanes.tolist(), number.tolist(), strict=True)]
            facts = take((observation, knowledge), lanes.to(observation.samples.device))
            again = self.base.run(model, *facts, others, _later(execution, before))
            used.index_add_(0, lanes, again.iterations.clamp_min(1).to(used))
            evaluations.index_add_(0, lanes, again.evaluations.to(evaluations))
            starts[places] += copies
            best = _better(best, again, lanes)
            before += int(again.evaluations.max())
            copies = min(2 * copies, MOST_COPIES)
        if bool((starts == 1).all()):
            return best
        learned = {**best.learned, STARTS: starts.to(best.mismatch)}
        return replace(best, iterations=used, evaluations=evaluations, learned=learned)


def _stuck(result: Reconstruction, open_: Tensor) -> Tensor:
    """Return the trials of the open ones that ended before their iterations and their threshold."""
    early = (result.outcome == Outcome.STALLED) | (result.outcome == Outcome.DIVERGED)
    return (early & open_).nonzero().flatten()


def _over(execution: Execution, evaluations: int) -> bool:
    return execution.out_of_time is not None and execution.out_of_time(evaluations)


def _later(execution: Execution, before: int) -> Execution:
    """Return the execution of a later start, whose evaluations come after so many."""
    ask = execution.out_of_time
    return execution if ask is None else replace(execution, out_of_time=lambda at: ask(before + at))


def _better(best: Reconstruction, again: Reconstruction, lanes: Tensor) -> Reconstruction:
    """Return the result with the smallest mismatch of every trial; `lanes` are the trials of the new results."""
    old, new = _error(best), _error(again)
    for lane, trial in enumerate(lanes.tolist()):
        if new[lane] < old[trial]:
            old[trial] = new[lane]
            best = map_tensors(lambda x, y, lane=lane, trial=trial: _put(x, y[lane], trial), best, again)
    return best


def _put(values: Tensor, value: Tensor, place: int) -> Tensor:
    whole = values.clone()
    whole[place] = value
    return whole


def _error(result: Reconstruction) -> Tensor:
    diverged = result.outcome == Outcome.DIVERGED
    return result.mismatch.nan_to_num(torch.inf).masked_fill(diverged, torch.inf).clone()
