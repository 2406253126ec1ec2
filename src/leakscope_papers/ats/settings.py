"""The settings of ATS's programs. Each program reads the ones it needs from one mapping."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.settings import Network, Number, SizedData


@file_dataclass
class Training:
    """The training of the attacked networks: the paper's schedule in `epochs`, on a `share` of the data."""

    data: SizedData
    model: Network
    epochs: int
    share: Number
    seed: int


@file_dataclass
class ScoringTraining:
    """The training of the network for privacy scores: its length and its number of images (all, if there are fewer)."""

    epochs: int
    examples: int


@file_dataclass
class Scoring:
    """How privacy is scored: the network, and every `stride`-th test image from `first` on."""

    data: SizedData
    model: Network
    scoring: ScoringTraining
    seed: int
    first: int = 200
    stride: int = 5


@file_dataclass
class AccuracyScoring:
    """How accuracy is scored: at the untrained network, on the first `batches` of test images."""

    data: SizedData
    model: Network
    batches: int
    batch_size: int
    seed: int


@file_dataclass
class Attacked:
    """Which test images are attacked, `at_once` as one batch, and how; `bounds` are those of the learned shift, by policy."""

    data: SizedData
    images: int
    at_once: int
    iterations: int
    bounds: Mapping[str, tuple[float, float]]
    seed: int
    form: str | None = None


@file_dataclass
class AttackSettings:
    """Settings of `attacks`."""

    policies: tuple[str, ...]
    attacks: tuple[str, ...]


@file_dataclass
class CorrelationSettings:
    """Settings of `correlation`: the number of random `policies`, `scored` images each, and the kinds of attacked networks."""

    networks: tuple[str, ...]
    policies: int
    scored: int


@file_dataclass
class OperationSettings:
    """Settings of `operations`: which operations, and the number of images."""

    operations: tuple[int, ...]
    images: int


@file_dataclass
class RandomSettings:
    """Settings of `random_policies`: the number of policies of each set, and of images."""

    policies: int
    images: int


@file_dataclass
class CurveSettings:
    """Settings of `curves`: the policies whose learning curves are compared."""

    policies: tuple[str, ...]
