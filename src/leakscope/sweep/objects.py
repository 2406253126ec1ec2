"""The objects that a cell's settings describe: data set, network, client, private batches. Each is built once."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.starts import Insider
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Mode, Model
from leakscope.core.plugins import until_registration
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift
from leakscope.core.types import Batch, make_batch
from leakscope.data import ByWriter, Dataset, Part, load, sentence_set
from leakscope.data.label_mix import Places, cut_batches
from leakscope.models import TEXT_MODELS, build
from leakscope.models.checkpoint import Checkpoint
from leakscope.scenario.cell import CellSettings, ModelChoice
from leakscope.scenario.insider import PublicExample
from leakscope.scenario.problems import Problem
from leakscope.scenario.settings import DataChoice

IMAGES = "pictures and tables"
PUBLIC = 2000  # images of a dishonest server


def load_data(
    name: str, size: int | None = None, length: int | None = None, words: int | None = None, shortest: int | None = None
) -> Dataset:
    """Return a data set, cached; with a size, its images are resized to size x size; the others are of `sentence_set`."""
    sizes = (length, words, shortest)
    data = _read(name) if all(each is None for each in sizes) else _sentences(name, *sizes)
    return data if size is None else replace(data, side=size)


@until_registration
@functools.lru_cache(maxsize=8)
def _read(name: str) -> Dataset:
    return load(name)


def data_of(choice: DataChoice) -> Dataset:
    """Return the data set of a cell."""
    return load_data(choice.name, choice.size, choice.length, choice.words, choice.shortest)


@functools.lru_cache(maxsize=8)
def _sentences(name: str, length: int | None, words: int | None, shortest: int | None) -> Dataset:
    return sentence_set(name, length=length, words=words, shortest=shortest)


def scaling_of(choice: DataChoice) -> Scaling:
    """Return how the images of a cell are scaled for its network."""
    data = data_of(choice)
    return data.statistics if choice.scaling == "statistics" else data.scaling


def client_of(settings: CellSettings) -> Client:
    """Return the client of a cell."""
    return replace(settings.client, scaling=scaling_of(settings.data))


def network_of(settings: CellSettings) -> Model:
    """Return the network of a cell in its client's mode, with the checkpoint's buffers if it starts from one."""
    data = data_of(settings.data)
    checkpoint = settings.weights if isinstance(settings.weights, Checkpoint) else None
    return _network(model_text(settings.model, data), data.input_shape, data.classes, checkpoint, settings.client.norm)


def model_text(model: ModelChoice, data: Dataset) -> str:
    """Return a network's name and settings as text, a key for caches; one over tokens has the vocabulary of the data."""
    return json.dumps([model.name, settings_for(model, data)], sort_keys=True)


def settings_for(model: ModelChoice, data: Dataset) -> dict[str, Any]:
    """Return a network's settings; of one over tokens with the vocabulary and padding of the data.

    Refuse a network of another kind of data.
    """
    text = data.kind == "text"
    if (model.name in TEXT_MODELS) != text:
        what = (
            f"is for {IMAGES}: {data.name} needs one of {', '.join(TEXT_MODELS)}"
            if text
            else f"is for sentences, {data.name} holds none"
        )
        raise InputError(f"{model.name} {what}")
    padding = {} if data.padding is None else {"padding": data.padding}
    if padding and "padding" not in inspect.signature(TEXT_MODELS[model.name]).parameters:
        raise InputError(f"{model.name} takes no padding, so it would read it as a word: leave out data.shortest")
    return {**model.settings, **({"vocabulary": len(data.words)} if text else {}), **padding}


@until_registration
@functools.lru_cache(maxsize=32)
def _network(
    text: str, shape: tuple[int, ...], classes: int, checkpoint: Checkpoint | None, norm: Mode | None = None
) -> Model:
    if norm is not None:
        return _network(text, shape, classes, checkpoint).in_mode(norm)
    if checkpoint is not None:
        return checkpoint.load(_network(text, shape, classes, None))
    name, settings = json.loads(text)
    return build(name, shape, classes, settings)


@until_registration
@functools.lru_cache(maxsize=32)
def fingerprint(
    name: str, part: Part, length: int | None = None, words: int | None = None, shortest: int | None = None
) -> str:
    """Return a hash of a part's examples, so that a trial on other data has another id."""
    data = load_data(name, None, length, words, shortest)
    digest = hashlib.sha256()
    for array in (data.x_train, data.y_train) if part == "train" else (data.x_test, data.y_test):
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@until_registration
@functools.lru_cache(maxsize=32)
def _shuffled(part: Part, size: int) -> Tensor:
    return random.permutation(random.fold(random.fold(random.key(0), "order of clients"), part), size)


