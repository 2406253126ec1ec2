"""One trial as plain data, and its cell of a sweep: what is stored, exported and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Plain: TypeAlias = str | int | float | bool | None
COURSE = "course."  # prefix of the tensors that hold a learned scalar along the iterations
IMAGE_MSE = "image_mse"  # tensor of the image MSE at the snapshots, if an attack films its end


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScore:
    """The scores of one private sample of a trial; None if undefined (no label guessed, no image)."""

    sample: int
    label: int
    guess: int | None
    mse: float
    psnr: float
    ssim: float | None
    label_correct: bool | None
    recovered: bool
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trial: its identity, outcome and scores.

    `trial` is the hash of all that determines the result, `number` its index in its cell, `items` the indices of its samples in
    the data set. `mismatch` is the attack's last value, None without optimisation. `seconds` is the trial's share of its chunk.
    `learned` are scalars that the attack learned, by name (SME's alpha).
    """

    trial: str
    cell: str
    number: int
    seed: int
    items: tuple[int, ...]
    outcome: str
    iterations: int
    evaluations: int
    mismatch: float | None
    label_overlap: float | None
    seconds: float
    version: str
    samples: tuple[SampleScore, ...] = ()
    learned: Mapping[str, float] = field(default_factory=dict)


UNKNOWN_DEFENCES = "unknown_defences"  # of a cell's settings, beside those that identify it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All trials that differ only in seed and data: one point of a sweep.

    `settings` is the cell's scenario with all defaults, as JSON data. `axes` holds its value on each axis of the sweep ('attack'
    is one if there are several). A `baseline` does not use the update.
    """

    id: str
    settings: Mapping[str, object]
    axes: Mapping[str, Plain] = field(default_factory=dict)
    baseline: bool = False

    @property
    def unknown_defences(self) -> tuple[str, ...]:
        """Return the names of the defences that no attacker here knows: they reveal nothing."""
        names = self.settings.get(UNKNOWN_DEFENCES)
        return tuple(map(str, names)) if isinstance(names, list | tuple) else ()


def nobody_knows(cells: Iterable[Cell]) -> str:
    """Return in words which defences of a sweep no attacker here knows; "" if there is none."""
    names = dict.fromkeys(name for cell in cells for name in cell.unknown_defences)
    return f"no attacker here knows this defence: {', '.join(names)} (it reveals nothing of itself)" if names else ""
