"""What a scan tests, the verdict on each test, and what honest models have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import NamedTuple

PAGE = "how-to/scan.md"


class Verdict(StrEnum):
    """What a line means. Only `USUAL` says that a test ran and found nothing."""

    USUAL = "usual"  # within what honest models have
    LEAKS = "leaks"  # private examples are read back, as from honest weights of this network
    SUSPECT = "suspect"  # beyond what honest models have
    ABSENT = "absent"  # the model has no layer that this test reads
    SHOWN = "shown"  # a fact that decides nothing alone
    NOT_TESTED = "not tested"


class Test(StrEnum):
    """The tests of a scan."""

    __test__ = False  # pytest takes it for a test class otherwise

    EQUAL_ROWS = "equal rows"
    MIRRORED_ROWS = "mirrored rows"
    TRANSMIT_SNR = "transmit-SNR"
    TRANSMITTING = "transmitting filters"
    IDENTITY = "identity weights"
    FEW_HOT = "few-hot embedding rows"
    DEAD = "dead branches"
    LARGEST = "largest weight"
    SET_BIASES = "biases set by rows"
    LARGE_BIASES = "biases beside rows"
    D_SNR = "D-SNR"
    CLASS_D_SNR = "D-SNR of classes"
    LOSS = "loss"
    DEGREES = "units of one example"
    PEELING = "peeling recall"
    JUMP = "jump since the last round"
    LOSS_JUMP = "loss since the last round"
    HASH = "hash of the weights"
    TRAINED_DECODER = "trained decoder"


class About(NamedTuple):
    """What the value of a test is, and the manipulations it belongs to."""

    value: str
    attacks: tuple[str, ...]
    share: bool = False  # the value lies in 0..1
    least: float = 0.0  # no limit is below it


ABOUT: dict[Test, About] = {
    Test.EQUAL_ROWS: About(
        "largest share of a dense layer's rows that are multiples of one row",
        ("imprint", "LOKI", "Decepticons", "adapter imprint"),
        share=True,
        least=0.05,
    ),
    Test.MIRRORED_ROWS: About(
        "largest share of a dense layer's rows whose positive weights are a multiple of the negative ones",
        ("trap weights",),
        share=True,
        least=0.05,
    ),
    Test.TRANSMIT_SNR: About(
        "first convolution: largest weight of a filter over the sum of its others, median of the filters",
        ("trap weights", "LOKI"),
        least=1.0,
    ),
    Test.TRANSMITTING: About(
        "largest share of a convolution's filters that copy the same place of their input",
        ("trap weights", "LOKI"),
        share=True,
        least=0.1,
    ),
    Test.IDENTITY: About(
        "largest cosine of a square block of a dense layer with the identity",
        ("Decepticons", "MineGrad", "PEFTLeak"),
        share=True,
        least=0.3,
    ),
    Test.FEW_HOT: About(
        "largest share of an embedding's rows with at most two numbers that are not 0",
        ("MineGrad",),
        share=True,
        least=0.05,
    ),
    Test.DEAD: About(
        "share of the convolutions and dense layers that are 0",
        ("trap weights", "adapter imprint", "model inconsistency"),
        share=True,
        least=0.02,
    ),
    Test.LARGEST: About("largest absolute value of a parameter", ("fishing", "Decepticons", "adapter imprint", "MineGrad"), least=50.0),
    Test.SET_BIASES: About(
        "largest share of the spread of a dense layer's row sums that its biases cancel",
        ("soliton biases",),
        share=True,
        least=0.1,
    ),
    Test.LARGE_BIASES: About(
        "median absolute bias of a dense layer over the norms of its rows", ("soliton biases", "imprint"), least=0.5
    ),
    Test.D_SNR: About(
        "largest gradient norm of an example over the sum of the others, largest of the layers", ("fishing",), least=1.0
    ),
    Test.CLASS_D_SNR: About(
        "the same of the mean gradient norms of classes", ("fishing",), least=1.0
    ),
    Test.LOSS: About("mean loss over that of a uniform guess", ("fishing",), least=4.0),
    Test.DEGREES: About(
        "largest share of a dense layer's units that one example alone activates",
        ("trap weights", "soliton biases"),
        share=True,
        least=0.1,
    ),
    Test.PEELING: About(
        "share of my examples that peeling reads back, beyond the same network with fresh weights",
        ("soliton biases", "trap weights", "imprint"),
        share=True,
        least=0.1,
    ),
    Test.JUMP: About(
        "largest change of a parameter, relative to its size last round", ("every manipulation between rounds",), least=1.0
    ),
    Test.LOSS_JUMP: About(
        "loss minus that of the last round, over that of a uniform guess", ("fishing", "trap weights"), least=0.5
    ),
    Test.HASH: About("compare it with other clients of the round", ("LOKI", "model inconsistency")),
    Test.TRAINED_DECODER: About("no test detects a model that was trained together with a decoder", ("SEER",)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Honest:
    """What honest models have: their number, median, 99th percentile and largest value, and the limit above which a value is suspect."""

    n: int
    median: float
    p99: float
    most: float
    limit: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of a test and the layer that has it; None: the model has nothing that the test reads."""

    value: float | None
    where: str = ""


@dataclass(frozen=True, slots=True)
class ScanLine:
    """One test: its value, what honest models have, the verdict and the manipulations it belongs to."""

    test: Test
    verdict: Verdict
    value: float | str | None = None
    where: str = ""
    honest: Honest | None = None
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the manipulations that the test belongs to."""
        return ABOUT[self.test].attacks

    @property
    def page(self) -> str:
        """Return the page of the docs with its anchor."""
        return f"{PAGE}#what-is-tested"

    def __str__(self) -> str:
        value = f" {self.value:.3g}" if isinstance(self.value, float) else f" {self.value}" if self.value else ""
        where = f" at {self.where}" if self.where and isinstance(self.value, float) else ""
        of = self.honest
        honest = "" if of is None else f" (honest {of.median:.2g}, at most {of.most:.2g}; limit {of.limit:.2g})"
        note = f": {self.note}" if self.note else ""
        return f"{self.test}{value}{where}{honest}{note} [{', '.join(self.attacks)}]"

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for JSON."""
        return {**asdict(self), "about": ABOUT[self.test].value, "attacks": list(self.attacks), "page": self.page}
