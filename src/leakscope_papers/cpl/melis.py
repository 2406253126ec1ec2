"""The property inference of Melis et al. 2019 as an attack that draws a picture, for CPL's figure 10.

The paper does not say how the inference becomes a picture. Here the property of a client's one picture is its class: for every class
the server fits a classifier to the gradients of its own public pictures, at the weights that the client got, and its guess is the
mean of the public pictures of the class that scores highest.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import direction, make_batch
from leakscope.data import Dataset
from leakscope.inference.property import fit_properties
from leakscope.metrics.scoring import score
from leakscope.models import draw_parameters
from leakscope.models.initialise import Torch
from leakscope.play import expose
from leakscope.sweep.objects import load_data
from leakscope_papers.files import file_dataclass
from leakscope_papers.programs.rows import Keep, Say
from leakscope_papers.programs.settings import DataName, Network, build_network, read_settings


@file_dataclass
class Melis:
    """Networks of which weights attack how many pictures each, with how many public pictures of a class."""

    data: DataName
    model: Network
    images: int
    public: int
    seeds: tuple[int, ...]


def melis(settings: Mapping[str, object], keep: Keep, say: Say, device: str) -> None:
    """Store SSIM and MSE of every picture, and whether the class was inferred."""
    chosen = read_settings(Melis, settings)
    if keep.done("melis", {"attack": "melis"}):
        return
    data = load_data(chosen.data.name)
    model, rows = build_network(chosen.model, data), []
    for seed in chosen.seeds:
        say(f"{chosen.data.name}, weights {seed}: {chosen.images} pictures")
        rows.append(_attacked(model, data, chosen, seed, device))
    ssim, mse, right = (torch.cat(column).tolist() for column in zip(*rows, strict=True))
    keep.add("melis", {"attack": "melis"}, {"ssim_all": ssim, "mse_all": mse, "asr_label": right})


def _attacked(model: Model, data: Dataset, settings: Melis, seed: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return SSIM, MSE and whether the class is right, of test pictures that a key draws."""
    order = random.permutation(random.key(seed), len(data.y_test))[: settings.images].tolist()
    x, y = data.pictures("test", order), data.labels("test", order)
    labels = data.labels("train", range(len(data.y_train)))
    known = torch.cat([(labels == c).nonzero()[: settings.public, 0] for c in range(data.classes)])
    public, classes = data.pictures("train", known.tolist()), labels[known]
    weights = draw_parameters(model, Torch(), random.key([seed]))
    seen, own = (_gradients(model, weights, data, *each, seed, device) for each in ((x, y), (public, classes)))
    kinds = classes.unique()
    scores = torch.stack([one.scores(seen) for one in fit_properties(own, [classes == c for c in kinds.tolist()])])
    guess = kinds[scores.argmax(0)]
    means = torch.stack([public[classes == c].mean(0) for c in kinds.tolist()])
    found = score(x[:, None], y[:, None], means[scores.argmax(0)][:, None], None)
    return found.ssim[:, 0], found.mse[:, 0], (guess == y).double()


def _gradients(model: Model, weights: Tree, data: Dataset, x: Tensor, y: Tensor, seed: int, device: str) -> Tree:
    """Return the gradient of each picture alone, at the same weights."""
    batch = make_batch(x[:, None], y[:, None], classes=data.classes)
    same = {name: value.expand(len(x), *value.shape[1:]).to(device) for name, value in weights.items()}
    seen = expose(model, Client(scaling=data.statistics), same, batch, [seed] * len(x)).observation
    return {name: value.cpu() for name, value in direction(seen.rounds[0], seen.shares).items()}
