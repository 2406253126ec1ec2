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
    ChosenNoise,
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
NOISY = (*NOISE, ChosenNoise)
SPARSE = (Sparsify, DeepCompression, RandomMask, ChosenNoise)
COARSE = (Sign, Quantise)
OURS = (*NOISE, *SPARSE, *COARSE, Clip, LowRank)

# (first, later, why not)
SENSELESS: tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...] = (
    (SPARSE, NOISE, "noise fills the coordinates that were left out; put the noise first"),
    (SPARSE, (LowRank,), "a low-rank sketch fills the coordinates that were left out; put the sketch first"),
    (COARSE, NOISY, "noise undoes the rounding; put the noise first"),
    (COARSE, (LowRank,), "a low-rank sketch undoes the rounding; put the sketch first"),
    ((Clip,), (Sign,), "signs do not see a clip; leave one of them out"),
    ((Sign,), (Clip, Quantise), "signs are already bounded and rounded; leave one of them out"),
    ((Sign,), (Sparsify, DeepCompression), "signs have one size, so none is the largest; put the signs last"),
    ((Quantise,), (Sign,), "signs throw the rounded values away; leave one of them out"),
    ((Sparsify, ChosenNoise), (DeepCompression,), "both choose the largest coordinates; leave one of them out"),
    ((DeepCompression, ChosenNoise), (Sparsify,), "both choose the largest coordinates; leave one of them out"),
    ((Sparsify, DeepCompression), (ChosenNoise,), "both choose the largest coordinates; leave one of them out"),
    ((RandomMask,), (ChosenNoise,), "it may choose and fill coordinates that were left out; put the mask last"),
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
    the standard deviation of the noise (of all of it: variances add; `sigma_each`: on every tensor, where they differ).
    """
    facts: dict[str, object] = {}
    like = next(iter(sent.values()))
    noises = [noise for noise in defences if isinstance(noise, NOISY)]
    if noises:
        facts |= noise_facts(noises, sent)
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


def noise_facts(noises: Sequence[GaussianNoise | LaplaceNoise | ChosenNoise], sent: Tree) -> dict[str, object]:
    """Return `sigma`, and `sigma_each` where noise is in units of every tensor's own root mean square.

    The levels are read off what was sent, as a server can: noise of s times the root mean square makes the mean square of a tensor
    1 + s^2 times as large, so of a mean square p that was seen it is `p s^2 / (1 + s^2)`; from the last noise to the first. `sigma` is
    then the root mean square of the noise over all coordinates that were sent.
    """
    like = next(iter(sent.values()))
    strengths = [(_each(_deviation(noise), like), isinstance(noise, NOISE) and noise.each) for noise in noises]
    if not any(each for _, each in strengths):
        return {"sigma": functools.reduce(torch.hypot, [strength for strength, _ in strengths])}
    counts = {name: (value != 0).flatten(1).sum(1) for name, value in sent.items()}
    variances: Tree = {}
    for name, value in sent.items():
        power = value.flatten(1).square().sum(1) / counts[name].clamp_min(1)
        clean = power
        for strength, each in reversed(strengths):
            square = strength.square()
            clean = clean / (1 + square) if each else (clean - square).clamp_min(0)
        variances[name] = power - clean
    total = torch.stack([variances[name] * counts[name] for name in sent]).sum(0)
    number = torch.stack(list(counts.values())).sum(0).clamp_min(1)
    return {"sigma": (total / number).sqrt(), "sigma_each": {n: v.sqrt() for n, v in variances.items()}}


def _deviation(noise: GaussianNoise | LaplaceNoise | ChosenNoise) -> float | Tensor:
    return noise.sigma if isinstance(noise, ChosenNoise) else noise.deviation


def _each(strength: float | Tensor, like: Tensor) -> Tensor:
    """Return one strength per trial, on the device and in the dtype of what was sent."""
    value = torch.as_tensor(strength, dtype=like.dtype, device=like.device)
    return value.expand(len(like)).clone()
