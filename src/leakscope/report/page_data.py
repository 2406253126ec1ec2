"""What a page shows, as plain data; every word and number on it comes from here, every picture from a tensor in it.

A picture is a tensor C x H x W (C 1 or 3), H x W, or F for one row of a table; values outside [0, 1] are clamped when
drawn. Text is text: it is escaped, never read as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.metrics.interval import Estimate
    from leakscope.metrics.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One attack in the table of the run; None where a number does not exist (no label guessed, no SSIM of a table)."""

    attack: str
    content: Estimate
    convergence: Estimate | None
    label: Estimate | None
    mse: Estimate
    ssim: Estimate | None
    steps: Estimate | None
    outcomes: Mapping[str, int] = field(default_factory=dict)


def row_of(attack: str, summary: Summary) -> TableRow:
    """Return the table row of an attack's summary: rates and means over all samples, steps over all trials."""
    return TableRow(
        attack=attack,
        content=summary.content,
        convergence=summary.convergence,
        label=summary.label,
        mse=summary.means["mse"],
        ssim=summary.means.get("ssim"),
        steps=summary.iterations.mean,
        outcomes=summary.outcomes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """A private picture and what was recovered of it, with the error between them."""

    truth: Tensor
    recovered: Tensor
    label: str
    mse: float

    def __post_init__(self) -> None:
        _check_picture("Pair.truth", self.truth)
        _check_shape("Pair.recovered", self.recovered, self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The section on recovery by algebra alone: a note in words, and pairs."""

    note: str
    pairs: tuple[Pair, ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError("Exact.pairs must hold at least one pair; leave the section out with Page.exact=None")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """One attacked picture: the truth, and the film from the attack's start to its result.

    `frames` is S x (the truth's shape) and `frames_at` their S iteration numbers, never falling; the first frame is the
    start, the last the result. `film` makes both from a Reconstruction. `guess` is None where the attack guessed no
    label, `ssim` None where there is none.
    """

    truth: Tensor
    frames: Tensor
    frames_at: tuple[int, ...]
    label: str
    guess: str | None
    mse: float
    ssim: float | None
    steps: int
    outcome: str
    recovered: bool

    def __post_init__(self) -> None:
        _check_picture("Tile.truth", self.truth)
        _check_stack("Tile.frames", self.frames, self.truth)
        if len(self.frames_at) != len(self.frames):
            raise InputError(f"Tile.frames_at must name {len(self.frames)} frames, got {len(self.frames_at)} numbers")
        if list(self.frames_at) != sorted(self.frames_at):
            raise InputError(f"Tile.frames_at must never fall, got {self.frames_at}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The tiles of one attack under its name, with a note in words."""

    name: str
    note: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseLevel:
    """One strength of noise: the pictures (N x ...) that the attack made of the same N truths, and their scores."""

    sigma: float
    pictures: Tensor
    content: Estimate
    mse: Estimate
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseSweep:
    """The section on noise: the truths (N x ...), the levels in the order of the slider, a note in words."""

    note: str
    truths: Tensor
    labels: tuple[str, ...]
    levels: tuple[NoiseLevel, ...]

    def __post_init__(self) -> None:
        if not self.levels or not len(self.truths):
            raise InputError("NoiseSweep needs a level and a truth; leave the section out with Page.noise=None")
        if len(self.labels) != len(self.truths):
            raise InputError(f"NoiseSweep.labels must name {len(self.truths)} truths, got {len(self.labels)}")
        _check_picture("NoiseSweep.truths[0]", self.truths[0])
        for level in self.levels:
            _check_shape(f"NoiseLevel.pictures at sigma {level.sigma:g}", level.pictures, self.truths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers came from: enough to make them again."""

    version: str
    command: str
    date: str
    machine: str
    seeds: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """Everything on the page, top to bottom.

    `rule` says in words when a picture counts as recovered. `knowledge` says what the attacker was told besides the
    update. `update` is one client's update, name to tensor, without a trial dimension.
    """

    title: str
    headline: str
    explanation: str
    rows: tuple[TableRow, ...]
    rule: str
    speed: str
    update: Mapping[str, Tensor]
    knowledge: str
    exact: Exact | None
    galleries: tuple[Gallery, ...]
    noise: NoiseSweep | None
    provenance: Provenance
    limits: str


def _check_picture(name: str, picture: Tensor) -> None:
    shape = tuple(picture.shape)
    if not shape or len(shape) > 3 or 0 in shape or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise InputError(f"{name} must be C x H x W with C 1 or 3, H x W, or F, got shape {shape}")


def _check_shape(name: str, given: Tensor, like: Tensor) -> None:
    if given.shape != like.shape:
        raise InputError(f"{name} must have the shape of the truth, {tuple(like.shape)}, got {tuple(given.shape)}")


def _check_stack(name: str, stack: Tensor, truth: Tensor) -> None:
    if not stack.ndim or not len(stack) or stack.shape[1:] != truth.shape:
        raise InputError(f"{name} must be S x {tuple(truth.shape)} with S at least 1, got {tuple(stack.shape)}")
