"""How much of a client's batch an attack recovered: as the client holds it, or transformed, as the network saw it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.core.tree import map_tensors
from leakscope.core.types import Outcome, Reconstruction
from leakscope.metrics import score
from leakscope.metrics.success import DEFAULT_RULE
from leakscope.play import Exposure, judge

DRAWS = 64  # random transformations of the batch that a guess is compared with: those of the client itself are not known here


def share_recovered(exposure: Exposure, guess: Reconstruction, *, exact: bool) -> float:
    """Return the share of examples that an attack recovered, the larger one of the private and the transformed examples.

    Fewer guesses than examples are compared repeatedly. What an `exact` attack certifies of transformed examples counts, whatever
    the transformation drew.
    """
    places = torch.arange(exposure.batch.samples) % guess.inputs.shape[1]
    repeated = replace(guess, inputs=guess.inputs[:, places], labels=guess.labels[:, places])
    share = float(judge(exposure.batch, repeated).summary.content.value)
    if exposure.client.on_data is None:
        return share
    seen = guess.inputs if guess.seen is None else guess.seen
    certified = float(_certified(guess).double().mean()) if exact else 0.0
    return max(share, certified, _share_as_seen(exposure, seen[:, places]))


def _share_as_seen(exposure: Exposure, seen: Tensor) -> float:
    """Return the share of examples that a guess equals after one of `DRAWS` draws of the client's transformation."""
    batch = map_tensors(lambda value: value.expand(DRAWS, *value.shape[1:]), exposure.batch)
    truth = exposure.client.transformed(batch, range(DRAWS))
    guess = seen.to(truth.inputs).expand_as(truth.inputs)
    scores = score(truth.inputs, truth.labels, guess, None, mask=truth.mask, within=DEFAULT_RULE.mse)
    read = DEFAULT_RULE.recovered(scores).any(0)
    return float(read.sum() / exposure.batch.mask.sum())


def _certified(guess: Reconstruction) -> Tensor:
    """Return which samples the update certifies; of one example also the quotient that solves its linear system."""
    if guess.proved is not None:
        return guess.proved
    one = guess.inputs.shape[1] == 1
    return (guess.outcome == Outcome.CONVERGED)[:, None] & one
