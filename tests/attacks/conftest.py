"""Small worlds for attack tests: a network, weights of each trial, private pictures, what the server saw."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.data import load
from leakscope.models import Uniform, build, draw_parameters


@dataclass(frozen=True)
class World:
    model: Model
    client: Client
    batch: Batch
    weights: Tree
    observation: Observation
    knowledge: Knowledge
    seeds: list[int]


def world(
    trials: int,
    *,
    name: str = "lenet_cpl",
    shape: tuple[int, ...] = (1, 28, 28),
    samples: int = 1,
    local: LocalTraining | None = None,
    dtype: torch.dtype = torch.float32,
    labels: bool = False,
    settings: dict[str, object] | None = None,
    pictures: Tensor | None = None,
    a: float = 0.5,
) -> World:
    model = build(name, shape, 10, settings)
    seeds = list(range(100, 100 + trials))
    if pictures is None and shape == (1, 28, 28):
        pictures = load("fashion_mnist").pictures("test", range(trials * samples))
    if pictures is None:
        pictures = random.uniform(random.key(7), (trials * samples, *shape))
    inputs = pictures.reshape(trials, samples, *shape).to(dtype)
    classes = random.permutation(random.key(3), max(10, trials * samples))[: trials * samples] % 10
    batch = make_batch(inputs, classes.reshape(trials, samples), classes=10)
    model = replace(model, parameters=to(model.parameters, dtype=dtype), buffers=to(model.buffers, dtype=dtype))
    weights = to(draw_parameters(model, Uniform(a), random.key(seeds)), dtype=dtype)
    client = Client(local=local)
    observation = client.observe(model, weights, batch, seeds)
    return World(
        model, client, batch, weights, observation, attacker_knowledge(model, client, batch, labels=labels), seeds
    )


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
