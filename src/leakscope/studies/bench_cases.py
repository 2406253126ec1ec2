"""The benchmark's cases, one network and attack each, and the usual autograd loop to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import cosine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Problem
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import Adam
from leakscope.attacks.priors import TotalVariation
from leakscope.attacks.recipes import cpl
from leakscope.attacks.starts import Normal
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.models import Torch, Uniform, build, draw_parameters


@dataclass(frozen=True, slots=True)
class Case:
    """One network and attack; `trials` at once and `images` per trial, each by device."""

    matching: Matching
    name: str
    network: str
    classes: int
    trials: dict[str, int]
    images: dict[str, int]
    iterations: int = 100  # of a whole attack
    uniform: bool = False
    settings: dict[str, object] = field(default_factory=dict)


_TV = Matching(
    "cosine+tv",
    objective=Match(cosine),
    priors=(TotalVariation(1e-4),),
    start=Normal(),
    optimiser=Adam(0.1),
    labels="known",
)
CASES: dict[str, Case] = {
    "lenet": Case(
        replace(cpl(start=Normal()), labels="known"),
        "lenet",
        "lenet_dlg",
        100,
        {"cpu": 128, "cuda": 4096},
        {"cpu": 1, "cuda": 1},
        iterations=10,
        uniform=True,
    ),
    "resnet20": Case(_TV, "resnet20", "resnet20", 10, {"cpu": 16, "cuda": 512}, {"cpu": 1, "cuda": 1}),
    "cnn_cifar": Case(_TV, "cnn_cifar", "cnn_cifar", 100, {"cpu": 4, "cuda": 16}, {"cpu": 10, "cuda": 50}),
}
MAIN = tuple(CASES)
for _name, _network, _iterations in (
    ("lenet", "lenet_dlg", 1000),
    ("resnet20", "resnet20", 300),
):  # few trials, of one image and of several
    for _trials, _images in itertools.product((1, 2, 8), (1, 4, 16)):
        _title = f"{_name}-{_trials}x{_images}"
        _sizes = {"cpu": _trials, "cuda": _trials}, {"cpu": _images, "cuda": _images}
        CASES[_title] = Case(_TV, _title, _network, 10, *_sizes, iterations=_iterations)


@dataclass(frozen=True, slots=True)
class Setup:
    """A case with its network, the observation, and the engine's problem."""

    model: Model
    observation: Observation
    knowledge: Knowledge
    problem: Problem
    seeds: list[int]


def set_up(case: Case, device: str, trials: int | None = None) -> Setup:
    """Return an attack on random images and random weights; speed does not depend on the images."""
    number, images = trials or case.trials[device], case.images[device]
    model = build(case.network, (3, 32, 32), case.classes, case.settings)
    seeds = list(range(number))
    keys = random.key(seeds)
    pictures = random.uniform(random.fold(keys, "pictures"), (images, 3, 32, 32))
    labels = (random.uniform(random.fold(keys, "labels"), (images,)) * case.classes).long()
    batch = make_batch(pictures, labels, classes=case.classes)
    weights = draw_parameters(model, Uniform(0.5) if case.uniform else Torch(), keys)
    client = Client()
    observation = client.observe(model, weights, batch, seeds)
    knowledge = attacker_knowledge(model, client, batch, labels=True)
    execution = Execution(device=device)
    problem, _ = case.matching.prepare(model, observation, knowledge, seeds, execution)
    return Setup(model, observation, knowledge, problem, seeds)


def plain_loop(setup: Setup, device: str) -> Callable[[int], Tensor]:
    """Return a function that evaluates trial i with `torch.autograd.grad(create_graph=True)` through the plain module."""
    value_of = _plain_value(setup, device)

    def evaluate(i: int) -> Tensor:
        guess = setup.problem.unknowns["guess"][i].clone().requires_grad_()
        return torch.autograd.grad(value_of(guess, i), guess)[0]

    return evaluate


def _plain_value(setup: Setup, device: str) -> Callable[[Tensor, int], Tensor]:
    """Return the objective of a case as peers write it: squared distance, or cosine and total variation."""
    module: nn.Module = setup.model.apply.module.to(device)  # type: ignore[attr-defined]
    module.eval()
    parameters = list(module.parameters())
    criterion = nn.CrossEntropyLoss()
    facts = setup.problem.facts
    labels = facts.knowledge.labels
    if labels is None:
        raise InputError("the benchmark's loop needs known labels")
    seen = facts.observation.rounds[0]
    names = [name for name, _ in module.named_parameters()]
    tv = bool(facts.components.priors)

    def value(guess: Tensor, i: int) -> Tensor:
        gradient = torch.autograd.grad(criterion(module(guess), labels[i]), parameters, create_graph=True)
        target = [seen.sent[name][i] for name in names]
        if not tv:
            return torch.stack([(g - t).square().sum() for g, t in zip(gradient, target, strict=True)]).sum()
        product = torch.stack([(g * t).sum() for g, t in zip(gradient, target, strict=True)]).sum()
        a = torch.stack([g.square().sum() for g in gradient]).sum()
        b = torch.stack([t.square().sum() for t in target]).sum()
        across = (guess[..., 1:] - guess[..., :-1]).abs().mean()
        down = (guess[..., 1:, :] - guess[..., :-1, :]).abs().mean()
        return 1 - product / (a * b).sqrt() + 1e-4 * (across + down)

    return value


def loop_attack(setup: Setup, i: int, device: str, iterations: int, lbfgs: bool) -> Tensor:
    """Attack one trial with the plain loop and torch.optim."""
    module: nn.Module = setup.model.apply.module.to(device)  # type: ignore[attr-defined]
    before = setup.problem.facts.observation.rounds[0].before
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(before[name][i])
    value_of = _plain_value(setup, device)
    guess = setup.problem.unknowns["guess"][i].clone().requires_grad_()
    optimiser: torch.optim.Optimizer = (
        torch.optim.LBFGS([guess], history_size=100) if lbfgs else torch.optim.Adam([guess], lr=0.1)
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = value_of(guess, i)
        value.backward(inputs=[guess])
        return value

    for _ in range(iterations):
        optimiser.step(closure)  # type: ignore[arg-type]
    return guess.detach()
