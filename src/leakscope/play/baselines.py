"""Null baselines, which do not see the update: class mean, prior only, nearest public image.

They use the private batch only for its size, its labels (an advantage for the baseline) and, in the nearest public image, as an
oracle. Each trial's result depends only on that trial.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.null import BASELINES as BASELINES
from leakscope.attacks.null import PriorOnly, check_public, check_seeds, class_mean, guessed
from leakscope.attacks.recipes import prior_only
from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.core.scaling import Scaling
from leakscope.core.short_repr import short_repr
from leakscope.core.types import Batch, Knowledge, Reconstruction
from leakscope.data.dataset import Dataset, Part

SAME = 1e-11  # MSE up to which two images are equal: far above float64 rounding, far below one byte in one pixel
ROWS = 1024
BLOCK = 2**22  # public float64 values at a time: 32 MiB


def baselines(
    truth: Batch,
    public: Tensor,
    public_labels: Tensor,
    *,
    classes: int,
    seeds: Sequence[int],
    scaling: Scaling = Scaling(),  # noqa: B008  frozen
    prior: PriorOnly = prior_only(),  # noqa: B008  frozen
    execution: Execution = DEFAULT,
) -> dict[str, Reconstruction]:
    """Return the three baselines of a private batch by name, each as the reconstruction of an attack that knows the labels.

    `public` is P x input_shape in [0, 1] and must not contain private examples (see `public_part`); copies cause a warning.
    `scaling` is the client's. `prior` is the attack used without an update for 'prior_only', `seeds` (one per trial) are its
    seeds.
    """
    check_seeds(truth.trials, seeds)
    nearest = nearest_public(truth, public, public_labels, classes=classes)
    if copies := int(nearest.copies.sum()):
        warnings.warn(
            f"{copies} times a public picture was a copy of a private sample and was left out of nearest_public; "
            "take public and private examples from different parts",
            stacklevel=2,
        )
    shape = tuple(truth.inputs.shape[2:])
    knowledge = Knowledge(shape, classes, truth.samples, scaling=scaling, labels=truth.labels)
    return {
        "class_mean": class_mean(public, public_labels, classes=classes).guess(knowledge, truth.trials, execution),
        "prior_only": prior.guess(knowledge, seeds, execution),
        "nearest_public": nearest.reconstruction,
    }


def public_part(data: Dataset, private: Part) -> tuple[Tensor, Tensor]:
    """Return images and labels of the part that does not contain the private examples."""
    parts: dict[str, Part] = {"train": "test", "test": "train"}
    other = lookup(parts, private, "part")
    return data.pictures(other, slice(None)), data.labels(other, slice(None))


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The nearest public image of every private sample."""

    reconstruction: Reconstruction
    index: Tensor  # in the public set, T x N
    mse: Tensor  # T x N
    copies: Tensor  # T: public images excluded because they are samples of the same trial

    __repr__ = short_repr


def nearest_public(truth: Batch, public: Tensor, public_labels: Tensor, *, classes: int) -> Nearest:
    """Return for each private sample the public image with the least MSE to it: an ORACLE, chosen with the truth.

    It bounds from above every guesser that answers with an image of this public set. Public images equal to a sample of the same
    trial (MSE up to `SAME`) are excluded and counted. On ties the first is taken. Distances are `|x|^2 - 2 x.p + |p|^2` in
    float64, in blocks of bounded memory; rounding (about 1e-15) stays far below `SAME`.
    """
    _check(truth, public, public_labels, classes)
    size, width = max(1, ROWS // truth.samples), truth.inputs[0, 0].numel()
    parts = [
        _nearest(x.flatten(2).double(), mask, public, max(1, BLOCK // width))
        for x, mask in zip(truth.inputs.split(size), truth.mask.split(size), strict=True)
    ]
    index, mse, copies = (torch.cat(part) for part in zip(*parts, strict=True))
    empty = (index < 0).any(1).nonzero()
    if len(empty):
        raise InputError(
            f"all {len(public)} public pictures are samples of trial {int(empty[0])}; pass public pictures the client does not hold"
        )
    return Nearest(guessed(public[index].to(truth.inputs.dtype), public_labels[index]), index, mse, copies)


def _nearest(truth: Tensor, mask: Tensor, public: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (index, MSE, copies) of T x N x D samples; index -1 if every public image is a copy."""
    T, N, D = truth.shape
    x = truth.flatten(0, 1)
    best = x.new_full((T, N), torch.inf)
    index = torch.full((T, N), -1)
    copies = torch.zeros(T, dtype=torch.int64)
    for first in range(0, len(public), block):
        p = public[first : first + block].flatten(1).double()
        apart = torch.addmm(p.square().sum(1), x, p.T, alpha=-2).add_(x.square().sum(1)[:, None]).div_(D)
        apart = apart.reshape(T, N, -1)
        copy = ((apart <= SAME) & mask[..., None]).any(1)
        copies += copy.sum(1)
        apart.masked_fill_(copy[:, None], torch.inf)
        least = apart.amin(2)
        place = (apart <= least[..., None] + SAME).to(torch.uint8).argmax(2)  # the first of equals
        better = least < best - SAME
        best, index = best.where(~better, least), index.where(~better, place + first)
    return index, best, copies


def _check(truth: Batch, public: Tensor, public_labels: Tensor, classes: int) -> None:
    check_public(public, public_labels, classes)
    if public.shape[1:] != truth.inputs.shape[2:]:
        raise InputError(
            f"public pictures must have the private shape {tuple(truth.inputs.shape[2:])}, got {tuple(public.shape[1:])}"
        )
