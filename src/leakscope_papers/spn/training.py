"""Accuracies under every strength of a curve: DLNet in federated training, all strengths as one batch (SPN, table 2).

All strengths start from the same weights and see the same images in the same order. What is shared, and so what a defence acts
on:

- `gradient`: in every step each client sends the gradient of one batch and the server takes an Adam step along the mean (round
robin:
  after each client); a private head takes its own Adam step. This is what is attacked, so sigma and share mean the same in both.
- `weights`: one local epoch of Adam, then the change of the weights is sent (algorithm 1). Noise acts on a change of about 0.001
a
  step, so the same sigma is a far stronger defence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.tree import Tree, lift, map_tensors, to
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset
from leakscope.defences import Defence
from leakscope.defences.on_model import Polarisation
from leakscope.federated import run_rounds
from leakscope.kernels.graph_cache import Staged
from leakscope.kernels.im2col import Im2col
from leakscope.kernels.recordings import recorded
from leakscope.models import Uniform, draw_parameters
from leakscope.store.disk import clear_errors, replacing
from leakscope_papers.programs.rows import Say
from leakscope_papers.programs.settings import build_network
from leakscope_papers.spn import tree_adam
from leakscope_papers.spn.attackers import RANGE, client_of
from leakscope_papers.spn.settings import GRADIENT, WEIGHTS, Curve, Trained
from leakscope_papers.spn.tree_adam import Moments

AT_ONCE = 500
REPORT_EVERY = 5  # rounds
TRAININGS, RIGHT = "trainings", "right"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a training: weights lead with S strengths, private parameters with S x K clients; Adam's moments likewise."""

    weights: Tree
    private: Tree
    server: Moments
    client: Moments


