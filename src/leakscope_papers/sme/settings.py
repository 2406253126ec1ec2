"""The settings of SME's programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from pydantic import BeforeValidator

from leakscope.attacks.attack import Matching
from leakscope.scenario.components import KINDS
from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.settings import DataName, Network, PieceSettings


@file_dataclass
class FederationSettings:
    """The federation of appendix D that trains the networks of later rounds."""

    partition: PieceSettings
    epochs: int
    batch: int
    rate: float
    replies: float
    seed: int


@file_dataclass
class Networks:
    """The data, the clients' network, and its federation if a round after the first is used."""

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
    """Settings of `lines`: `points` on the line of every client, for each ink and column."""

    clients: int
    samples: int
    inks: tuple[str, ...]
    columns: tuple[Column, ...]
    points: int
    rate: float


@file_dataclass
class AttackSettings:
    """An attack: its `recipe`, the `form` it runs in, and the initialisation of a fresh network."""

    name: str
    recipe: PieceSettings
    weights: str = "pytorch"
    form: str | None = None

    def build(self, special: PieceSettings | None = None) -> Matching:
        """Return the attack; `special` settings replace those of the recipe."""
        attack: Matching = KINDS["attack"].build({**self.recipe, **(special or {})})
        return attack


def _attack(value: object) -> object:
    """Return a mapping of a file with the settings of the recipe separated."""
    if not isinstance(value, Mapping):
        return value
    beside = {name: value[name] for name in ("name", "weights", "form") if name in value}
    return {**beside, "recipe": {key: each for key, each in value.items() if key not in ("weights", "form")}}


Attack = Annotated[AttackSettings, BeforeValidator(_attack)]


@file_dataclass
class TrainedSettings:
    """Settings of `trained`: every combination of round, samples and epochs; `most_steps` limits an attack's local steps."""

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
    """A network and the shape of its data."""

    data: str
    model: Network
    shape: tuple[int, ...]
    classes: int
    printed_steps: Mapping[str, int] = field(default_factory=dict)  # local steps by epochs, if misprinted
    settings: Mapping[str, PieceSettings] = field(default_factory=dict)  # an attack's settings for this data only


@file_dataclass
class CostColumn:
    """A kind of local training whose cost is measured."""

    epochs: int


@file_dataclass
class CostSettings:
    """Settings of `costs`: every attack on one client of each network, `repeats` times."""

    networks: tuple[CostNetwork, ...]
    repeats: int
    columns: tuple[CostColumn, ...]
    samples: int
    batch: int
    attacks: tuple[Attack, ...]
    rate: float
