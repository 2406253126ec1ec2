"""The settings of ATS's programs. Each program reads those that it needs from its one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from leakscope_papers.files import STRICT
from leakscope_papers.programs.settings import DataName, Network, Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the attacked networks are trained: the paper's schedule in `epochs`, on a `share` of the data."""

    data: DataName
    model: Network
    epochs: int
    share: Number
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringTraining:
    """How long and on which share of the data the network is trained that privacy scores are taken at."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    epochs: int
    share: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How privacy is scored: the network, and every `stride`-th test picture from the `first` on."""

    data: DataName
    model: Network
    scoring: ScoringTraining
    seed: int
    first: int = 200
    stride: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyScoring:
    """How accuracy is scored: at the untrained network, on the first `batches` of test pictures."""

    data: DataName
    model: Network
    batches: int
    batch_size: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """Which test pictures are attacked, `at_once` as one batch, and how; `bounds` are those of the learned shift, by policy."""

    data: DataName
    images: int
    at_once: int
    iterations: int
    bounds: Mapping[str, tuple[float, float]]
    seed: int
    form: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """What `attacks` compares."""

    policies: tuple[str, ...]
    attacks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationSettings:
    """What `correlation` compares: so many random `policies`, `scored` on so many pictures, at each kind of attacked network."""

    networks: tuple[str, ...]
    policies: int
    scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettings:
    """What `operations` scores: these operations on so many images."""

    operations: tuple[int, ...]
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSettings:
    """What `random_policies` scores: so many policies of each set on so many images."""

    policies: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSettings:
    """The policies whose learning curves are compared."""

    policies: tuple[str, ...]
