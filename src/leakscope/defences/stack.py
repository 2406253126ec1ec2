"""Defences in a row: applied to the update in the order given. What makes no sense together is refused by name."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.defences.on_update import (
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    RememberingDefence,
    Sign,
    Sparsify,
)

NOISE = (GaussianNoise, LaplaceNoise)
SPARSE = (Sparsify, DeepCompression, RandomMask)
COARSE = (Sign, Quantise)
OURS = (*NOISE, *SPARSE, *COARSE, Clip, LowRank)

# (first, later, why not)
SENSELESS: tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...] = (
    (SPARSE, NOISE, "noise fills the coordinates that were left out; put the noise first"),
    (SPARSE, (LowRank,), "a low-rank sketch fills the coordinates that were left out; put the sketch first"),
    (COARSE, NOISE, "noise undoes the rounding; put the noise first"),
    (COARSE, (LowRank,), "a low-rank sketch undoes the rounding; put the sketch first"),
    ((Clip,), (Sign,), "signs do not see a clip; leave one of them out"),
    ((Sign,), (Clip, Quantise), "signs are already bounded and rounded; leave one of them out"),
    ((Sign,), (Sparsify, DeepCompression), "signs have one size, so none is the largest; put the signs last"),
    ((Quantise,), (Sign,), "signs throw the rounded values away; leave one of them out"),
    ((Sparsify,), (DeepCompression,), "both choose the largest coordinates; leave one of them out"),
    ((DeepCompression,), (Sparsify,), "both choose the largest coordinates; leave one of them out"),
)
State = tuple[Tree, ...]


def check_stack(defences: Sequence[Defence]) -> None:
    """Refuse a defence given twice, and pairs whose order makes one of them pointless."""
    for later, defence in enumerate(defences):
        for first in defences[:later]:
            if type(first) is type(defence) and isinstance(defence, OURS):
                raise InputError(f"{type(defence).__name__} is stacked twice; give it once, with the strength you mean")
            for kinds, others, why in SENSELESS:
                if isinstance(first, kinds) and isinstance(defence, others):
                    raise InputError(f"{type(first).__name__} before {type(defence).__name__}: {why}")


def begin(defences: Sequence[Defence], update: Tree) -> State:
    """Return the states of a stack before the first round; {} for a defence that remembers nothing."""
    return tuple(d.begin(update) if isinstance(d, RememberingDefence) else {} for d in defences)


def protect(defences: Sequence[Defence], update: Tree, state: State, key: Tensor) -> tuple[Tree, State]:
    """Return the update after every defence in turn, and their states for the next round."""
    after: list[Tree] = []
    for number, (defence, own) in enumerate(zip(defences, state, strict=True)):
        k = random.fold(random.fold(key, "defence"), number)
        if isinstance(defence, RememberingDefence):
            update, own = defence.protect_and_remember(update, own, k)
        else:
            update = defence.protect_update(update, k)
        after.append(own)
    return update, tuple(after)


def revealed(defences: Sequence[Defence], sent: Tree) -> dict[str, object]:
    """Return what an attacker may know of a stack, as fields of Knowledge: facts, never the defences themselves.

    `mask` is 1 where a coordinate was sent (seen from the update itself: the others are exactly zero), `largest` says that these
    were the largest (`largest_each`: of every tensor by itself) and that nothing else was done to the update, `bound` the clip
    (`bound_each`: of every tensor by itself), `bits` of the quantisation (1 for signs; one bit has the levels of two), `sigma`
    the standard deviation of the noise (of all of it: variances add).
    """
    facts: dict[str, object] = {}
    like = next(iter(sent.values()))
    deviations = [
        _each(noise.sigma if isinstance(noise, GaussianNoise) else noise.deviation, like)
        for noise in defences
        if isinstance(noise, NOISE)
    ]
    if deviations:
        facts["sigma"] = functools.reduce(torch.hypot, deviations)
    for defence in defences:
        if isinstance(defence, SPARSE):
            facts["mask"] = {name: (value != 0).to(value.dtype) for name, value in sent.items()}
            if isinstance(defence, Sparsify) and len(defences) == 1:
                facts["largest"], facts["largest_each"] = True, defence.each
        elif isinstance(defence, Clip):
            facts["bound"] = _each(defence.bound, like)
            facts["bound_each"] = defence.each
        elif isinstance(defence, COARSE):
            bits = 1 if isinstance(defence, Sign) else max(defence.bits, 2)
            facts["bits"] = torch.full((len(like),), bits, device=like.device)
    return facts


def _each(strength: float | Tensor, like: Tensor) -> Tensor:
    """Return one strength per trial, on the device and in the dtype of what was sent."""
    value = torch.as_tensor(strength, dtype=like.dtype, device=like.device)
    return value.expand(len(like)).clone()
