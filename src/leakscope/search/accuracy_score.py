"""The accuracy score of a policy: can an untrained network tell the transformed pictures apart?

Gao et al. 2021 after Mellor et al. 2021; "[Re] ... automatic transformation search", Eq. 4. J_n is the gradient of the summed
logits of a randomly initialised network (norm layers in eval mode) by picture n, v_i the eigenvalues of the correlation
matrix of the J_n of a batch, e = 1e-5:

    Eq. 4:                S_acc = 1/N sum_i ( log(v_i + e) + 1 / (v_i + e) )
    the authors' runs:    S_acc =    - sum_i ( log(v_i + e) + 1 / (v_i + e) )

The runs take the mean over ten batches of 100 test pictures, of each label the first one only. Higher is better there, and
the threshold -85 belongs to that form alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.defences.on_data import Transform
from leakscope.search.cores import on_cores
from leakscope.search.sample_gradients import input_gradients

EPSILON = 1e-5
THRESHOLD = -85.0
AT_ONCE = 64  # pictures, of all policies together: a bound on memory


def first_of_each_label(labels: Tensor) -> Tensor:
    """Return the places of the first picture of every label, in order.

    >>> first_of_each_label(torch.tensor([3, 1, 3, 2, 1])).tolist()
    [0, 1, 3]
    """
    same = labels[:, None] == labels[None, :]
    return (~same.tril(-1).any(1)).nonzero().squeeze(1)


def jacobians(model: Model, inputs: Tensor) -> Tensor:
    """Return the gradient of the summed logits by every input, N x numbers of an input; inputs are in network space."""
    made = None if inputs.is_cuda else input_gradients(model, torch.sum, inputs)
    return (_each(model, inputs) if made is None else made).flatten(1)


def _each(model: Model, inputs: Tensor) -> Tensor:
    """Return the gradients by inputs that are lanes of their own: for any network."""
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)

    def total(x: Tensor) -> Tensor:
        output, _ = model.apply(model.parameters, model.buffers, x[None], key)
        return output.sum()

    made: Tensor = torch.func.vmap(torch.func.grad(total))(inputs)
    return made


def correlation(rows: Tensor) -> Tensor:
    """Return the correlation matrix of rows (... x N x D), as numpy.corrcoef, in float64; a constant row correlates with none."""
    centred = rows.double() - rows.double().mean(-1, keepdim=True)
    length = centred.square().sum(-1, keepdim=True).sqrt()
    unit = torch.where(length > 0, centred / length.clamp_min(1e-300), 0.0)
    return unit @ unit.mT


def score_of(eigenvalues: Tensor, *, authors: bool = True) -> Tensor:
    """Return the score of eigenvalues (... x N): the authors' negated sum, or Eq. 4's mean."""
    lifted = eigenvalues.clamp_min(0) + EPSILON
    each = lifted.log() + 1 / lifted
    return -each.sum(-1) if authors else each.mean(-1)


def accuracy_scores(
    model: Model,
    batches: Sequence[tuple[Tensor, Tensor]],
    transforms: Sequence[Transform],
    *,
    scaling: Scaling,
    seed: int = 0,
    authors: bool = True,
) -> Tensor:
    """Return S_acc of every policy, the mean over batches of (pictures N x C x H x W in [0, 1], labels N).

    All policies meet the same pictures with the same draws; duplicates of a label are dropped. `model` is the network with
    random weights.
    """
    if not batches:
        raise InputError("the accuracy score needs at least one batch of pictures")
    made = torch.zeros(len(transforms), dtype=torch.float64, device=batches[0][0].device)
    threads = 1 if made.is_cuda else torch.get_num_threads()
    for number, (pictures, labels) in enumerate(batches):
        kept = pictures[first_of_each_label(labels)]
        own = random.fold(random.fold(random.key(seed, device=kept.device), "accuracy score"), number)
        keys = random.fold(own.expand(len(kept)), torch.arange(len(kept), device=kept.device))
        seen = scaling.scale(torch.cat([how.change(kept, how.draw(keys)) for how in transforms]), 3)
        rows = torch.cat(on_cores(functools.partial(jacobians, model), seen.split(AT_ONCE), threads))
        related = correlation(rows.unflatten(0, (len(transforms), len(kept))))
        made += score_of(torch.linalg.eigvalsh(related), authors=authors) / len(batches)
    return made
