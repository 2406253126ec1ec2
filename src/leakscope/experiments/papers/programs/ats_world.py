"""What ATS's programs share: the data, networks trained with a policy, test pictures, both scores."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.experiments.policy_scoring import examples_of
from leakscope.search.accuracy_score import accuracy_scores
from leakscope.search.first_weights import first_model
from leakscope.search.privacy_score import privacy_scores
from leakscope.search.utility import Epoch, Recipe, Schedule, Trained, train_network

Say = Callable[[str], None]
Settings = Mapping[str, Any]


def data_of(settings: Settings) -> Dataset:
    """Return the data that settings name."""
    return load(settings["data"]["name"])


def network_of(settings: Settings, policy: str, say: Say, device: str, *, augment: bool = True) -> Trained:
    """Return the network trained with a policy by the paper's schedule in `epochs`; made once for each process."""
    said = {name: settings[name] for name in ("data", "model", "epochs", "share", "seed")}
    return _trained(json.dumps(said, sort_keys=True), policy, augment, say, device)


@functools.lru_cache(maxsize=8)
def _trained(said: str, policy: str, augment: bool, say: Say, device: str) -> Trained:
    settings = json.loads(said)
    model = dict(settings["model"])
    transform = Transform(policy, crop=4, flip=True) if augment else Transform(policy)
    recipe = Recipe(
        model.pop("name"),
        tuple(model.items()),
        transform,
        Schedule().shortened(settings["epochs"]),
        settings["seed"],
        settings["share"],
    )
    say(f"training with policy {policy}, {settings['epochs']} epochs")

    def watch(epoch: Epoch) -> None:
        if (epoch.number + 1) % 20 == 0:
            say(f"policy {policy}, epoch {epoch.number + 1}: test accuracy {epoch.test_accuracy:.3f}")

    return train_network(recipe, examples_of(data_of(settings)), device=device, watch=watch)


def score_privacy(
    settings: Settings, trained: Model, policies: Sequence[str], device: str, images: int
) -> list[list[float]]:
    """Return the privacy score of every policy for each of so many test pictures (numbers 200, 205, ... as in the runs)."""
    data, made = data_of(settings), []
    first, stride = settings.get("first", 200), settings.get("stride", 5)
    places = range(first, first + images * stride, stride)
    x, y = data.pictures("test", places).to(device), data.labels("test", places).to(device)
    model, hows = to(trained, device=device), [Transform(policy) for policy in policies]
    for place in range(images):  # one picture is one score; all policies at once
        cut = slice(place, place + 1)
        made.append(privacy_scores(model, x[cut], y[cut], hows, scaling=data.statistics, seed=settings["seed"] + place))
    return torch.stack(made, 1).tolist()


def score_accuracy(settings: Settings, policies: Sequence[str], device: str) -> list[float]:
    """Return the accuracy score of every policy on the first test pictures, at the untrained network."""
    data, model = data_of(settings), dict(settings["model"])
    fresh = first_model(model.pop("name"), data.input_shape, data.classes, model, seed=settings["seed"] + 1)
    size = settings["batch_size"]
    batches: list[tuple[Tensor, Tensor]] = []
    for number in range(settings["batches"]):
        cut = range(number * size, (number + 1) * size)
        batches.append((data.pictures("test", cut).to(device), data.labels("test", cut).to(device)))
    hows = [Transform(policy) for policy in policies]
    return accuracy_scores(to(fresh, device=device), batches, hows, scaling=data.statistics).tolist()
