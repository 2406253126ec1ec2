"""The content of a page as plain data. Images are C x H x W (C 1 or 3), H x W, or F for a table row, clamped to [0, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.metrics.interval import Estimate
    from leakscope.play.text_leak import TextLeak
    from leakscope.report.charts import Panel
    from leakscope.report.row_tables import RowTable
    from leakscope.report.sentences import SentenceTable
    from leakscope.report.tables import Row


HONEST = "An honest but curious server: it runs the protocol as agreed and tries to read the client's data from what it receives."
DISHONEST = "A dishonest server: it chooses the weights that it sends, and reads the client's data from the update."


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """The threat model: who was attacked, and what the attacker knows."""

    words: str = ""
    server: str = HONEST
    setting: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (what, its variants)
    known: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()  # facts that are known in some cells only


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The numbers along one axis: a table, and curves if the axis is numeric."""

    title: str
    note: str  # what the rows pool over
    axes: tuple[tuple[str, str], ...]  # columns that name a row: (key in `Row.values`, heading)
    rows: tuple[Row, ...]
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """A private image, its reconstruction and the error between them."""

    truth: Tensor
    recovered: Tensor
    label: str
    mse: float

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_picture("Pair.truth", self.truth)
        check_shape("Pair.recovered", self.recovered, self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The section on exact analytic recovery."""

    note: str
    pairs: tuple[Pair, ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise InputError("Exact.pairs must hold at least one pair; leave the section out with Page.exact=None")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guess:
    """The reconstruction by a baseline, with its scores."""

    name: str
    picture: Tensor
    mse: float
    ssim: float | None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """One attacked image: the truth, the film from the attack's start to its result, and the scores.

    `place` says why the tile is shown (median, best or worst MSE of its cell, random,
    ...), where only some are.
    """

    truth: Tensor
    frames: Tensor  # S x (the truth's shape); first the start, last the result
    frames_at: tuple[int, ...]  # S iterations, never decreasing
    axes: Mapping[str, str]  # value in words on each axis of the gallery
    number: int
    label: str
    guess: str | None  # label; None: the attack guessed none
    label_correct: bool | None
    mse: float
    psnr: float
    ssim: float | None
    steps: int
    outcome: str
    recovered: bool
    trace: tuple[float, ...] = ()  # mismatch at the iterations `trace_at`
    trace_at: tuple[int, ...] = ()
    baselines: tuple[Guess, ...] = ()
    place: str = ""
    learned: Mapping[str, float] = field(default_factory=dict)  # values that the attack recovered beside the image
    courses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # the same at `trace_at`

    __repr__ = short_repr

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
    """The tiles and the axes by which they are filtered ((key in `Tile.axes`, heading))."""

    note: str
    axes: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    total: int  # attacked images, shown or not


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """One strength of a defence: reconstructions of the same N images, and the scores over all trials."""

    strength: str
    pictures: Tensor  # N x ...
    content: Estimate
    mse: Estimate
    accuracy: float | None = None  # of the model trained under the defence; None: unknown

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fading:
    """One attack under a defence of increasing strength: the true images (N x ...) and the levels in slider order."""

    attack: str
    truths: Tensor
    labels: tuple[str, ...]
    levels: tuple[Level, ...]

    __repr__ = short_repr

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
    """The section on one defence whose strength is an axis; all fadings have the same levels."""

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
    """Where the numbers came from, enough to reproduce them; `facts` are (what, value) in words."""

    command: str
    facts: tuple[tuple[str, str], ...]
    scenario: str = ""
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """The records as CSV; `text` is empty if they are too many, and `note` says what to do."""

    name: str
    note: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A list of findings under a title; `words` introduce the list."""

    title: str
    lines: tuple[str, ...] = ()
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRow:
    """A finding before any attack: topic, words, severity, and what decides it ((name, whether it ran), a page of the docs)."""

    topic: str
    words: str
    severity: str
    decided_by: tuple[tuple[str, bool], ...]
    page: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """Everything on the page, top to bottom."""

    title: str
    headline: str
    explanation: str
    threat: Threat
    rule: str  # when an image counts as recovered
    limits: str
    provenance: Provenance
    static: tuple[StaticRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    download: Download | None = None
    sections: tuple[Section, ...] = ()
    every: Section | None = None  # the table of all cells, not pooled
    thresholds: Section | None = None
    speed: str = ""
    update: Mapping[str, Tensor] = field(default_factory=dict)  # one client's update, without a trial dimension
    exact: Exact | None = None
    strengths: tuple[Strength, ...] = ()
    gallery: Gallery | None = None
    rows: tuple[RowTable, ...] = ()  # decoded table rows
    text: TextLeak | None = None  # sentences of a token network
    sentences: tuple[SentenceTable, ...] = ()  # of a run, an attack each

    __repr__ = short_repr


def check_picture(name: str, picture: Tensor) -> None:
    """Refuse a tensor that cannot be drawn as one image."""
    shape = tuple(picture.shape)
    if not shape or len(shape) > 3 or 0 in shape or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise InputError(f"{name} must be C x H x W with C 1 or 3, H x W, or F, got shape {shape}")


def check_shape(name: str, given: Tensor, like: Tensor) -> None:
    """Refuse images whose shape differs from the truth's."""
    if given.shape != like.shape:
        raise InputError(f"{name} must have the shape of the truth, {tuple(like.shape)}, got {tuple(given.shape)}")


def check_stack(name: str, stack: Tensor, truth: Tensor) -> None:
    """Refuse a stack of images whose shape differs from the truth's."""
    if not stack.ndim or not len(stack) or stack.shape[1:] != truth.shape:
        raise InputError(f"{name} must be S x {tuple(truth.shape)} with S at least 1, got {tuple(stack.shape)}")
