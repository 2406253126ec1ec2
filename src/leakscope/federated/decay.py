"""Learning rates that decrease with the rounds."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """Multiply the learning rate by `factor` after each round in `at`, or after every `every` rounds.

    SPN halves it at rounds 100 and 200: `Decay(factor=0.5, at=(100, 200))`. The rate is the clients' or, in FedSGD, the server's.
    """

    factor: float = 1.0
    at: tuple[int, ...] = ()
    every: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise InputError(f"Decay.factor must be in (0, 1], got {self.factor}")
        if any(number < 1 for number in self.at):
            raise InputError(f"Decay.at must name rounds from 1 on, got {list(self.at)}")
        if self.every is not None and self.every < 1:
            raise InputError(f"Decay.every must be at least 1, got {self.every}")
        if self.every is not None and self.at:
            raise InputError("Decay takes `at` or `every`, not both")
        if self.factor < 1 and not self.at and self.every is None:
            raise InputError(f"Decay.factor {self.factor} never applies: give `at` or `every`")

    def after(self, rounds: int) -> float:
        """Return the factor of the rate after so many rounds.

        >>> [Decay(factor=0.5, at=(2, 3)).after(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.25, 0.25]
        """
        times = rounds // self.every if self.every is not None else sum(rounds >= number for number in self.at)
        return float(self.factor**times)