class Training:
    """The training of one curve at S strengths at once."""

    def __init__(self, settings: Trained, curve: Curve, data: Dataset, device: str) -> None:
        """Start from fresh weights."""
        chosen = settings.training
        self.settings, self.data, self.device = chosen, data, device
        self.grid = [float(strength) for strength in curve.strengths] or [0.0]
        self.clients = chosen.clients
        wanted = chosen.examples or data.size("train")
        order = random.permutation(random.fold(random.key(chosen.seed), "clients"), data.size("train"))[:wanted]
        order = order[: len(order) // self.clients * self.clients]
        self.x, self.y = (of("train", order.tolist()).to(device) for of in (data.pictures, data.labels))
        self.places = torch.arange(len(order), device=device).reshape(self.clients, -1)
        strengths = torch.tensor(self.grid, device=device)[:, None].expand(-1, self.clients)
        local = LocalTraining(batch_size=chosen.batch, rate=chosen.rate, optimiser="adam")
        if chosen.sharing == GRADIENT:
            local = LocalTraining(rate=1.0)  # one step of SGD with rate 1: the gradient itself is sent
        self.client: Client = replace(client_of(curve, strengths), local=local)
        self.public = to(build_network(settings.model, data), device=device)
        guard = self.client.on_model
        self.model = self.public if guard is None else guard.polarise(self.public)
        first = draw_parameters(self.public, Uniform(RANGE), random.key([chosen.seed], device))
        weights: Tree = {n: w.expand(len(self.grid), *w.shape[1:]) for n, w in first.items()}
        every = random.fold(random.key(chosen.seed, device), torch.arange(self.clients, device=device))
        secrets = {} if guard is None else guard.draw(self.model, every)
        private: Tree = {n: v.expand(len(self.grid), *v.shape) for n, v in secrets.items()}
        none = torch.zeros((), device=device)
        moments = tree_adam.begin(weights, none), tree_adam.begin(private, none.expand(1, self.clients))
        self.state = State(weights, private, *moments)
        self.rounds = 0
        self._staged: Staged[Callable[..., State]] = Staged(record_after=0, trace_after=None)

    def draw(self, numbers: range) -> tuple[Tensor, Tensor]:
        """Return keys (turns x clients) and image indices (turns x clients x n) of these turns, together because single draws are slow."""
        key = random.fold(random.key(self.settings.seed, self.device), "round")
        turns = random.fold(key.expand(len(numbers)), torch.tensor(list(numbers), device=self.device))
        keys = random.fold(turns[:, None].expand(-1, self.clients), torch.arange(self.clients, device=self.device))
        if self.settings.sharing == WEIGHTS:  # all data of a client
            return keys, self.places.expand(len(numbers), *self.places.shape)
        drawn = random.uniform(random.fold(keys, "batch"), (self.settings.batch,))
        places = self.places.expand(len(numbers), *self.places.shape)
        return keys, places.gather(2, (drawn * places.shape[2]).long())

    def play_round(self) -> tuple[Training, None]:
        """Return this training after one more pass over every client's data."""
        turns = [[k] for k in range(self.clients)] if self.settings.in_turn else [list(range(self.clients))]
        steps = -(-self.places.shape[1] // self.settings.batch) if self.settings.sharing == GRADIENT else 1
        for keys, places in zip(*self.draw(range(self.rounds * steps, (self.rounds + 1) * steps)), strict=True):
            for turn in turns:
                self.play(keys, places, turn)
        self.rounds += 1
        return self, None

    def play(self, keys: Tensor, places: Tensor, who: Sequence[int]) -> None:
        """Update the state with the mean answer of these clients, given a turn's keys and images; on CUDA as recorded kernels."""
        index = torch.tensor(list(who), device=self.device)
        given = index, keys[index], places[index]
        if self.device != "cuda":
            self.state = self.turn(self.state, *given)
            return
        with Im2col():
            turn = self._staged.at_call(lambda: recorded(self.turn, (self.state, *given)), lambda: None) or self.turn
            self.state = turn(self.state, *given)

    def turn(self, state: State, index: Tensor, keys: Tensor, places: Tensor) -> State:
        """Return the state after a turn of the clients at `index` with these keys and images."""
        size, many = len(self.grid), len(index)
        x, y = self.x[places], self.y[places]
        defences, guard, private = map_tensors(
            lambda t: t[:, index], (self.client.defences, self.client.on_model, state.private)
        )
        common = {n: w[:, None].expand(size, many, *w.shape[1:]) for n, w in state.weights.items()}
        shared = [t.expand(size, *t.shape) for t in (x, y, torch.ones_like(y, dtype=torch.bool), keys)]

        def one(
            defences: tuple[Defence, ...],
            guard: Polarisation | None,
            weights: Tree,
            x: Tensor,
            y: Tensor,
            m: Tensor,
            k: Tensor,
        ) -> tuple[Tree, Tree]:
            memory: tuple[Tree, ...] = tuple({} for _ in defences)
            answer = self.client.answer(self.model, defences, memory, weights, {}, x, y, m, k, guard=guard)
            return answer.update, {name: answer.weights[name] for name in state.private}

        sent, trained = lift(lift(one))(defences, guard, {**common, **private}, *shared)
        mean = {n: v.mean(1) for n, v in sent.items()}
        server, client = state.server, state.client
        if self.settings.sharing == WEIGHTS:
            weights = {n: w - mean[n] for n, w in state.weights.items()}
        else:  # private parameters took one step of SGD with rate 1
            weights, server = tree_adam.step(state.weights, mean, server, self.settings.rate)
            gradient = {n: v - trained[n] for n, v in private.items()}
            before = map_tensors(lambda t: t[:, index], client)
            trained, after = tree_adam.step(private, gradient, before, self.settings.rate)
            client = map_tensors(lambda all, some: all.index_copy(1, index, some), client, after)
        private = {n: v.index_copy(1, index, trained[n]) for n, v in state.private.items()}
        return State(weights, private, server, client)

    def correct(self) -> Tensor:
        """Return which test images the global model of each strength classifies correctly, S x n."""
        key, correct = random.key(0, torch.device(self.device)), []
        number = min(self.settings.tests or self.data.size("test"), self.data.size("test"))
        with torch.no_grad():
            for first in range(0, number, AT_ONCE):
                some = range(first, min(first + AT_ONCE, number))
                x, y = (take("test", some).to(self.device) for take in (self.data.pictures, self.data.labels))
                predicted = lift(lambda w, x=x: self.public.apply(w, {}, x, key)[0].argmax(-1))(self.state.weights)
                correct.append((predicted == y).cpu())
        return torch.cat(correct, dim=1)


def kept_curve(settings: Trained, curve: Curve, data: Dataset, directory: Path | None, say: Say, device: str) -> Tensor:
    """Return the result of `train_curve`, stored in the directory so that a resumed program does not train again."""
    from safetensors.torch import load, save

    if directory is None:
        return train_curve(settings, curve, data, say, device)
    path = directory / TRAININGS / f"{curve.title}-{_digest(settings, curve)}.safetensors"
    if path.is_file():
        return load(path.read_bytes())[RIGHT].bool()
    correct = train_curve(settings, curve, data, say, device)
    with clear_errors(directory, "earlier rows are saved"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(save({RIGHT: correct.to(torch.uint8)}))
    return correct


def _digest(settings: Trained, curve: Curve) -> str:
    return hashlib.sha256(json.dumps(settings.plain(curve), sort_keys=True).encode()).hexdigest()[:16]


def train_curve(settings: Trained, curve: Curve, data: Dataset, say: Say, device: str) -> Tensor:
    """Return S x n: whether the model trained under each strength classifies each test image correctly."""
    training = Training(settings, curve, data, device)
    rounds = training.settings.rounds

    def after(training: Training, _: None) -> None:
        if training.rounds % REPORT_EVERY == 0:
            say(f"  {curve.title}: {training.rounds} of {rounds} rounds trained")

    run_rounds(training, Training.play_round, rounds, after=after)
    correct = training.correct()
    rates = ", ".join(
        f"{strength:g}: {rate:.1%}" for strength, rate in zip(training.grid, correct.double().mean(1), strict=True)
    )
    say(f"  accuracy of {curve.defence} after {rounds} rounds on {correct.shape[1]:,} pictures: {rates}")
    return correct
