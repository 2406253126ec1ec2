"""The objects that a cell's settings describe: data set, network, client, attack. Made once each and kept."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack
from leakscope.attacks.labels import JOINT, chosen_rule
from leakscope.clients import Client, tell_defences, told
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import Dataset, Part, load
from leakscope.data.label_mix import Places, cut_batches
from leakscope.defences.on_model import Polarisation
from leakscope.models import MODELS, build
from leakscope.models.checkpoint import check_scaling
from leakscope.scenario.pieces import KINDS
from leakscope.scenario.problems import Problem
from leakscope.scenario.schema import make_client
from leakscope.sweep.insider import insider_misfits
from leakscope.sweep.suiting import attack_misfits

MOST_PARAMETERS = 500_000_000
MOST_PUBLIC = 2**29  # numbers of public pictures that baselines hold at once: 2 GiB


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
    data = load_data(settings["data"]["name"], settings["data"]["size"])
    defences = [KINDS["defences"].build(item) for item in settings["defences"]]
    scaling = data.statistics if settings["data"]["scaling"] == "statistics" else data.scaling
    return World(
        data=data,
        part=settings["data"]["part"],
        model=_trained(json.dumps([settings["model"], settings["weights"]]), data.input_shape, data.classes),
        init=KINDS["weights"].build(settings["weights"]),
        client=make_client(settings["client"], defences, scaling=scaling),
        attack=KINDS["attack"].build(settings["attack"]),
    )


def load_data(name: str, size: int | None = None) -> Dataset:
    """Return a data set, read once; with a size its pictures are handed out at size x size."""
    return _read(name) if size is None else replace(_read(name), side=size)


@functools.lru_cache(maxsize=8)
def _read(name: str) -> Dataset:
    return load(name)


@functools.lru_cache(maxsize=32)
def _trained(settings: str, shape: tuple[int, ...], classes: int) -> Model:
    """Return the network of a cell; where it starts from a checkpoint, with the checkpoint's buffers."""
    model, weights = json.loads(settings)
    made = _model(json.dumps(model, sort_keys=True), shape, classes)
    return KINDS["weights"].build(weights).load(made) if weights["name"] == "checkpoint" else made


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


@functools.lru_cache(maxsize=32)
def _batches(name: str, part: Part, first: int, order: str, samples: int, mix: str) -> tuple[Places, ...]:
    """Return every batch of a label mix, as places in the part; client i holds the i-th."""
    size = load_data(name).size(part)
    places = (_shuffled(name, part) if order == "shuffled" else torch.arange(size))[first:]
    labels = load_data(name).labels(part, places)
    return tuple(tuple(places[list(batch)].tolist()) for batch in cut_batches(labels, samples, mix))


def _mixed(data: Mapping[str, Any]) -> tuple[Places, ...]:
    return _batches(data["name"], data["part"], data["first"], data["order"], data["samples"], data["mix"])


def items_of(settings: Mapping[str, Any], number: int) -> tuple[int, ...]:
    """Return the places of the examples that client `number` of a cell holds."""
    data = settings["data"]
    if data["mix"] != "given":
        return _mixed(data)[number]
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
        data = load_data(chosen["name"], chosen["size"])
    except InputError as error:
        return [Problem(("data",), str(error))]
    problems = _too_few(settings, data) if chosen["mix"] == "given" else _mix_misfits(settings, data)
    return (
        problems
        + _baseline_misfits(settings, data)
        + insider_misfits(settings, data)
        + (_model_misfits(settings["model"], data) or _checkpoint_misfits(settings, data))
        + _code_misfits(settings["client"], data)
        + _label_misfits(settings)
    )


def suiting(settings: Mapping[str, Any]) -> list[Problem]:
    """Return why the attack of a cell, whose parts are sound, cannot work on its client with what it is told."""
    world = make_world(settings)
    return attack_misfits(settings, world.attack, world.model)


