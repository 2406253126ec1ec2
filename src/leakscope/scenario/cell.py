"""One cell of a scenario as typed values, with every default filled in."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from leakscope.attacks.attack import Attack
from leakscope.clients import Client
from leakscope.core.plugins import until_registration
from leakscope.models import Init
from leakscope.scenario.components import KINDS
from leakscope.scenario.schema import make_client
from leakscope.scenario.settings import DataChoice, KnowledgeChoice, Precision


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A network by name; `settings` are those of its builder."""

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ModelChoice:
        """Return the choice in a mapping from a file."""
        return cls(plain["name"], {key: value for key, value in plain.items() if key != "name"})

    def plain(self) -> dict[str, Any]:
        """Return the choice as a mapping for a file."""
        return {"name": self.name, **self.settings}

    @property
    def drops(self) -> bool:
        """Return whether the network has dropout."""
        return bool(self.settings.get("dropout"))


@dataclass(frozen=True, slots=True)
class AttackChoice:
    """An attack by name; `settings` are those of its recipe, as in the file."""

    name: str
    settings: Mapping[str, Any]

    @property
    def label_rule(self) -> str | None:
        """Return the label rule; None for an attack that has none."""
        rule = self.settings.get("labels")
        return rule if isinstance(rule, str) else None


@dataclass(frozen=True, slots=True, eq=False)
class CellSettings:
    """The settings of one cell. `data.samples` are those of all clients behind an update; `client` has no scaling before data is loaded."""

    data: DataChoice
    model: ModelChoice
    weights: Init
    client: Client
    attack: Attack
    recipe: AttackChoice
    knowledge: KnowledgeChoice
    precision: Precision
    trials: int
    seeds: tuple[int, ...]
    baselines: tuple[str, ...]
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """A null baseline by name, its clients, and metrics beside those of every run."""

    name: str
    data: DataChoice
    trials: int
    seeds: tuple[int, ...]
    metrics: tuple[str, ...] = ()


def read_settings(plain: Mapping[str, object]) -> CellSettings:
    """Return the settings of a cell, cached."""
    return _settings(json.dumps(plain))


def read_baseline(plain: Mapping[str, object]) -> BaselineSettings:
    """Return the settings of a null baseline's cell."""
    return _baseline(json.dumps(plain))


@until_registration
@functools.lru_cache(maxsize=4096)
def _settings(text: str) -> CellSettings:
    plain = json.loads(text)
    recipe = dict(plain["attack"])
    data = DataChoice(**plain["data"])
    client = make_client(plain["client"], [KINDS["defences"].build(item) for item in plain["defences"]])
    return CellSettings(
        data=replace(data, samples=data.samples * client.aggregation.clients),
        model=ModelChoice.of(plain["model"]),
        weights=KINDS["weights"].build(plain["weights"]),
        client=client,
        attack=KINDS["attack"].build(recipe),
        recipe=AttackChoice(recipe.pop("name"), recipe),
        knowledge=KnowledgeChoice(**plain["knowledge"]),
        precision=Precision(**plain["precision"]),
        trials=plain["trials"],
        seeds=tuple(plain["seeds"]),
        baselines=tuple(plain["baselines"]),
        metrics=tuple(plain.get("metrics", ())),
    )


@functools.lru_cache(maxsize=256)
def _baseline(text: str) -> BaselineSettings:
    plain = json.loads(text)
    return BaselineSettings(
        plain["attack"]["name"],
        DataChoice(**plain["data"]),
        plain["trials"],
        tuple(plain["seeds"]),
        tuple(plain.get("metrics", ())),
    )
