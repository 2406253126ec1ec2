"""Small sets and exact recall, shared by the tests of manipulations."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.core.model import Model
from leakscope.core.pairing import squared_distances
from leakscope.core.tree import Tree
from leakscope.core.types import Batch, Reconstruction, make_batch
from leakscope.models import build
from leakscope.play import Exposure, expose, shared_weights
from leakscope.servers.manipulation import Manipulation, dishonest_weights

SHAPE = (1, 6, 6)
HONEST = Client()


def images(number: int, seed: int) -> Tensor:
    """Return images whose brightness varies as much as their content."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.rand(number, 1, 1, 1, generator=generator)
    return 0.7 * level + 0.3 * torch.rand(number, *SHAPE, generator=generator)


def batch_of(trials: int, samples: int, labels: Tensor | None = None, classes: int = 4) -> Batch:
    """Return a private batch; labels drawn if not given."""
    drawn = torch.randint(classes, (trials, samples), generator=torch.Generator().manual_seed(1))
    x = images(trials * samples, 2).unflatten(0, (trials, samples))
    return make_batch(x, drawn if labels is None else labels, classes=classes)


def exposed(
    manipulation: Manipulation, model: Model, batch: Batch, client: Client = HONEST, weights: Tree | None = None
) -> Exposure:
    """Return what clients with manipulated weights expose."""
    seeds = list(range(batch.trials))
    honest = shared_weights(model, batch.trials) if weights is None else weights
    network, sent = dishonest_weights(manipulation, model, honest, images(400, 3), seeds)
    return expose(network, client, sent, batch, seeds)


def exact(truth: Batch, result: Reconstruction, rms: float = 1e-3) -> Tensor:
    """Return which private samples are among the reconstructed ones, T x N."""
    pairs = zip(truth.inputs, result.inputs, strict=True)
    return torch.stack([squared_distances(x.double(), y.double()).amin(1).sqrt() <= rms for x, y in pairs])


def small_mlp(units: int = 48) -> Model:
    """Return a network whose first layer is dense with ReLU."""
    return build("mlp", SHAPE, 4, {"hidden": (units,)})
