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
from leakscope.search.first_weights import first_model
from leakscope.search.privacy_score import Line, privacy_scores
from leakscope.search.random_search import Candidate
from leakscope.search.settings import PolicySearch
from leakscope.search.utility import Examples


@dataclass(frozen=True, slots=True)
class Group:
    """Policies that are scored together, and all that it takes; `network` are the trained values as safetensors."""

    name: str
    said: PolicySearch
    policies: tuple[str, ...]
    device: str
    network: bytes = field(repr=False)


def score_group(group: Group) -> list[Candidate]:
    """Return the scores of a group; all groups of a search meet the same pictures, noise and draws."""
    said, device = group.said, group.device
    if device == "cpu":
        keep_freed()
    data, trained, fresh = _world(said, device, group.network)
    hows, scaling = [Transform(policy) for policy in group.policies], data.statistics
    places = range(said.first, said.first + said.images * said.stride, said.stride)
    x, y = data.pictures("test", places), data.labels("test", places)
    if said.score == "privacy":
        line = Line(said.points, said.per_tensor, said.trapezoid)
        there = to(trained, device=device)
        privacy = privacy_scores(
            there, x.to(device), y.to(device), hows, scaling=scaling, seed=said.seed, line=line
        )  # fmt: skip
    else:
        how = Execution(device=device)
        privacy = attack_scores(
            trained, x, y, hows, scaling=scaling, seed=said.seed, iterations=said.iterations, execution=how
        )
    accuracy = accuracy_scores(fresh, _batches(said, data, device), hows, scaling=scaling, seed=said.seed)
    return [Candidate(*each) for each in zip(group.policies, privacy.tolist(), accuracy.tolist(), strict=True)]


@functools.lru_cache(maxsize=2)
def _world(said: PolicySearch, device: str, network: bytes) -> tuple[Dataset, Model, Model]:
    """Return the data, the trained network on the CPU and the untrained one on the device, made once a process."""
    from safetensors.torch import load as unpack

    data, settings = load(said.data), {"width": said.width}
    fresh = first_model(said.model, data.input_shape, data.classes, settings, seed=said.seed + 1)
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


def _batches(said: PolicySearch, data: Dataset, device: str) -> Sequence[tuple[Tensor, Tensor]]:
    cuts = [range(i * said.batch_size, (i + 1) * said.batch_size) for i in range(said.batches)]
    return [(data.pictures("test", c).to(device), data.labels("test", c).to(device)) for c in cuts]
