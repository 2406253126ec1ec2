"""SPN's CAPs with the right spread, from the trials' distances and the test accuracies.

Fan et al. 2020, arXiv:2006.11601, equation 1: CAP = 1/S sum over strengths of Acc * dist. Both factors are estimates, so the
numbers of a row carry both errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random

TRAINED, PRINTED = "trained", "table 11"
NO_QUERIES, EVERY_QUERY, KNOWN_QUERIES, UNPAIRED = "none", "all", "reconstructed", "unpaired"


@dataclass(frozen=True, slots=True)
class Cap:
    """A CAP: its attack, its queries (or that labels are not paired), and its measures with the distances they are computed from."""

    attack: str
    queries: str
    measures: Mapping[str, str]


CAPS: dict[str, Cap] = {
    "reconstruction": Cap("reconstruction", NO_QUERIES, {"cap": "rmse", "cap_raw": "rmse_raw"}),
    "membership": Cap("membership", NO_QUERIES, {"cap": "membership"}),
    "membership in any order": Cap("membership", UNPAIRED, {"cap": "membership_unpaired"}),
    "tracing": Cap("tracing", EVERY_QUERY, {"cap": "tracing"}),
    "tracing of reconstructed queries": Cap("tracing", KNOWN_QUERIES, {"cap": "tracing_reconstructed"}),
}


def caps_of(right: Tensor, distances: Sequence[Sequence[float]]) -> list[float]:
    """Return T numbers whose mean is the CAP, from S x J (whether test image j is classified correctly) and S x T distances.

    Trial k uses every T-th test image from the k-th on. With d the mean distance of a strength,

        v_k = 1/S sum_s [ Acc_s dist_sk + d_s T/J sum over its images of (right_sj - Acc_s) ],

    so the spread of the v_k includes distances and accuracies, and the correlation between strengths, which share the images.
    Trials without a distance (`characteristics.Rule`) are left out.

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
    """Return the CAP of guessing a participant, as one number: the mean accuracy times 1 - 1/N."""
    return [float(right.double().mean()) * (1 - 1 / owners)]


def printed_pictures(rates: Sequence[float], tests: int) -> Tensor:
    """Return S x J correct or wrong images with the printed accuracies (to half an image), drawn independently for each strength."""
    keys = random.fold(random.key(0), "printed accuracies")
    ranks = [random.permutation(random.fold(keys, number), tests) for number in range(len(rates))]
    return torch.stack([rank < round(rate * tests) for rank, rate in zip(ranks, rates, strict=True)])
