"""Scoring one group of policies: a function of plain data, so that any process or machine can do it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.attacks.engine.plan import Execution
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import Dataset, load
from leakscope.defences.on_data import Transform
from leakscope.kernels.heap import keep_freed
from leakscope.models.checkpoint import with_values
from leakscope.search.accuracy_score import accuracy_scores
from leakscope.search.attack_score import attack_scores
from leakscope.search.candidates import Candidate
from leakscope.search.first_weights import first_model
from leakscope.search.privacy_score import Line, privacy_scores
from leakscope.search.settings import PolicySearch
from leakscope.search.utility import Examples


@dataclass(frozen=True, slots=True)
class Group:
    """Policies that are scored together, and all that it takes; `network` are the trained values as safetensors."""

    name: str
    search: PolicySearch
    policies: tuple[str, ...]
    device: str
    network: bytes = field(repr=False)


def score_group(group: Group) -> list[Candidate]:
    """Return the scores of a group; all groups of a search meet the same pictures, noise and draws."""
    search, device = group.search, group.device
    if device == "cpu":
        keep_freed()
    data, trained, fresh = _world(search, device, group.network)
    hows, scaling = [Transform(policy) for policy in group.policies], data.statistics
    places = range(search.first, search.first + search.images * search.stride, search.stride)
    x, y = data.pictures("test", places), data.labels("test", places)
    if search.score == "privacy":
        line = Line(search.points, search.per_tensor, search.trapezoid)
        privacy = privacy_scores(
            to(trained, device=device), x.to(device), y.to(device), hows, scaling=scaling, seed=search.seed, line=line
        )  # fmt: skip
    else:
        how = Execution(device=device)
        privacy = attack_scores(
            trained, x, y, hows, scaling=scaling, seed=search.seed, iterations=search.iterations, execution=how
        )
    accuracy = accuracy_scores(fresh, _batches(search, data, device), hows, scaling=scaling, seed=search.seed)
    return [Candidate(*each) for each in zip(group.policies, privacy.tolist(), accuracy.tolist(), strict=True)]


@functools.lru_cache(maxsize=2)
def _world(search: PolicySearch, device: str, network: bytes) -> tuple[Dataset, Model, Model]:
    """Return the data, the trained network on the CPU and the untrained one on the device, made once a process."""
    from safetensors.torch import load as unpack

    data, settings = load(search.data), {"width": search.width}
    fresh = first_model(search.model, data.input_shape, data.classes, settings, seed=search.seed + 1)
    return data, with_values(fresh, unpack(network), {}, "the trained network"), to(fresh, device=device)


def examples_of(data: Dataset) -> Examples:
    """Return a data set as bytes to train on."""
    return Examples(
        torch.from_numpy(data.x_train.copy()),
        data.labels("train", slice(None)),
        torch.from_numpy(data.x_test.copy()),
        data.labels("test", slice(None)),
        data.classes,
        data.statistics,
    )


def _batches(search: PolicySearch, data: Dataset, device: str) -> Sequence[tuple[Tensor, Tensor]]:
    cuts = [range(i * search.batch_size, (i + 1) * search.batch_size) for i in range(search.batches)]
    return [(data.pictures("test", c).to(device), data.labels("test", c).to(device)) for c in cuts]
