"""Stacks of defences, applied to the update in the order given. Combinations that make no sense are rejected."""

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
    """Raise for a repeated defence with `once`, and for a defence after an effect in its `not_after`."""
    for position, later in enumerate(defences):
        for first in defences[:position]:
            if type(first) is type(later) and getattr(later, "once", False):
                raise InputError(f"{type(later).__name__} is stacked twice; give it once, with the strength you mean")
            for effect, reason in misplaced_after(later).items():
                if effect in effects_of(first):
                    raise InputError(f"{type(first).__name__} before {type(later).__name__}: {reason}")


def begin(defences: Sequence[Defence], update: Tree) -> State:
    """Return the states of a stack before the first round; {} for a defence without memory."""
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
    """Return what an informed attacker knows of a stack, as fields of Knowledge, one value for each trial of `sent`."""
    like = next(iter(sent.values()))
    facts: dict[str, object] = {}
    reveals = [_revealed_by(defence, sent) for defence in defences if isinstance(defence, Reveals)]
    for each in reveals:
        if each.mask is not None:
            facts["mask"] = each.mask
        if each.largest and len(defences) == 1:  # a second defence changes which coordinates are the largest
            facts |= {"largest": True, "largest_each": each.largest_each}
        if each.bound is not None:
            facts |= {"bound": _per_trial(each.bound, like), "bound_each": each.bound_each}
        if each.bits is not None:
            facts["bits"] = torch.full((len(like),), each.bits, device=like.device)
    return facts | noise_facts(reveals, sent)


def _revealed_by(defence: Reveals, sent: Tree) -> Revealed:
    """Return what a defence reveals; an InputError if its own code fails."""
    try:
        facts = defence.reveal(sent)
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{type(defence).__name__}.reveal failed on the update that was sent ({reason})") from error
    if not isinstance(facts, Revealed):
        raise InputError(f"reveal of a defence must return a Revealed, got {type(facts).__name__}")
    return facts


def unrevealed(defences: Sequence[Defence], sent: Tree | None = None) -> list[Defence]:
    """Return the defences of a stack of which no attacker can know anything; without an update, as a small one shows.

    A `reveal` that fails is an InputError. On the small update it may need the names or shapes of its network, so there the defence counts
    as known until its clients are played, which asks again.
    """
    small = {"weight": torch.ones(1, 2, 2), "bias": torch.ones(1, 2)}

    def reveals(defence: Defence) -> bool:
        try:
            return bool(revealed((defence,), small if sent is None else sent))
        except InputError:
            if sent is not None:
                raise
            return True

    return [defence for defence in defences if not reveals(defence)]


def noise_facts(reveals: Sequence[Revealed], sent: Tree) -> dict[str, object]:
    """Return `sigma` of the whole stack, and `sigma_each` if any noise is relative to each tensor; {} without noise.

    Variances add. Relative noise is estimated from what was sent: noise of s times the root mean square multiplies a tensor's
    mean square by 1 + s^2, so of an observed mean square p the noise is `p s^2 / (1 + s^2)`, from the last noise to the first.
    `sigma` is then the root mean square of the noise over all sent coordinates.
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
    """Return one strength per trial, with the device and dtype of `like`."""
    value = torch.as_tensor(strength, dtype=like.dtype, device=like.device)
    return value.expand(len(like)).clone()
