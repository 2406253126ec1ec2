"""Attacks on captured updates whose truth nobody knows: how well a guess explains the update, and whether it looks like a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakscope.attacks.recipes import prior_only
from leakscope.audit.budget import Budget, iterations_within
from leakscope.audit.cut_short import CutShort, find_cut
from leakscope.audit.playing import Tell, UnscoredRun, World, fastest_threads
from leakscope.audit.suite import PICTURE_RANK, Entry, Untested
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import Reconstruction
from leakscope.sweep.engines.contract import torch_threads


def unscored_runs(
    world: World, entries: Sequence[Entry], budget: Budget, tell: Tell
) -> tuple[list[UnscoredRun], list[Untested], list[CutShort]]:
    """Return what every attack made of the captures, the null baseline last, what could not be run, and what was cut short."""
    runs: list[UnscoredRun] = []
    untested: list[Untested] = []
    short: list[CutShort] = []
    heavy = sum(entry.most is not None for entry in entries) or 1
    with torch_threads(fastest_threads(world, entries)):
        for entry in entries:
            tell(f"{entry.name}: {world.observation.trials} captures")
            try:
                run, cut = _run(world, entry, 0.9 * budget.seconds / heavy)
                runs.append(run)
                short += [] if cut is None else [cut]
            except InputError as error:
                untested.append(Untested(entry.name, str(error)))
            except RuntimeError as error:  # a layer of the user's network that cannot be differentiated
                untested.append(Untested(entry.name, (str(error).strip() or type(error).__name__).splitlines()[0]))
    labels = torch.zeros(world.observation.trials, world.knowledge.samples, dtype=torch.int64)
    null = prior_only().guess(replace(world.knowledge, labels=labels), list(world.seeds))
    runs.append(UnscoredRun("prior_only", "without the update", null, null.mismatch, structure(null.inputs), 0.0))
    return runs, untested, short


def _run(world: World, entry: Entry, seconds: float) -> tuple[UnscoredRun, CutShort | None]:
    """Return one attack with as many iterations as fit into the seconds, and how it was cut short."""
    knowledge = world.informed if entry.informed and world.informed is not None else world.knowledge

    def attack(iterations: int) -> tuple[Reconstruction, float]:
        began = time.perf_counter()
        made = entry.make(iterations).run(
            world.subject.model, world.observation, knowledge, list(world.seeds), world.execution
        )
        return made, time.perf_counter() - began

    iterations = 0 if entry.most is None else iterations_within(seconds, lambda n: attack(n)[1], entry.most)
    made, took = attack(iterations)
    first = made.trace[:, 0].clamp_min(1e-12)
    left = made.mismatch / first if entry.most is not None else made.mismatch
    note = "no iterations" if entry.most is None else f"{iterations} iterations at most; its authors run {entry.most}"
    run = UnscoredRun(entry.name, note, made, left, structure(made.inputs), took)
    return run, find_cut(entry.name, made, iterations, entry.most)


def structure(pictures: Tensor) -> Tensor:
    """Return the total variation of guesses (T x N x C x H x W) over that of their own points shuffled; T values.

    1 for noise of any kind, below for pictures, whose neighbours are alike; NaN for what is no picture or has no contrast.
    """
    if pictures.ndim < PICTURE_RANK + 2:
        return torch.full((len(pictures),), torch.nan)
    shown = pictures.clamp(0, 1)
    order = random.permutation(random.fold(random.key(0), "structure"), shown[0, 0, 0].numel())
    mixed = shown.flatten(-2)[..., order].reshape(shown.shape)
    return _variation(shown) / _variation(mixed)


def _variation(pictures: Tensor) -> Tensor:
    across, down = pictures.diff(dim=-1).abs(), pictures.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)
