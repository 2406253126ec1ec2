"""SPN's CAPs as numbers with the right spread: distances of trials, and accuracies that are shares of test pictures.

Fan et al. 2020, arXiv:2006.11601, equation 1: CAP = 1/S sum over strengths of Acc * dist. Both are estimates, so a row's numbers carry
both errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random

TRAINED, PRINTED = "trained", "table 11"
NO_QUERIES, EVERY_QUERY, KNOWN_QUERIES = "none", "all", "reconstructed"


@dataclass(frozen=True, slots=True)
class Cap:
    """A CAP: of which attack, over which queries, and its measures with the distances they are made of."""

    attack: str
    queries: str
    measures: Mapping[str, str]


CAPS: dict[str, Cap] = {
    "reconstruction": Cap("reconstruction", NO_QUERIES, {"cap": "rmse", "cap_raw": "rmse_raw"}),
    "membership": Cap("membership", NO_QUERIES, {"cap": "membership"}),
    "tracing": Cap("tracing", EVERY_QUERY, {"cap": "tracing"}),
    "tracing of reconstructed queries": Cap("tracing", KNOWN_QUERIES, {"cap": "tracing_reconstructed"}),
}


def caps_of(right: Tensor, distances: Sequence[Sequence[float]]) -> list[float]:
    """Return T numbers whose mean is the CAP, from S x J (is test picture j named rightly) and S x T distances.

    Trial k takes every T-th test picture, from the k-th on, and with d the mean distance of a strength

        v_k = 1/S sum_s [ Acc_s dist_sk + d_s T/J sum over its pictures of (right_sj - Acc_s) ],

    so that the spread of the v_k is that of the distances plus that of the accuracies. Pictures are the same at every strength,
    so what strengths have in common counts too. Trials without a distance (`analysis.characteristic.Rule`) are left out.

    >>> caps_of(torch.tensor([[1.0], [1.0]]), [[1.0, 0.0], [0.5, 1.0]])
    [0.75, 0.5]
    """
    named, apart = right.double(), torch.tensor(distances, dtype=torch.float64)
    apart = apart[:, ~apart.isnan().any(0)]
    rate, trials = named.mean(1, keepdim=True), apart.shape[1]
    trial = torch.arange(named.shape[1]) % trials
    excess = torch.zeros_like(apart).index_add(1, trial, named - rate) * (trials / named.shape[1])
    values: list[float] = (rate * apart + apart.mean(1, keepdim=True) * excess).mean(0).tolist()
    return values


def guessed_cap(right: Tensor, owners: int) -> list[float]:
    """Return the CAP of one who guesses a participant, as one number: the mean accuracy times 1 - 1/N."""
    return [float(right.double().mean()) * (1 - 1 / owners)]


def printed_pictures(rates: Sequence[float], tests: int) -> Tensor:
    """Return S x J pictures with the printed accuracies, which of them are right drawn for each strength by itself.

    What the paper's models had in common is not printed, so strengths count as independent. The rates are met to half a picture.
    """
    keys = random.fold(random.key(0), "printed accuracies")
    ranks = [random.permutation(random.fold(keys, number), tests) for number in range(len(rates))]
    return torch.stack([rank < round(rate * tests) for rank, rate in zip(ranks, rates, strict=True)])
