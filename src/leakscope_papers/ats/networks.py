"""Networks trained with a policy, and both scores of policies at them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.search.accuracy_score import accuracy_scores
from leakscope.search.policy_search import examples_of
from leakscope.search.privacy_score import privacy_scores
from leakscope.search.utility import Epoch, Recipe, Schedule, Trained, first_model, load_trained, train_network
from leakscope_papers.ats.settings import AccuracyScoring, Scoring, Training
from leakscope_papers.programs.rows import Keep, Say
from leakscope_papers.programs.settings import SizedData

NETWORKS, AT_ONCE = "networks", 500
PARTS: tuple[Literal["train"], Literal["test"]] = ("train", "test")


@functools.lru_cache(maxsize=4)
def data_of(chosen: SizedData) -> Dataset:
    """Return a data set, resized to `size` as bytes: what is trained on, attacked and scored is the same."""
    data = load(chosen.name)
    if chosen.size is None:
        return data
    sized = replace(data, side=chosen.size)
    x_train, x_test = (
        sized.pictures(part, slice(None)).mul(255).round().clamp(0, 255).to(torch.uint8).numpy() for part in PARTS
    )
    return replace(data, x_train=x_train, x_test=x_test)


def network_of(settings: Training, policy: str, keep: Keep, say: Say, device: str, *, augment: bool = True) -> Trained:
    """Return the network trained with a policy by the paper's schedule scaled to `epochs`."""
    transform = Transform(policy, crop=4, flip=True) if augment else Transform(policy)
    model, schedule = settings.model, Schedule().shortened(settings.epochs)
    recipe = Recipe(model.name, tuple(model.settings.items()), transform, schedule, settings.seed, settings.share)
    return _trained(recipe, settings.data, keep.directory, say, device)


def scoring_network(settings: Scoring, keep: Keep, say: Say, device: str) -> Trained:
    """Return the network for privacy scores: the first `scoring.epochs` of the paper's schedule, with crop and flip.

    The rate drops after 75 epochs, so never within the paper's 50. Gao et al. 2021 use a tenth of CIFAR-100, 5,000 images
    (`scoring.examples`). Its seed differs from that of the attacked networks.
    """
    model, transform = settings.model, Transform(crop=4, flip=True)
    schedule = Schedule(epochs=settings.scoring.epochs)
    share = min(1.0, settings.scoring.examples / data_of(settings.data).size("train"))
    recipe = Recipe(model.name, tuple(model.settings.items()), transform, schedule, settings.seed + 1, share)
    return _trained(recipe, settings.data, keep.directory, say, device)


def directory_of(recipe: Recipe, data: SizedData, directory: Path) -> Path:
    """Return the directory of a network beside the rows, named by its policy and a hash of its training settings."""
    sized = [] if data.size is None else [data.size]
    decisive = json.dumps([asdict(recipe), data.name, *sized], sort_keys=True)
    return directory / NETWORKS / f"{recipe.transform.policy}-{hashlib.sha256(decisive.encode()).hexdigest()[:16]}"


@functools.lru_cache(maxsize=8)
def _trained(recipe: Recipe, data: SizedData, directory: Path | None, say: Say, device: str) -> Trained:
    """Return a trained network, cached for each process; one in the directory is loaded or its training resumed."""
    examples, folder = examples_of(data_of(data)), None if directory is None else directory_of(recipe, data, directory)
    trained = None if folder is None else load_trained(recipe, examples, folder)
    epochs, wanted = 0 if trained is None else len(trained.history), recipe.schedule.epochs
    if trained is not None and epochs == wanted:
        return trained
    name = f"network with policy {recipe.transform.policy}"
    say(f"{name}: training, {epochs} of {wanted} epochs are done")

    def watch(epoch: Epoch) -> None:
        if (epoch.number + 1) % 20 == 0:
            say(f"{name}, epoch {epoch.number + 1}: test accuracy {epoch.test_accuracy:.3f}")

    return train_network(recipe, examples, device=device, directory=folder, watch=watch)


def named_rightly(chosen: SizedData, trained: Model, device: str) -> list[float]:
    """Return 1 for every untransformed test image that a network classifies correctly, and 0 for every other."""
    data, model, correct = data_of(chosen), to(trained, device=device), list[Tensor]()
    key = random.key(0, torch.device(device))
    with torch.no_grad():
        for first in range(0, data.size("test"), AT_ONCE):
            some = range(first, min(first + AT_ONCE, data.size("test")))
            x, y = (take("test", some).to(device) for take in (data.pictures, data.labels))
            output, _ = model.apply(model.parameters, model.buffers, data.statistics.scale(x, 3), key)
            correct.append((output.argmax(-1) == y).double().cpu())
    return torch.cat(correct).tolist()


def score_privacy(
    settings: Scoring, trained: Model, policies: Sequence[str], device: str, images: int
) -> list[list[float]]:
    """Return the privacy score of every policy for each of `images` test images (numbers 200, 205, ... as in the runs)."""
    data, scores = data_of(settings.data), []
    places = range(settings.first, settings.first + images * settings.stride, settings.stride)
    x, y = data.pictures("test", places).to(device), data.labels("test", places).to(device)
    model, hows = to(trained, device=device), [Transform(policy) for policy in policies]
    for place in range(images):  # one score for each image; all policies at once
        cut = slice(place, place + 1)
        scores.append(privacy_scores(model, x[cut], y[cut], hows, scaling=data.statistics, seed=settings.seed + place))
    return torch.stack(scores, 1).tolist()


def score_accuracy(settings: AccuracyScoring, policies: Sequence[str], device: str) -> list[float]:
    """Return the accuracy score of every policy on the first test images, at the untrained network."""
    data, model, size = data_of(settings.data), settings.model, settings.batch_size
    fresh = first_model(model.name, data.input_shape, data.classes, dict(model.settings), seed=settings.seed + 1)
    batches: list[tuple[Tensor, Tensor]] = []
    for number in range(settings.batches):
        cut = range(number * size, (number + 1) * size)
        batches.append((data.pictures("test", cut).to(device), data.labels("test", cut).to(device)))
    hows = [Transform(policy) for policy in policies]
    return accuracy_scores(to(fresh, device=device), batches, hows, scaling=data.statistics).tolist()
