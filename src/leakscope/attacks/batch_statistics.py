"""Statistics of a client's batch, read from the buffers of its batch norms before and after a round.

A step of training moves a running statistic r to `(1 - m) r + m s`, s being the batch's mean, or its variance times n / (n - 1).
After k steps `r_k = (1 - m)^k r_0 + sum_i m (1 - m)^(k - i) s_i`, so

    (r_k - c r_0) / (1 - c),   c = (1 - m)^k

is the batch statistic after one step and its exponentially weighted mean after several. With momentum None, c is the share of
batches counted before the round, and the result is the plain mean. Hatamizadeh et al. 2022, arXiv:2202.06924, for k = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.objectives import local_steps
from leakscope.attacks.view import View
from leakscope.core.errors import InputError
from leakscope.core.model import Model, Norm
from leakscope.core.padding import channel_statistics
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, Tree, lift
from leakscope.core.types import Knowledge, Observation, Round

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and variance (over n, not n - 1) of each channel of a layer's input."""

    mean: Tensor
    variance: Tensor

    __repr__ = short_repr


def read_batch_statistics(model: Model, observation: Observation, knowledge: Knowledge) -> dict[str, Statistics]:
    """Return the statistics of every trial's batch in the first round, by layer; raise if the buffers do not show them."""
    first = observation.rounds[0]
    if first.buffers_after is None:
        raise InputError("the client did not send its buffers, so batch statistics cannot be read")
    for norm in model.norms:
        for name in (norm.buffer(MEAN), norm.buffer(VARIANCE)):
            for when, buffers in (("before", first.buffers), ("after", first.buffers_after)):
                if name not in buffers or buffers[name].shape[1:] != model.buffers[name].shape:
                    raise InputError(f"the buffers {when} the round do not belong to {model.name!r}: {name!r}")
                if not bool(buffers[name].isfinite().all()):
                    raise InputError(f"the buffers {when} the round hold NaN or infinity: {name!r}")
    return {norm.layer: lift(partial(target_statistics, norm))(first, knowledge) for norm in model.norms}


def target_statistics(norm: Norm, seen: Round, knowledge: Knowledge) -> Statistics:
    """Return the statistics of ONE client's batch: from the buffers it sent, else the running ones that it received."""
    before, after = seen.buffers, seen.buffers_after or {}
    old = [before[norm.buffer(kind)].double() for kind in (MEAN, VARIANCE)]
    if norm.buffer(MEAN) not in after or norm.buffer(VARIANCE) not in after or norm.momentum == 0:
        return Statistics(*old)
    new = [after[norm.buffer(kind)].double() for kind in (MEAN, VARIANCE)]
    kept = kept_share(norm, before, after, knowledge)
    moved = kept < 1  # not by a client in eval mode
    values = [torch.where(moved, (b - kept * a) / (1 - kept).clamp_min(TINY), a) for a, b in zip(old, new, strict=True)]
    n = _examples(knowledge, values[0]) * norm.positions
    variance = torch.where(moved, values[1] * (n - 1) / n, values[1])
    return Statistics(values[0], variance.clamp_min(0))


def kept_share(norm: Norm, before: Tree, after: Tree, knowledge: Knowledge) -> Tensor:
    """Return which share of a running statistic is older than the round; steps are counted by the buffers, else those known."""
    like = before[norm.buffer(MEAN)].double()
    counter = norm.buffer(COUNTER)
    counted = counter in before and counter in after
    if norm.momentum is None and not counted:
        raise InputError(f"batch norm {norm.layer!r} has momentum None, and {counter!r} was not sent")
    if norm.momentum is None:
        return before[counter].double() / after[counter].double().clamp_min(1)
    known = 1 if knowledge.local is None else local_steps(knowledge.local, knowledge)
    steps = after[counter] - before[counter] if counted else known
    steps = steps.double() if isinstance(steps, Tensor) else torch.full_like(like[0], steps)
    return torch.pow(torch.full_like(steps, 1 - norm.momentum), steps)


def _examples(knowledge: Knowledge, like: Tensor) -> Tensor:
    """Return the examples of one step of ONE client."""
    size = None if knowledge.local is None else knowledge.local.batch_size
    held = (
        torch.full_like(like[0], knowledge.samples) if knowledge.present is None else knowledge.present.sum().to(like)
    )
    return held if size is None else held.clamp_max(size)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """`weight * sum over batch norms of ||mean - target|| + ||variance - target||`, from the inputs of the layers.

    Targets are the statistics of the client's batch if it sent its buffers, else the running ones of the global model
    (GradInversion, Yin et al. 2021, arXiv:2104.07586, Eq. 8). 0 for a network without batch norm. Needs the simulator `Watched`.
    """

    weight: float | Tensor = 0.1

    def __call__(self, view: View) -> Tensor:
        """Return the penalty."""
        total = view.simulated.output.new_zeros(())
        for each in view.simulated.entering:
            if isinstance(each.layer, Norm):
                target = target_statistics(each.layer, view.seen, view.knowledge)
                mean, variance, _ = channel_statistics(each.value, each.present)
                total = total + _distance(mean, target.mean) + _distance(variance, target.variance)
        return self.weight * total


def _distance(value: Tensor, target: Tensor) -> Tensor:
    """Return the length of the difference, smoothed at 0."""
    return ((value - target.to(value.dtype)).square().sum() + TINY**2).sqrt()
