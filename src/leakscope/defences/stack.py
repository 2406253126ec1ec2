"""Defences in a row: applied to the update in the order given. What makes no sense together is refused by name."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.defences.on_update.contract import (
    Defence,
    RememberingDefence,
    Revealed,
    Reveals,
    effects_of,
    misplaced_after,
)

State = tuple[Tree, ...]


def check_stack(defences: Sequence[Defence]) -> None:
    """Refuse a defence given twice that may stand only once, and one after an effect that makes it or the first pointless."""
    for position, later in enumerate(defences):
        for first in defences[:position]:
            if type(first) is type(later) and getattr(later, "once", False):
                raise InputError(f"{type(later).__name__} is stacked twice; give it once, with the strength you mean")
            for effect, reason in misplaced_after(later).items():
                if effect in effects_of(first):
                    raise InputError(f"{type(first).__name__} before {type(later).__name__}: {reason}")


def begin(defences: Sequence[Defence], update: Tree) -> State:
    """Return the states of a stack before the first round; {} for a defence that remembers nothing."""
    return tuple(d.begin(update) if isinstance(d, RememberingDefence) else {} for d in defences)


def protect(defences: Sequence[Defence], update: Tree, state: State, key: Tensor) -> tuple[Tree, State]:
    """Return the update after every defence in turn, and their states for the next round."""
    states: list[Tree] = []
    for number, (defence, memory) in enumerate(zip(defences, state, strict=True)):
        k = random.fold(random.fold(key, "defence"), number)
        if isinstance(defence, RememberingDefence):
            update, memory = defence.protect_and_remember(update, memory, k)
        else:
            update = defence.protect_update(update, k)
        states.append(memory)
    return update, tuple(states)


def revealed(defences: Sequence[Defence], sent: Tree) -> dict[str, object]:
    """Return what an attacker may know of a stack, as fields of Knowledge: facts, never the defences themselves.

    `sent` has the trials in front of every tensor, and so have the facts. That the largest coordinates were sent is told of a single
    defence alone: another one changes which they are. The noise is that of the whole stack (`noise_facts`).
    """
    like = next(iter(sent.values()))
    facts: dict[str, object] = {}
    reveals = [defence.reveal(sent) for defence in defences if isinstance(defence, Reveals)]
    for each in reveals:
        if each.mask is not None:
            facts["mask"] = each.mask
        if each.largest and len(defences) == 1:
            facts |= {"largest": True, "largest_each": each.largest_each}
        if each.bound is not None:
            facts |= {"bound": _per_trial(each.bound, like), "bound_each": each.bound_each}
        if each.bits is not None:
            facts["bits"] = torch.full((len(like),), each.bits, device=like.device)
    return facts | noise_facts(reveals, sent)


def noise_facts(reveals: Sequence[Revealed], sent: Tree) -> dict[str, object]:
    """Return `sigma`, and `sigma_each` where noise is in units of every tensor's own root mean square; {} without noise.

    Variances add. The levels are read off what was sent, as a server can: noise of s times the root mean square makes the mean square of
    a tensor 1 + s^2 times as large, so of a mean square p that was seen it is `p s^2 / (1 + s^2)`; from the last noise to the first.
    `sigma` is then the root mean square of the noise over all coordinates that were sent.
    """
    like = next(iter(sent.values()))
    strengths = [(_per_trial(each.sigma, like), each.sigma_each) for each in reveals if each.sigma is not None]
    if not strengths:
        return {}
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


def _per_trial(strength: float | Tensor, like: Tensor) -> Tensor:
    """Return one strength per trial, on the device and in the dtype of what was sent."""
    value = torch.as_tensor(strength, dtype=like.dtype, device=like.device)
    return value.expand(len(like)).clone()