def _too_few(settings: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return that the part has fewer examples than the clients together would hold."""
    chosen = settings["data"]
    size, wanted = data.size(chosen["part"]), chosen["first"] + settings["trials"] * chosen["samples"]
    if wanted <= size:
        return []
    most = max(0, (size - chosen["first"]) // chosen["samples"])
    said = f"{wanted:,} examples are asked for, {chosen['name']} {chosen['part']} has {size:,}: at most {most} trials"
    return [Problem(("trials",), said)]


def _mix_misfits(settings: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return why there are not as many batches of the label mix as there are clients."""
    chosen = settings["data"]
    where, samples = f"{chosen['name']} {chosen['part']} from number {chosen['first']} on", chosen["samples"]
    there = len(_mixed(chosen))
    if there >= settings["trials"]:
        return []
    if there or chosen["mix"] == "random":
        said = f"{settings['trials']:,} batches of {samples} with mix {chosen['mix']!r} are asked for"
        return [Problem(("trials",), f"{said}, {where} has {there:,}: at most {there} trials")]
    labels = data.labels(chosen["part"], slice(chosen["first"], None) if chosen["order"] == "given" else slice(None))
    need = f"{samples} of one class" if chosen["mix"] == "equal" else f"{-(-samples // 2)} of each of two classes"
    most = int(torch.bincount(labels).max()) if len(labels) else 0
    said = f"mix {chosen['mix']!r} with {samples} samples needs {need}, {where} has at most {most} of one class"
    return [Problem(("data", "mix"), said)]


def _baseline_misfits(settings: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return why the public examples of the baselines are not there, or do not fit in memory at this size."""
    public: Part = "train" if settings["data"]["part"] == "test" else "test"
    asked = [name for name in settings["baselines"] if name != "prior_only"]
    numbers = data.size(public) * math.prod(data.input_shape)
    if asked and not numbers:
        said = f"{asked[0]} needs public examples, {data.name} has none in its part {public}: leave it out"
        return [Problem(("baselines",), said)]
    if asked and numbers > MOST_PUBLIC and data.side is not None:
        held = f"{numbers * 4 / 2**30:.0f} GiB of public pictures"
        return [Problem(("baselines",), f"{asked[0]} would hold {held} at size {data.side}: leave it out")]
    return []


def _checkpoint_misfits(settings: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return why the checkpoint cannot be the first weights of this network."""
    if settings["weights"]["name"] != "checkpoint":
        return []
    try:
        _trained(json.dumps([settings["model"], settings["weights"]]), data.input_shape, data.classes)
        check_scaling(KINDS["weights"].build(settings["weights"]), settings["data"]["scaling"])
    except InputError as error:
        return [Problem(("weights",), str(error))]
    return []


def _code_misfits(client: Mapping[str, Any], data: Dataset) -> list[Problem]:
    """Return that a private head has too few codes for the classes."""
    if client["on_model"] is None:
        return []
    try:
        Polarisation(bits=client["on_model"]["bits"]).check(data.classes)
    except InputError as error:
        return [Problem(("client", "on_model", "bits"), str(error))]
    return []


def _label_misfits(settings: Mapping[str, Any]) -> list[Problem]:
    """Return that the attack would read labels off gradients of another loss than cross entropy, as `attacks.labels` refuses."""
    loss, said = settings["client"]["loss"], settings["attack"].get("labels")
    if loss == "cross_entropy" or said is None:
        return []
    rule = chosen_rule(said, settings["data"]["samples"], told=settings["knowledge"]["labels"])
    if rule in (JOINT, "known"):
        return []
    other = "knowledge.labels: true" + ("" if said == "auto" else " with attack.labels: auto")
    words = f"label rule {rule!r} reads cross entropy gradients, client.loss is {loss!r}"
    return [Problem(("attack", "labels"), f"{words}; give attack.labels: {JOINT}, or {other}")]


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
