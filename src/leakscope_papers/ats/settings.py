"""The settings of ATS's programs. Each program reads those that it needs from its one mapping."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.settings import DataName, Network, Number


@file_dataclass
class Training:
    """How the attacked networks are trained: the paper's schedule in `epochs`, on a `share` of the data."""

    data: DataName
    model: Network
    epochs: int
    share: Number
    seed: int


@file_dataclass
class ScoringTraining:
    """How long and on which share of the data the network is trained that privacy scores are taken at."""

    epochs: int
    share: Number


@file_dataclass
class Scoring:
    """How privacy is scored: the network, and every `stride`-th test picture from the `first` on."""

    data: DataName
    model: Network
    scoring: ScoringTraining
    seed: int
    first: int = 200
    stride: int = 5


@file_dataclass
class AccuracyScoring:
    """How accuracy is scored: at the untrained network, on the first `batches` of test pictures."""

    data: DataName
    model: Network
    batches: int
    batch_size: int
    seed: int


@file_dataclass
class Attacked:
    """Which test pictures are attacked, `at_once` as one batch, and how; `bounds` are those of the learned shift, by policy."""

    data: DataName
    images: int
    at_once: int
    iterations: int
    bounds: Mapping[str, tuple[float, float]]
    seed: int
    form: str | None = None


@file_dataclass
class AttackSettings:
    """What `attacks` compares."""

    policies: tuple[str, ...]
    attacks: tuple[str, ...]


@file_dataclass
class CorrelationSettings:
    """What `correlation` compares: so many random `policies`, `scored` on so many pictures, at each kind of attacked network."""

    networks: tuple[str, ...]
    policies: int
    scored: int


@file_dataclass
class OperationSettings:
    """What `operations` scores: these operations on so many images."""

    operations: tuple[int, ...]
    images: int


@file_dataclass
class RandomSettings:
    """What `random_policies` scores: so many policies of each set on so many images."""

    policies: int
    images: int


@file_dataclass
class CurveSettings:
    """The policies whose learning curves are compared."""

    policies: tuple[str, ...]
