"""What SME's programs share: clients of EMNIST in either ink, and networks of a federation after some rounds.

FEMNIST is dark ink on white, scaled by .96424 and .15768 (the authors' numbers); EMNIST ByClass is light on black. `ink: dark` turns the
pictures over and scales them as FEMNIST's are; `light` takes them as they come, by their own mean and deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, take, to
from leakscope.core.types import Batch, LocalTraining
from leakscope.data import Dataset
from leakscope.data.partition import PARTITIONS
from leakscope.data.sources import FEMNIST_STATISTICS
from leakscope.federated import (
    Averaging,
    Everyone,
    Federation,
    Form,
    Played,
    State,
    deal,
    measure_utility,
    parameters_of,
    train_federation,
)
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.per_client import client_by_client
from leakscope.models import INITS, build, draw_parameters
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.objects import batch_of, items_of, load_data

INKS = ("dark", "light")


@dataclass(frozen=True, slots=True)
class Ink:
    """A data set in one ink, and how the network sees it."""

    data: Dataset
    scaling: Scaling


def in_ink(name: str, ink: str | None = None) -> Ink:
    """Return a data set of bytes in an ink; as it comes, where none is named."""
    data = load_data(name)
    if ink is None or ink == "light":
        return Ink(data, data.statistics)
    if ink != "dark":
        raise InputError(f"ink must be one of {', '.join(INKS)}, got {ink!r}")
    turned = {part: np.subtract(255, getattr(data, part), dtype=np.uint8) for part in ("x_train", "x_test")}
    return Ink(replace(data, x_train=turned["x_train"], x_test=turned["x_test"]), FEMNIST_STATISTICS)


def clients_of(ink: Ink, samples: int, clients: int) -> Batch:
    """Return the private batches of so many clients: the train part in a fixed random order, cut into pieces."""
    choice = DataChoice(name=ink.data.name, part="train", samples=samples, order="shuffled")
    size = ink.data.size("train")
    if samples * clients > size:
        raise InputError(
            f"{clients} clients of {samples} need {samples * clients:,} examples, {ink.data.name} has {size:,}"
        )
    return batch_of(ink.data, "train", [items_of(choice, number) for number in range(clients)])


def network_of(settings: Mapping[str, Any], data: Dataset) -> Model:
    """Return the network that the settings name, for a data set."""
    given = dict(settings["model"])
    return build(given.pop("name"), data.input_shape, data.classes, given)


def first_weights(model: Model, init: str, seeds: Sequence[int]) -> Tree:
    """Return fresh weights for every client."""
    return draw_parameters(model, INITS[init](), random.key(list(seeds)))


def every_client(weights: Tree, clients: int) -> Tree:
    """Return one set of weights as that of every client."""
    return {name: value.expand(clients, *value.shape).contiguous() for name, value in weights.items()}


@dataclass(frozen=True, slots=True)
class Trained:
    """The global network after some rounds: its weights, and how many of the test examples it names rightly."""

    weights: Tree
    correct: int
    n: int


def train_rounds(
    settings: Mapping[str, Any], ink: Ink, rounds: Sequence[int], say: Callable[[str], None], device: str
) -> dict[int, Trained]:
    """Return the global network after each of these rounds of the federation of appendix D.

    Every client trains with B = 50, E = 10 at 0.004 and answers with probability 0.1. EMNIST has no writers: the partition stands in
    for them.
    """
    chosen: Mapping[str, Any] = settings["federation"]
    local = LocalTraining(epochs=chosen["epochs"], batch_size=chosen["batch"], rate=chosen["rate"])
    federation = Federation(
        client=Client(local, scaling=ink.scaling),
        selection=Everyone(replies=chosen["replies"]),
        server=Averaging(),
        seed=chosen["seed"],
    )
    model = to(network_of(settings, ink.data), device=device)
    first = take(first_weights(model, "pytorch", [chosen["seed"]]), 0)
    partition = dict(chosen["partition"])
    holdings = deal(ink.data, PARTITIONS[partition.pop("name")](**partition), seed=chosen["seed"])
    networks: dict[int, Trained] = {}

    def after(state: State, _: Played) -> None:
        if state.rounds not in rounds:
            return
        weights = parameters_of(model, state)
        utility = measure_utility(model, weights, state.buffers, ink.data, scaling=ink.scaling)
        say(f"  round {state.rounds}: accuracy {utility.accuracy.value:.1%} on {utility.n:,}")
        networks[state.rounds] = Trained(to(weights, device="cpu"), utility.correct, utility.n)

    form = Form(Im2col, traced=True) if device == "cuda" else Form(client_by_client)
    weights = to(first, device=device)
    train_federation(federation, model, holdings, max(rounds), weights=weights, form=form, after=after)
    return networks
