"""One group of clients attacked in several ways, as the demo and `peek` show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.engine.plan import Execution
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, take
from leakscope.core.types import Batch
from leakscope.defences import GaussianNoise
from leakscope.play.attacking import AttackResult, attack
from leakscope.play.exposure import Exposure, expose

NOISE_LEVELS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class NoiseResult:
    """The same images attacked under every noise level, all levels in one batch."""

    sigmas: tuple[float, ...]
    batch: Batch
    results: tuple[AttackResult, ...]
    seconds: float

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Speed:
    """The time of the run, and the estimated time of the usual loop from its rate measured in the same run."""

    attacks: int
    evaluations: int
    seconds: float
    loop_seconds: float
    loop_evaluations_timed: int

    def line(self) -> str:
        """Return the comparison as text."""
        return (
            f"{self.attacks} attacks in {self.seconds:.0f} s; the usual loop here: {self.loop_seconds:.0f} s "
            f"({self.evaluations:,} evaluations at the rate of {self.loop_evaluations_timed} timed in this run)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """An exposure with the attacks on it."""

    exposure: Exposure
    names: tuple[str, ...]
    attacks: tuple[AttackResult, ...]
    seconds: float
    exact: tuple[AttackResult, Batch] | None = None  # an exact recovery with its batch
    noise: NoiseResult | None = None
    speed: Speed | None = None
    baselines: tuple[AttackResult, ...] = ()
    unlabelled: frozenset[int] = frozenset()  # trials of unknown label, which use an arbitrary one

    __repr__ = short_repr

    @property
    def update(self) -> Tree:
        """Return the update of the first client."""
        return {name: value[0] for name, value in self.exposure.observation.rounds[0].sent.items()}


def sweep_noise(
    exposure: Exposure,
    weights: Mapping[str, Tensor],
    method: Attack,
    *,
    sigmas: Sequence[float] = NOISE_LEVELS,
    execution: Execution | None = None,
) -> NoiseResult:
    """Return the attack on every trial under every noise level, in one batch; the attacker does not know of the noise."""
    T, L = exposure.trials, len(sigmas)
    lanes = torch.arange(T).repeat(L)
    noise = GaussianNoise(torch.tensor(sigmas).repeat_interleave(T))
    client = replace(exposure.client, defences=(*exposure.client.defences, noise))
    seeds = [exposure.seeds[int(i)] for i in lanes]
    noisy = expose(
        exposure.model,
        client,
        take(dict(weights), lanes.to(exposure.device)),
        take(exposure.batch, lanes),
        seeds,
        informed=False,
    )
    whole = attack(noisy, method, name="noise", execution=execution)
    results = tuple(
        replace(whole.select(slice(level * T, (level + 1) * T)), name=f"sigma {sigma:g}", seconds=whole.seconds / L)
        for level, sigma in enumerate(sigmas)
    )
    return NoiseResult(tuple(float(s) for s in sigmas), exposure.batch, results, whole.seconds)
