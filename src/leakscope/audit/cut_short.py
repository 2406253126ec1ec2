"""Attacks that the time ended before they were done: what they did not recover is not known to be safe from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.core.types import Outcome, Reconstruction

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.play.story import AttackRun

MEANING = "the time ended these attacks early; what they did not recover may come back with more minutes"


@dataclass(frozen=True, slots=True)
class CutShort:
    """An attack that had `iterations` of the `most` its authors run, and was still at work on `working` of the `clients`."""

    name: str
    iterations: int
    most: int
    working: int
    clients: int

    @property
    def words(self) -> str:
        """Return how far it came.

        >>> CutShort("ig", 254, 4800, 3, 8).words
        '254 of 4800 iterations, still at work on 3 of 8 clients'
        """
        return (
            f"{self.iterations} of {self.most} iterations, still at work on {self.working} of {self.clients} "
            f"client{'s' if self.clients > 1 else ''}"
        )


def find_cut(
    name: str, made: Reconstruction, iterations: int, most: int | None, done: Tensor | None = None
) -> CutShort | None:
    """Return how an attack was cut short; None where it was not.

    It was if it had fewer iterations than its authors run (`most`; None: it has none), and used them up on a client with something left
    to find. `done` (T) says for which clients nothing is left: all that they hold was recovered.
    """
    if most is None or iterations >= most:
        return None
    open_ = made.outcome == Outcome.EXHAUSTED
    if done is not None:
        open_ = open_ & ~done
    working = int(open_.sum())
    return CutShort(name, iterations, most, working, made.trials) if working else None


def find_cut_of(run: AttackRun, iterations: int, most: int | None) -> CutShort | None:
    """Return how a scored attack was cut short; None where it was not, or where it recovered everything without the time."""
    done = (run.recovered | ~run.scores.scored).all(1)
    return find_cut(run.name, run.reconstruction, iterations, most, done)