@until_registration
@functools.lru_cache(maxsize=32)
def mixed_batches(choice: DataChoice) -> tuple[Places, ...]:
    """Return every batch of a label mix or of writers, as indices in the part; client i holds the i-th."""
    data = data_of(choice)
    if choice.order == "writers":
        groups = data.groups_train if choice.part == "train" else data.groups_test
        key = random.fold(random.fold(random.key(0), "order of writers"), choice.part)
        split = ByWriter(least=choice.samples, samples=choice.samples).split(
            data.labels(choice.part, slice(None)), groups, key
        )
        return tuple(tuple(split[i].tolist()) for i in random.permutation(key, len(split)).tolist()[choice.first :])
    size = data.size(choice.part)
    places = _shuffled(choice.part, size) if choice.order == "shuffled" else torch.arange(size)
    places = places[choice.first :]
    labels = data.labels(choice.part, places)
    return tuple(tuple(places[list(batch)].tolist()) for batch in cut_batches(labels, choice.samples, choice.mix))


def items_of(choice: DataChoice, number: int) -> tuple[int, ...]:
    """Return the indices of the examples that client `number` of a cell holds."""
    if choice.mix != "given" or choice.order == "writers":
        return mixed_batches(choice)[number]
    first = choice.first + number * choice.samples
    places = range(first, first + choice.samples)
    if choice.order == "shuffled":
        order = _shuffled(choice.part, data_of(choice).size(choice.part))
        return tuple(int(order[place]) for place in places)
    return tuple(places)


def batch_of(data: Dataset, part: Part, items: Sequence[Sequence[int]]) -> Batch:
    """Return the private batch of many clients with the same number of examples each."""
    flat = torch.tensor([list(each) for each in items])
    images = data.pictures(part, flat.reshape(-1)).reshape(*flat.shape, *data.input_shape)
    labels = data.labels(part, flat.reshape(-1)).reshape(flat.shape)
    return make_batch(images, labels, classes=data.classes, tokens=data.kind == "text")


def public_images(settings: CellSettings) -> Tensor:
    """Return the images that a dishonest server has: the first of the part that holds no private ones."""
    data, part = data_of(settings.data), settings.data.part
    other: Part = "train" if part == "test" else "test"
    return data.pictures(other, range(min(PUBLIC, data.size(other))))


def is_insider(attack: Attack) -> bool:
    """Return whether an attack starts from a public example."""
    return isinstance(attack, Matching) and isinstance(attack.start, PublicExample)


def begun_from(attack: Attack, pictures: Tensor) -> Attack:
    """Return an insider attack with its start images (T x N x input_shape, in [0, 1])."""
    return replace(attack, start=Insider(pictures)) if isinstance(attack, Matching) else attack


def other_part(part: Part) -> Part:
    """Return the part of a data set that does not contain the private examples."""
    return "train" if part == "test" else "test"


def public_examples(data: Dataset, private: Part, labels: Tensor, seeds: Sequence[int]) -> Tensor:
    """Return public images (T x N x input_shape, [0, 1]) of the classes in `labels` (T x N), drawn uniformly within each class."""
    part = other_part(private)
    known = data.labels(part, slice(None))
    keys = random.fold(random.key(list(seeds)), "insider")  # a fold that no client uses
    drawn = lift(lambda key: random.uniform(key, (labels.shape[1],)))(keys)
    places = torch.zeros_like(labels)
    for label in labels.unique().tolist():
        of_class = (known == label).nonzero()[:, 0]
        if not len(of_class):
            raise InputError(f"an insider needs a public example of class {label}, {data.name} {part} has none")
        positions = labels == label
        places[positions] = of_class[(drawn[positions] * len(of_class)).long().clamp_max(len(of_class) - 1)]
    return data.pictures(part, places.reshape(-1)).reshape(*labels.shape, *data.input_shape)


def insider_misfits(settings: CellSettings, data: Dataset) -> list[Problem]:
    """Return a problem if an insider attack lacks a public example of some class."""
    if not is_insider(settings.attack):
        return []
    part = settings.data.part
    public = set(data.labels(other_part(part), slice(None)).tolist())
    lacking = sorted(set(data.labels(part, slice(None)).tolist()) - public)
    if not lacking:
        return []
    message = f"{data.name} {other_part(part)} has no example of class {lacking[0]}"
    more = f" and of {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return [Problem(("attack", "start"), f"insider needs a public example of every class; {message}{more}")]
