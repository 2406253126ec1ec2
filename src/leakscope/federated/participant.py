"""The curious participant: a client that sees the averaged model before and after a round, and no single update.

Fan et al. 2020, arXiv:2006.11601, section 2.1 (an honest but curious participant). It knows its own update and both sample counts,
so that with n_k samples of its own and n of all

    sent by the others = (n mean - n_k own) / (n - n_k),     mean = after, or (before - after) / rate for gradients.

With one other participant this is that client's update; with more it is their weighted mean, which an attack treats as one
client with all their samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Observation, Round, Shares


def observe_others(own: Observation, after: Tree, samples: Tensor, *, rate: float | None = None) -> Observation:
    """Return the aggregate of the other participants as one client's observation.

    `own` is what the participant received and sent in one round, T trials; `after` are the averaged weights of the next round and
    `samples` the examples of all participants, its own included. A federation that shares gradients needs the server's `rate`.
    """
    if len(own.rounds) != 1:
        raise InputError(f"observe_others reads one round, got {len(own.rounds)}")
    if bool((samples <= own.samples).any()):
        raise InputError("samples must be those of all participants, more than the participant's own")
    gradients = own.shares is Shares.GRADIENT
    if gradients != (rate is not None):
        raise InputError(f"rate must be given where gradients are shared and only there, got {rate}")
    (seen,) = own.rounds
    every = {n: (seen.before[n] - after[n]) / rate if rate is not None else after[n] for n in seen.sent}
    others = samples - own.samples

    def weighted(name: str) -> Tensor:
        total, mine, rest = (_like(count, every[name]) for count in (samples, own.samples, others))
        return ((total * every[name].double() - mine * seen.sent[name].double()) / rest).to(every[name].dtype)

    sent = {name: weighted(name) for name in every}
    return Observation((Round(seen.before, seen.buffers, sent),), own.shares, others)


def _like(count: Tensor, value: Tensor) -> Tensor:
    return count.to(device=value.device, dtype=torch.float64).reshape(-1, *[1] * (value.ndim - 1))
