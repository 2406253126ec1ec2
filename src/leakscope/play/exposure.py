"""Exposures: clients' private data, what the server saw of it, and what an attacker may know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core.model import Mode, Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import Tree, map_tensors, take, to
from leakscope.core.types import Batch, Knowledge, Observation


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """T clients and what they expose. `batch` and `seeds` are private: they are used to score attacks, never given to them."""

    model: Model
    client: Client
    batch: Batch
    seeds: tuple[int, ...]
    observation: Observation
    knowledge: Knowledge  # of an uninformed attacker
    informed: Knowledge | None = None  # of an attacker who knows the defences, if there is one

    __repr__ = short_repr

    @property
    def device(self) -> torch.device:
        """Return where the update lies, which is where it is attacked."""
        return self.observation.samples.device

    @property
    def trials(self) -> int:
        """Return the number of clients."""
        return self.batch.trials

    def known(self, *, informed: bool) -> Knowledge:
        """Return an attacker's knowledge; an informed one also knows the defences, if there are any."""
        return self.informed if informed and self.informed is not None else self.knowledge

    def with_labels(self) -> Exposure:
        """Return the exposure to attackers who know the labels, or the targets of a caller's own loss."""
        labels = self.batch.compared
        informed = None if self.informed is None else replace(self.informed, labels=labels)
        return replace(self, knowledge=replace(self.knowledge, labels=labels), informed=informed)

    def select(self, places: Tensor) -> Exposure:
        """Return the exposure of some of the clients."""
        seen = take((self.observation, self.knowledge, self.informed), places.to(self.device))
        observation, knowledge, informed = seen
        seeds = tuple(self.seeds[place] for place in places.tolist())
        batch = take(self.batch, places)
        return replace(self, batch=batch, seeds=seeds, observation=observation, knowledge=knowledge, informed=informed)


def expose(
    model: Model,
    client: Client,
    weights: Tree,
    batch: Batch,
    seeds: Sequence[int],
    *,
    labels: bool = False,  # whether the attacker knows the labels
    local: bool = True,  # whether the attacker knows the local training
    informed: bool | None = None,  # whether one attacker knows the defences; None: if there are any
    norm: Mode | None = None,  # the mode of batch norm that the attacker assumes; None: the client's
) -> Exposure:
    """Return what T clients expose: each computes its update from its weights, data and seed, on the device of the weights."""
    model = model.in_mode(client.norm)
    device = next((value.device for value in weights.values()), torch.device("cpu"))
    placed_client, placed = (client, batch) if device.type == "cpu" else to((client, batch), device=device)
    observation = placed_client.observe(model, weights, placed, seeds)
    batch = client.aggregation.answered(batch, seeds)
    knowledge = replace(attacker_knowledge(model, client, batch, labels=labels, local=local), norm=norm)
    wanted = is_defended(client) if informed is None else informed
    facts = knowledge_of_defences(knowledge, placed_client, observation) if wanted else None
    return Exposure(model, client, batch, tuple(seeds), observation, knowledge, facts)


def with_places(exposure: Exposure, padding: int | None) -> tuple[Exposure, bool]:
    """Return the exposure to attackers who know which places of sentences hold padding, and whether any does."""
    real = None if padding is None else exposure.batch.inputs.ne(padding)
    if real is None or bool(real.all()):
        return exposure, False
    informed = None if exposure.informed is None else replace(exposure.informed, real=real)
    return replace(exposure, knowledge=replace(exposure.knowledge, real=real), informed=informed), True


def is_defended(client: Client) -> bool:
    """Return whether a client defends its update, its data or its network."""
    return bool(client.defences) or client.on_data is not None or client.on_model is not None


def shared_weights(model: Model, trials: int) -> Tree:
    """Return the model's weights repeated for `trials` clients."""
    return {name: value.expand(trials, *value.shape) for name, value in model.parameters.items()}


def join(exposures: Sequence[Exposure]) -> Exposure:
    """Return the clients of several exposures as one; network and client are those of the first."""

    def cat(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    first = exposures[0]
    values = [(each.batch, each.observation, each.knowledge, each.informed) for each in exposures]
    batch, observation, knowledge, informed = map_tensors(cat, values[0], *values[1:])
    seeds = tuple(seed for each in exposures for seed in each.seeds)
    return Exposure(first.model, first.client, batch, seeds, observation, knowledge, informed)
