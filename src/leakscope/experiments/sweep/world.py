"""The objects that a cell's settings describe: data set, network, client, attack. Made once each and kept."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import Dataset, Part, load
from leakscope.experiments.scenario.pieces import KINDS
from leakscope.experiments.scenario.problems import Problem
from leakscope.experiments.scenario.schema import make_client
from leakscope.models import MODELS, build

MOST_PARAMETERS = 500_000_000


@dataclass(frozen=True, slots=True)
class World:
    """Everything a cell plays with."""

    data: Dataset
    part: Part
    model: Model
    init: Any
    client: Client
    attack: Attack


def make_world(settings: Mapping[str, Any]) -> World:
    """Return the objects of a cell."""
    data = load_data(settings["data"]["name"])
    defences = [KINDS["defences"].build(item) for item in settings["defences"]]
    scaling = data.statistics if settings["data"]["scaling"] == "statistics" else data.scaling
    return World(
        data=data,
        part=settings["data"]["part"],
        model=_model(json.dumps(settings["model"], sort_keys=True), data.input_shape, data.classes),
        init=KINDS["weights"].build(settings["weights"]),
        client=make_client(settings["client"], defences, scaling=scaling),
        attack=KINDS["attack"].build(settings["attack"]),
    )


@functools.lru_cache(maxsize=8)
def load_data(name: str) -> Dataset:
    """Return a data set, read once."""
    return load(name)


@functools.lru_cache(maxsize=32)
def _model(settings: str, shape: tuple[int, ...], classes: int) -> Model:
    given = json.loads(settings)
    return build(given.pop("name"), shape, classes, given)


@functools.lru_cache(maxsize=32)
def fingerprint(name: str, part: Part) -> str:
    """Return a hash of the examples of a part, so that a trial on other data is another trial."""
    data = load_data(name)
    digest = hashlib.sha256()
    for array in (data.x_train, data.y_train) if part == "train" else (data.x_test, data.y_test):
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=32)
def _shuffled(name: str, part: Part) -> Tensor:
    size = load_data(name).size(part)
    return random.permutation(random.fold(random.fold(random.key(0), "order of clients"), part), size)


def items_of(settings: Mapping[str, Any], number: int) -> tuple[int, ...]:
    """Return the places of the examples that client `number` of a cell holds."""
    data = settings["data"]
    first = data["first"] + number * data["samples"]
    places = range(first, first + data["samples"])
    if data["order"] == "shuffled":
        order = _shuffled(data["name"], data["part"])
        return tuple(int(order[place]) for place in places)
    return tuple(places)


def batch_of(data: Dataset, part: Part, items: Sequence[Sequence[int]]) -> Batch:
    """Return the private batch of many clients with equally many examples each."""
    flat = torch.tensor([list(each) for each in items])
    pictures = data.pictures(part, flat.reshape(-1)).reshape(*flat.shape, *data.input_shape)
    return make_batch(pictures, data.labels(part, flat.reshape(-1)).reshape(flat.shape), classes=data.classes)


def knowledge_of(
    settings: Mapping[str, Any], world: World, client: Client, batch: Batch, observation: Observation
) -> Knowledge:
    """Return what the attacker of a cell is told; `client` has the strengths of every trial."""
    chosen = settings["knowledge"]
    knowledge = told(world.model, client, batch, labels=chosen["labels"], local=chosen["local"])
    return tell_defences(knowledge, client, observation) if chosen["defence"] else knowledge


def misfits(settings: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong between the parts of a cell: data that is not there, too few examples, a network that does not fit."""
    chosen = settings["data"]
    try:
        data = load_data(chosen["name"])
    except InputError as error:
        return [Problem(("data",), str(error))]
    problems = []
    size, wanted = data.size(chosen["part"]), chosen["first"] + settings["trials"] * chosen["samples"]
    if wanted > size:
        most = max(0, (size - chosen["first"]) // chosen["samples"])
        problems.append(
            Problem(
                ("trials",),
                f"{wanted:,} examples are asked for, {chosen['name']} {chosen['part']} has {size:,}: at most {most} trials",
            )
        )
    return problems + _model_misfits(settings["model"], data)


def _model_misfits(model: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return why the network cannot be built for this data; nothing is allocated."""
    given = {key: value for key, value in model.items() if key != "name"}
    try:
        with torch.device("meta"):
            module = MODELS[model["name"]](input_shape=data.input_shape, classes=data.classes, **given)
            size = sum(value.numel() for value in module.parameters())
    except InputError as error:
        return [Problem(("model",), str(error))]
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        return [
            Problem(("model",), f"cannot be built for inputs {data.input_shape}: {str(error).splitlines()[0]:.120}")
        ]
    if size > MOST_PARAMETERS:
        return [Problem(("model",), f"has {size:,} parameters; at most {MOST_PARAMETERS:,} are attacked")]
    return []
