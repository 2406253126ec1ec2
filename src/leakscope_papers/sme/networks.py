"""Clients of EMNIST in either ink, and networks of a federation after some rounds.

FEMNIST is dark ink on white, scaled by .96424 and .15768 (the authors' numbers); EMNIST ByClass is light on black. `ink: dark`
inverts the images and scales them like FEMNIST's; `light` keeps them and uses their own mean and deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, take, to
from leakscope.core.types import Batch, LocalTraining
from leakscope.data import Dataset
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
from leakscope.models import INITS, draw_parameters
from leakscope.scenario.settings import DataChoice
from leakscope.sweep.objects import batch_of, items_of, load_data
from leakscope.training.file import TRAINING_KINDS
from leakscope_papers.programs.rows import Say
from leakscope_papers.programs.settings import build_network
from leakscope_papers.scales import FEMNIST
from leakscope_papers.sme.settings import Networks

INKS = ("dark", "light")


@dataclass(frozen=True, slots=True)
class Ink:
    """A data set in one ink, and its scaling for the network."""

    data: Dataset
    scaling: Scaling


def in_ink(name: str, ink: str | None = None) -> Ink:
    """Return a data set of bytes in an ink; unchanged without one, and FEMNIST, which is dark."""
    data = load_data(name)
    if name == FEMNIST:
        return Ink(data, data.statistics)
    if ink is None or ink == "light":
        return Ink(data, data.statistics)
    if ink != "dark":
        raise InputError(f"ink must be one of {', '.join(INKS)}, got {ink!r}")
    turned = {part: np.subtract(255, getattr(data, part), dtype=np.uint8) for part in ("x_train", "x_test")}
    return Ink(replace(data, x_train=turned["x_train"], x_test=turned["x_test"]), FEMNIST_STATISTICS)


def clients_of(ink: Ink, samples: int, clients: int) -> Batch:
    """Return the private batches of `clients` clients: the train part in a fixed random order, cut into batches; of FEMNIST, writers."""
    by_writer: Literal["writers", "shuffled"] = "writers" if ink.data.name == FEMNIST else "shuffled"
    choice = DataChoice(name=ink.data.name, part="train", samples=samples, order=by_writer)
    size = ink.data.size("train")
    if samples * clients > size:
        raise InputError(
            f"{clients} clients of {samples} need {samples * clients:,} examples, {ink.data.name} has {size:,}"
        )
    return batch_of(ink.data, "train", [items_of(choice, number) for number in range(clients)])


def first_weights(model: Model, init: str, seeds: Sequence[int]) -> Tree:
    """Return fresh weights for every client."""
    return draw_parameters(model, INITS[init](), random.key(list(seeds)))


@dataclass(frozen=True, slots=True)
class Trained:
    """The global network after some rounds: its weights, and the number of test examples it classifies correctly."""

    weights: Tree
    correct: int
    n: int


def weights_at(
    number: int, model: Model, trained: Mapping[int, Trained], seeds: Sequence[int], init: str = "pytorch"
) -> Tree:
    """Return the weights of every client before a round: fresh before the first, else those of the global network."""
    if number == 1:
        return first_weights(model, init, seeds)
    return {n: w.expand(len(seeds), *w.shape).contiguous() for n, w in trained[number].weights.items()}


def train_rounds(settings: Networks, ink: Ink, rounds: Sequence[int], say: Say, device: str) -> dict[int, Trained]:
    """Return the global network after each of these rounds of the federation of appendix D (B = 50, E = 10, rate 0.004).

    Each client answers with probability 0.1. EMNIST has no writers, so a partition replaces them.
    """
    chosen = settings.federation
    if chosen is None:
        raise InputError(f"a network after {max(rounds)} rounds needs a federation in the settings")
    local = LocalTraining(epochs=chosen.epochs, batch_size=chosen.batch, rate=chosen.rate)
    federation = Federation(
        client=Client(local, scaling=ink.scaling),
        selection=Everyone(replies=chosen.replies),
        server=Averaging(),
        seed=chosen.seed,
    )
    model = to(build_network(settings.model, ink.data), device=device)
    first = take(first_weights(model, "pytorch", [chosen.seed]), 0)
    holdings = deal(ink.data, TRAINING_KINDS["partition"].build(chosen.partition), seed=chosen.seed)
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
