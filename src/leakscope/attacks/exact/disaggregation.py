"""Gradient disaggregation: updates of single clients from sums over rounds. Lam et al. 2021, ICML, arXiv:2106.06089.

Under secure aggregation the server sees in round r the sum `s_r = sum_k P_rk u_k` over the clients that took part. If each client's update
stays about the same, `S = P U` with S rounds x parameters and P binary, so every column of P lies in the column space of S. Servers
also log how often each client took part in every window of rounds (device analytics). Per client (their Eq. 5)

    p_k = argmin |N p|_1   over p in {0, 1}^R with as many ones in each window as the client has,     N S = 0,

and then `U = P^+ S`. Differences from the paper: the L1 norm in place of the L2 norm, so that each is a mixed-integer linear program; and a
second program asks for another participation that fits as well. Where one exists, or neither is settled in time, the result says so and
there are no updates: they would mix clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, rows
from leakscope.core.types import Observation, direction

CLEAR = 2.0  # another participation must fit so many times worse
MARGIN = 10.0  # of the rounding error of the column space

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Who took part in which round (R x K), whether that is the only answer for each client (K), and the clients' mean updates (K x D).

    `updates` is None unless every client's participation is the only one that fits. `misfit` is |N p|_1 of each client.
    """

    participation: Tensor
    unique: Tensor
    misfit: Tensor
    updates: Tensor | None

    __repr__ = short_repr


def sums_of(rounds: Sequence[Observation]) -> Tensor:
    """Return the summed update of every round, R x D in float64: the mean times the examples behind it, so that client k gives n_k u_k."""
    if not rounds or any(seen.trials != 1 or len(seen.rounds) != 1 for seen in rounds):
        raise InputError("disaggregation reads one observation a round, of one trial and one exchange each")
    summed = []
    for seen in rounds:
        update = direction(seen.rounds[0], seen.shares)
        flat = torch.cat([rows(value)[0] for value in update.values()]).double()
        summed.append(float(seen.samples[0]) * flat)
    return torch.stack(summed)


def as_update(row: Tensor, like: Tree) -> Tree:
    """Return a row of `Disaggregated.updates` as the tensors of an update (each with a leading 1, as in `like`)."""
    parts = row.split([value.numel() for value in like.values()])
    return {name: part.reshape(value.shape).to(value) for (name, value), part in zip(like.items(), parts, strict=True)}


def disaggregate(
    sums: Tensor,
    counts: Tensor,
    *,
    window: int,
    dtype: torch.dtype = torch.float32,
    seconds: float = 10.0,
) -> Disaggregated:
    """Return the updates of single clients from sums (R x D) and how often each took part in every `window` rounds (K x windows).

    `dtype` is that of the clients' numbers; `seconds` limits each of the two programs of a client.
    """
    R, (K, windows) = len(sums), counts.shape
    if window < 1 or -(-R // window) != windows:
        raise InputError(f"counts must have a column for every {window} of {R} rounds, got {windows}")
    outside, rounding = _outside(sums.double(), K, dtype)
    columns = [_solve(outside, count, window, seconds) for count in counts.double().numpy()]
    participation = np.stack([column for column, _ in columns], 1)
    unique = [
        bool(np.isfinite(misfit)) and _is_only(outside, count, window, seconds, column, max(CLEAR * misfit, rounding))
        for count, (column, misfit) in zip(counts.double().numpy(), columns, strict=True)
    ]
    P = torch.from_numpy(participation)
    certain = all(unique) and int(torch.linalg.matrix_rank(P)) == K
    updates = torch.linalg.lstsq(P, sums.double().cpu()).solution if certain else None
    return Disaggregated(P.bool(), torch.tensor(unique), torch.tensor([misfit for _, misfit in columns]), updates)


def _outside(sums: Tensor, clients: int, dtype: torch.dtype) -> tuple[Array, float]:
    """Return an orthonormal basis of what is outside the sums' column space, and its rounding error; no row if that cannot be told."""
    left, values, _ = torch.linalg.svd(sums, full_matrices=False)
    nothing = np.zeros((0, len(sums))), 0.0
    if len(values) < clients:
        return nothing
    rounding = len(sums) * torch.finfo(dtype).eps * float(values[0] / values[clients - 1].clamp_min(1e-300))
    if not rounding < 1 / MARGIN:  # fewer updates differ than there are clients
        return nothing
    basis = torch.linalg.qr(left[:, :clients], mode="complete").Q[:, clients:]
    return basis.mT.cpu().numpy(), MARGIN * rounding


def _solve(
    outside: Array, counts: Array, window: int, seconds: float, other: Array | None = None, most: float = np.inf
) -> tuple[Array, float]:
    """Return the participation with these counts that fits best, and its misfit; inf if there is none with one of at most `most`.

    `other` is excluded. NaN: the program did not end in time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    rounds = outside.shape[1]
    slack = np.eye(len(outside))
    windows = (np.arange(rounds) // window == np.arange(len(counts))[:, None]).astype(float)
    empty = np.zeros((len(counts), len(outside)))
    rules = [
        LinearConstraint(np.block([[outside, -slack], [-outside, -slack]]), -np.inf, 0.0),
        LinearConstraint(np.hstack([windows, empty]), counts, counts),
    ]
    cost = np.concatenate([np.zeros(rounds), np.ones(len(outside))])
    if np.isfinite(most):
        rules.append(LinearConstraint(cost[None], -np.inf, most))
    if other is not None:
        differs = np.concatenate([np.where(other > 0, -1.0, 1.0), np.zeros(len(outside))])
        rules.append(LinearConstraint(differs[None], 1.0 - other.sum(), np.inf))
    binary = (cost == 0).astype(int)
    found = milp(
        cost,
        constraints=rules,
        integrality=binary,
        bounds=Bounds(0, np.where(binary, 1, np.inf)),
        options={"time_limit": seconds},
    )
    if found.x is None:
        return np.zeros(rounds), np.inf if found.status == 2 else np.nan  # 2: infeasible
    return np.round(found.x[:rounds]), float(found.fun)


def _is_only(outside: Array, counts: Array, window: int, seconds: float, column: Array, most: float) -> bool:
    """Return whether no other participation has a misfit of at most `most`; False if that is not settled in time."""
    return bool(np.isinf(_solve(outside, counts, window, seconds, column, most)[1]))
