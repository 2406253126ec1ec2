"""The settings of SPN's programs.

Fan et al. 2020, arXiv:2006.11601, table 2. PPDL selects the largest share of the gradient and adds noise only to what it sends
(Shokri and Shmatikov 2015). Strength 0 is no defence (PPDL: selection only); it has a separate curve, so that CAPs stay over the
paper's grid. Attackers run all iterations: an absolute threshold is reached sooner by weak gradients and never under noise, so it
would decide how defences compare.
"""

from __future__ import annotations

from dataclasses import asdict

from leakscope.core.errors import InputError
from leakscope.core.record import Plain
from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.settings import DataName, Network, Number, PieceSettings, SizedData

GRADIENT, WEIGHTS = "gradient", "weights"


@file_dataclass
class Curve:
    """A defence at a grid of strengths; `share` is PPDL's, `bits` SPN's.

    >>> Curve(defence="ppdl", share=0.3, strengths=(0.1,)).place(0.1)
    {'defence': 'ppdl', 'share': 0.3, 'sigma': 0.1}
    """

    defence: str
    strengths: tuple[Number, ...]
    share: Number | None = None
    bits: int | None = None

    def place(self, strength: Number | None = None) -> dict[str, Plain]:
        """Return the defence in the words of the published files: kind, share, bits and strength."""
        axis = "alpha2" if self.defence == "spn" else "sigma"
        place = {"defence": self.defence, "share": self.share, "bits": self.bits, axis: strength}
        return {name: value for name, value in place.items() if value is not None}

    @property
    def title(self) -> str:
        """Return the curve's name in the key of a row."""
        return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.place().values())


@file_dataclass
class TrainingSettings:
    """The training for accuracies: `rounds` are passes over a client's data, whatever is shared."""

    clients: int
    rounds: int
    batch: int
    rate: Number
    examples: int | None
    tests: int | None
    sharing: str
    in_turn: bool
    seed: int

    def __post_init__(self) -> None:
        if self.sharing not in (GRADIENT, WEIGHTS):
            raise InputError(f"training.sharing must be {GRADIENT} or {WEIGHTS}, got {self.sharing!r}")


@file_dataclass
class Trained:
    """A data set, a network, and its training under every strength of these curves."""

    data: DataName
    model: Network
    training: TrainingSettings
    curves: tuple[Curve, ...]

    def plain(self, curve: Curve) -> dict[str, object]:
        """Return all that determines a training under a curve, as plain data."""
        parts = {"data": asdict(self.data), "model": self.model.plain(), "training": asdict(self.training)}
        return {**parts, "curve": {**curve.place(), "strengths": curve.strengths}}


@file_dataclass
class Pictures:
    """The attacked images, spread over the queries of tracing, and the network."""

    data: DataName
    model: Network
    images: int
    queries: int


@file_dataclass
class CurveSettings:
    """Settings of `curves`: every curve in every batch by every attacker, traced among `owners` and `owners_too`."""

    curves: tuple[Curve, ...]
    attackers: tuple[str, ...]
    batches: tuple[int, ...]
    accuracies: tuple[str, ...]
    training: TrainingSettings | None = None
    form: str | None = None
    iterations: int
    threshold: float
    owners: int
    owners_too: tuple[int, ...] = ()


@file_dataclass
class CosineSettings:
    """Settings of `cosines`: gradients of batches, over each of these groups of parameters."""

    groups: tuple[str, ...]
    batch: int
    bits: int


@file_dataclass
class Mechanism:
    """The defence of a federation's clients; each kind has at most one strength."""

    kind: str
    alpha2: Number | None = None
    sigma: Number | None = None
    share: Number | None = None

    @property
    def strengths(self) -> dict[str, float]:
        """Return the given strengths, by name."""
        named = {"alpha2": self.alpha2, "sigma": self.sigma, "share": self.share}
        return {name: value for name, value in named.items() if value is not None}


@file_dataclass
class FederationSettings:
    """Federations of `clients` clients under each mechanism, and the number of clients also trained alone (`standalone`)."""

    data: SizedData
    model: Network
    partition: PieceSettings
    clients: tuple[int, ...]
    mechanisms: tuple[Mechanism, ...]
    standalone: int
    examples: int | None
    batch: int
    rate: float
    momentum: float
    halved_at: tuple[int, ...]
    rounds: int
    init: str
    together: int
    seed: int
