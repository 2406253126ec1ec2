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
    from leakscope.report.charts import Panel
    from leakscope.report.row_tables import RowTable
    from leakscope.report.tables import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """The threat model: who was attacked, and what the attacker was told of it and what not.

    `setting` is (what, its variants) in words; `known` and `hidden` are things in words, `mixed` those that the sweep varies.
    """

    words: str = ""
    setting: tuple[tuple[str, tuple[str, ...]], ...] = ()
    known: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The numbers along one axis: a table, and curves where the axis is numeric.

    `axes` are the columns that name a row: (key in `Row.values`, heading). `note` says what the rows pool over.
    """

    title: str
    note: str
    axes: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """A private picture and what was recovered of it, with the error between them."""

    truth: Tensor
    recovered: Tensor
    label: str
    mse: float

    def __post_init__(self) -> None:
        check_picture("Pair.truth", self.truth)
        check_shape("Pair.recovered", self.recovered, self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The section on recovery by algebra alone: a note in words, and pairs."""

    note: str
    pairs: tuple[Pair, ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError("Exact.pairs must hold at least one pair; leave the section out with Page.exact=None")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guess:
    """What a baseline shows for a private picture, with its scores."""

    name: str
    picture: Tensor
    mse: float
    ssim: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """One attacked picture: the truth, the film from the attack's start to its result, and how it went.

    `frames` is S x (the truth's shape) and `frames_at` their S iteration numbers, never falling; the first frame is the
    start, the last the result. `axes` says in words where the tile lies on each axis of the gallery. `trace` is the
    attack's mismatch at iterations `trace_at`, `learned` what it found beside the picture, by name, `courses` the same along
    `trace_at`. `guess` is None where the attack guessed no label. `place` says why the tile is among those shown (best, median
    ...), where only some are.
    """

    truth: Tensor
    frames: Tensor
    frames_at: tuple[int, ...]
    axes: Mapping[str, str]
    number: int
    label: str
    guess: str | None
    label_correct: bool | None
    mse: float
    psnr: float
    ssim: float | None
    steps: int
    outcome: str
    recovered: bool
    trace: tuple[float, ...] = ()
    trace_at: tuple[int, ...] = ()
    baselines: tuple[Guess, ...] = ()
    place: str = ""
    learned: Mapping[str, float] = field(default_factory=dict)
    courses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_picture("Tile.truth", self.truth)
        check_stack("Tile.frames", self.frames, self.truth)
        for name, numbers, n in (
            ("frames_at", self.frames_at, len(self.frames)),
            ("trace_at", self.trace_at, len(self.trace)),
        ):
            if len(numbers) != n:
                raise InputError(f"Tile.{name} must hold {n} numbers, got {len(numbers)}")
            if list(numbers) != sorted(numbers):
                raise InputError(f"Tile.{name} must never fall, got {numbers}")
        for name, course in self.courses.items():
            if len(course) != len(self.trace_at):
                raise InputError(f"Tile.courses[{name!r}] must hold {len(self.trace_at)} numbers, got {len(course)}")
        for guess in self.baselines:
            check_shape(f"Guess.picture of {guess.name}", guess.picture, self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The tiles, the axes by which they are filtered ((key in `Tile.axes`, heading)), and a note in words.

    `total` is how many attacked pictures there are, shown or not.
    """

    note: str
    axes: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """One strength of a defence: the pictures (N x ...) that the attack made of the same N truths, and the numbers.

    The numbers are over all trials, not over the pictures shown. `accuracy` is that of the model trained under the
    defence, None if it is not known.
    """

    strength: str
    pictures: Tensor
    content: Estimate
    mse: Estimate
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fading:
    """One attack under a defence of growing strength: the truths (N x ...) and the levels in the order of the slider."""

    attack: str
    truths: Tensor
    labels: tuple[str, ...]
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels or not len(self.truths):
            raise InputError("Fading needs a level and a truth; leave it out of Strength.fadings")
        if len(self.labels) != len(self.truths):
            raise InputError(f"Fading.labels must name {len(self.truths)} truths, got {len(self.labels)}")
        check_picture("Fading.truths[0]", self.truths[0])
        for level in self.levels:
            check_shape(f"Level.pictures at strength {level.strength}", level.pictures, self.truths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strength:
    """The section on one defence whose strength is an axis; every fading has the same levels."""

    axis: str
    note: str
    fadings: tuple[Fading, ...]

    def __post_init__(self) -> None:
        if not self.fadings:
            raise InputError("Strength needs a fading; leave it out of Page.strengths")
        ladders = {tuple(level.strength for level in fading.levels) for fading in self.fadings}
        if len(ladders) > 1:
            raise InputError(f"every fading of {self.axis!r} must have the same strengths, got {sorted(ladders)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers came from: enough to make them again. `facts` are (what, value) in words, in order."""

    command: str
    facts: tuple[tuple[str, str], ...]
    scenario: str = ""
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """The records as CSV under a file name; `text` is empty where they are too many, and `note` says what to do."""

    name: str
    note: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something found, as a list under a title of its own; `words` stand before the list."""

    title: str
    lines: tuple[str, ...] = ()
    words: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """Everything on the page, top to bottom.

    `rule` says in words when a picture counts as recovered. `update` is one client's update, name to tensor, without a
    trial dimension. `every` is the table of all cells, none pooled, where the sections pool. `rows` are decoded table rows.
    """

    title: str
    headline: str
    explanation: str
    threat: Threat
    rule: str
    limits: str
    provenance: Provenance
    findings: tuple[Finding, ...] = ()
    download: Download | None = None
    sections: tuple[Section, ...] = ()
    every: Section | None = None
    thresholds: Section | None = None
    speed: str = ""
    update: Mapping[str, Tensor] = field(default_factory=dict)
    exact: Exact | None = None
    strengths: tuple[Strength, ...] = ()
    gallery: Gallery | None = None
    rows: tuple[RowTable, ...] = ()


def check_picture(name: str, picture: Tensor) -> None:
    """Refuse what cannot be drawn as one picture."""
    shape = tuple(picture.shape)
    if not shape or len(shape) > 3 or 0 in shape or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise InputError(f"{name} must be C x H x W with C 1 or 3, H x W, or F, got shape {shape}")


def check_shape(name: str, given: Tensor, like: Tensor) -> None:
    """Refuse pictures of another shape than the truth's."""
    if given.shape != like.shape:
        raise InputError(f"{name} must have the shape of the truth, {tuple(like.shape)}, got {tuple(given.shape)}")


def check_stack(name: str, stack: Tensor, truth: Tensor) -> None:
    """Refuse a stack of pictures that are not the truth's kind."""
    if not stack.ndim or not len(stack) or stack.shape[1:] != truth.shape:
        raise InputError(f"{name} must be S x {tuple(truth.shape)} with S at least 1, got {tuple(stack.shape)}")
