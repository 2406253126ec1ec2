"""What a training leaves behind: the learning curve, its checkpoints, and how to read them from its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope.core.errors import InputError
from leakscope.metrics.interval import Estimate, wilson
from leakscope.models.checkpoint import file_name
from leakscope.training.file import Training

STATE, FILE, CURVE = "state.safetensors", "training.yaml", "curve.csv"


@dataclass(frozen=True, slots=True)
class Point:
    """One round of the learning curve: who answered, and how good the global model is after it (None: not measured)."""

    round: int
    answered: int
    examples: int
    decay: float
    correct: int | None
    n: int | None
    loss: float | None

    @property
    def accuracy(self) -> Estimate | None:
        """Return the accuracy with Wilson's 95 % interval."""
        if self.correct is None or not self.n:
            return None
        share = self.correct / self.n
        return Estimate(share, *wilson(share, self.n), self.n, self.n)


@dataclass(frozen=True, slots=True)
class Result:
    """A training so far: the learning curve from round 0 on, checkpoints, facts; `diverged` if it blew up.

    `resumable` is whether another round could be played from what was written: private heads that were not kept are gone.
    """

    training: Training
    curve: tuple[Point, ...]
    sizes: tuple[int, ...]
    checkpoints: Mapping[int, str]
    facts: Mapping[str, str]
    diverged: bool = False
    stopped: bool = False
    resumable: bool = True

    @property
    def rounds(self) -> int:
        """Return how many rounds were played."""
        return self.curve[-1].round if self.curve else 0


def about_of(path: Path) -> dict[str, Any]:
    """Return what stands beside the tensors of a state."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["leakscope"])
            return about
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path} is not a readable state ({reason}); delete it to train from the beginning") from None


def checkpoints_of(directory: Path) -> dict[int, str]:
    """Return the files of the rounds that were kept."""
    files = sorted((directory / Path(file_name(0)).parent).glob("round-*.safetensors"))
    return {int(path.stem.rpartition("-")[2]): str(path) for path in files}


def table_of(curve: Sequence[Point]) -> str:
    """Return the learning curve as CSV."""
    rows = ["round,answered,examples,rate_factor,correct,n,accuracy,low,high,loss"]
    for p in curve:
        a = p.accuracy
        shown = (a.value, a.low, a.high) if a else ("", "", "")
        parts = (p.round, p.answered, p.examples, p.decay, p.correct, p.n, *shown, p.loss)
        rows.append(",".join("" if part is None else str(part) for part in parts))
    return "\n".join(rows) + "\n"
