"""Pictures that clients transform: what comes back of them as the network saw them, beside the pictures that the client holds.

A guess of a moved or faded picture can be an exact copy of what the network was given and still be far from the private picture, in
every pixel. The grade counts private pictures. Who looks at a moved digit reads it all the same, so this is told too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.metrics import DEFAULT_RULE, score
from leakscope.metrics.interval import Estimate, estimate_rate

if TYPE_CHECKING:
    from leakscope.audit.playing import World
    from leakscope.play.story import AttackRun


@dataclass(frozen=True, slots=True)
class AsSeen:
    """The share of transformed pictures that an attack recovered as the network saw them."""

    name: str
    recovered: Estimate

    @property
    def words(self) -> str:
        """Return how many came back, with the interval of their share."""
        found = self.recovered
        return (
            f"as the network saw them, transformed, {self.name} recovered {round(found.value * found.n)} of {found.n} pictures "
            f"(95 % interval {100 * found.low:.0f} % to {100 * found.high:.0f} %)"
        )


def recovered_as_seen(world: World, runs: Sequence[AttackRun]) -> tuple[AsSeen, ...]:
    """Return what each attack recovered of the transformed pictures; () where the client does not transform them."""
    if world.client.on_data is None:
        return ()
    truth = world.client.transformed(world.batch, world.seeds)
    found = []
    for run in runs:
        made = run.reconstruction
        guess = made.inputs if made.seen is None else made.seen
        scores = score(truth.inputs, truth.labels, guess, None, mask=truth.mask)
        found.append(AsSeen(run.name, estimate_rate(DEFAULT_RULE.recovered(scores), scores.scored)))
    return tuple(found)


def most_as_seen(found: Sequence[AsSeen]) -> AsSeen | None:
    """Return the attack that recovered most of the transformed pictures; None where none recovered any."""
    best = max(found, key=lambda each: each.recovered.value, default=None)
    return best if best is not None and best.recovered.value > 0 else None
