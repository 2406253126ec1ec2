"""The settings of SME's programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from pydantic import BeforeValidator

from leakscope.attacks.attack import Matching
from leakscope.scenario.pieces import KINDS
from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.settings import DataName, Network, PieceSettings


@file_dataclass
class FederationSettings:
    """The federation of appendix D that later rounds take their network from."""

    partition: PieceSettings
    epochs: int
    batch: int
    rate: float
    replies: float
    seed: int


@file_dataclass
class Networks:
    """The data, the network that clients attack or train, and its federation where there is a later round than the first."""

    data: DataName
    model: Network
    federation: FederationSettings | None = None


@file_dataclass
class Column:
    """A kind of local training, and the round it starts from."""

    epochs: int
    batch: int
    round: int


@file_dataclass
class LineSettings:
    """What `lines` measures: `points` on the line of every client, for each ink and column."""

    clients: int
    samples: int
    inks: tuple[str, ...]
    columns: tuple[Column, ...]
    points: int
    rate: float


@file_dataclass
class AttackSettings:
    """An attack: its `recipe`, the `form` it runs in, and how the `weights` of a fresh network are drawn."""

    name: str
    recipe: PieceSettings
    weights: str = "pytorch"
    form: str | None = None

    def build(self, special: PieceSettings | None = None) -> Matching:
        """Return the attack; `special` settings replace those of the recipe."""
        attack: Matching = KINDS["attack"].build({**self.recipe, **(special or {})})
        return attack


def _attack(value: object) -> object:
    """Return a mapping of a file with the settings of the recipe apart."""
    if not isinstance(value, Mapping):
        return value
    beside = {name: value[name] for name in ("name", "weights", "form") if name in value}
    return {**beside, "recipe": {key: each for key, each in value.items() if key not in ("weights", "form")}}


Attack = Annotated[AttackSettings, BeforeValidator(_attack)]


@file_dataclass
class TrainedSettings:
    """What `trained` attacks: every combination of round, samples and epochs; `most_steps` is an attack's limit of local steps."""

    rounds: tuple[int, ...]
    samples: tuple[int, ...]
    epochs: tuple[int, ...]
    batch: int
    rate: float
    clients: int
    attacks: tuple[Attack, ...]
    ink: str | None = None
    most_steps: Mapping[str, int] = field(default_factory=dict)


@file_dataclass
class CostNetwork:
    """A network and the shape of its data; `settings` are what the authors of an attack use for this data alone.

    `printed_steps` are the local steps that the paper prints, by epochs, where they are misprinted.
    """

    data: str
    model: Network
    shape: tuple[int, ...]
    classes: int
    printed_steps: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, PieceSettings] = field(default_factory=dict)


@file_dataclass
class CostColumn:
    """A kind of local training whose cost is measured."""

    epochs: int


@file_dataclass
class CostSettings:
    """What `costs` measures: every attack on one client of each network, `repeats` times."""

    networks: tuple[CostNetwork, ...]
    repeats: int
    columns: tuple[CostColumn, ...]
    samples: int
    batch: int
    attacks: tuple[Attack, ...]
    rate: float
