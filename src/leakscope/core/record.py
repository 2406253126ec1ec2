"""One trial as plain data, and the cell of a sweep it belongs to: what is stored, exported and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Plain: TypeAlias = str | int | float | bool | None
COURSE = "course."  # before the name of a number that an attack found: the tensor that holds it along the iterations
IMAGE_MSE = "image_mse"  # the tensor of the image MSE at the snapshots, where an attack films its end


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScore:
    """The scores of one private sample of a trial; None where a number does not exist (no label guessed, no picture)."""

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
    """One trial: which, how it ended, and what it got right.

    `trial` is the hash of all that determines the result, `number` its place among the trials of its cell, `items` the
    places of its samples in the data set. `mismatch` is the attack's own last value, None for what is no optimisation.
    `seconds` is the trial's share of its chunk. `learned` are the numbers that the attack found beside the pictures, by name
    (SME's alpha).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All trials that differ in nothing but seed and data: one point of a sweep.

    `settings` is the scenario of the cell with every default filled in, as JSON data. `axes` holds its value on each axis
    that the sweep varies ('attack' is one wherever there are several). A baseline is what one gets without the update.
    """

    id: str
    settings: Mapping[str, object]
    axes: Mapping[str, Plain] = field(default_factory=dict)
    baseline: bool = False
