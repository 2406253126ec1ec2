"""One IG attack on networks that users have: the engine beside the plain loop and beside the same step captured in a CUDA graph.

python benchmarks/large_networks.py [CASE ...] [--tf32] [--iterations 300]

Rates are iterations a second (of all trials at once). The engine's rate counts everything from the call to the result; `first` is
the time from the call to the end of a run of one iteration, with the weights on the card already. Images are random: speed
does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import precision
from leakscope.attacks.recipes import ig
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import to
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.models import Torch, build, draw_parameters

CASES = {
    "resnet18-224-1x1": ("resnet18", 224, 1, 1),
    "resnet18-224-1x8": ("resnet18", 224, 1, 8),
    "resnet18-224-1x32": ("resnet18", 224, 1, 32),
    "resnet18-224-8x1": ("resnet18", 224, 8, 1),
    "resnet18-64-1x8": ("resnet18", 64, 1, 8),
    "resnet18-64-8x1": ("resnet18", 64, 8, 1),
    "vit_b16-224-1x1": ("vit_b16", 224, 1, 1),
    "vit_b16-224-1x8": ("vit_b16", 224, 1, 8),
}


@dataclass(frozen=True)
class Setup:
    module: nn.Module
    observation: Observation
    knowledge: Knowledge
    run: Callable[[int], object]


def set_up(network: str, side: int, trials: int, images: int, tf32: bool) -> Setup:
    """Return a case on the card."""
    model = build(network, (3, side, side), 1000)
    seeds = list(range(trials))
    keys = random.key(seeds)
    inputs = random.uniform(random.fold(keys, "inputs"), (images, 3, side, side))
    labels = (random.uniform(random.fold(keys, "labels"), (images,)) * 1000).long()
    batch = make_batch(inputs, labels, classes=1000)
    client = Client()
    weights = to(draw_parameters(model, Torch(), keys), device="cuda")
    model_there, batch_there = to((model, batch), device="cuda")
    observation = client.observe(model_there, weights, batch_there, seeds)
    knowledge = attacker_knowledge(model, client, batch, labels=True)

    def run(iterations: int) -> object:
        execution = Execution(device="cuda", tf32=tf32)
        return ig(iterations=iterations, labels="known").run(model, observation, knowledge, seeds, execution)

    return Setup(model.apply.module, observation, to(knowledge, device="cuda"), run)  # type: ignore[attr-defined]


def plain_step(setup: Setup, trial: int, images: int, side: int) -> Callable[[], None]:
    """Return one IG iteration the way peers write it: double backward, cosine and TV, signed Adam, box."""
    module = setup.module.to("cuda").eval()
    seen = setup.observation.rounds[0]
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(seen.before[name][trial])
    parameters = list(module.parameters())
    target = [seen.sent[name][trial] for name, _ in module.named_parameters()]
    labels = setup.knowledge.labels[trial]  # type: ignore[index]
    guess = torch.rand(images, 3, side, side, device="cuda", requires_grad=True)
    optimiser = torch.optim.Adam([guess], lr=0.1, capturable=True)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        gradient = torch.autograd.grad(criterion(module(guess), labels), parameters, create_graph=True)
        product = sum((g * t).sum() for g, t in zip(gradient, target, strict=True))
        ours: Tensor = sum(g.square().sum() for g in gradient)  # type: ignore[assignment]
        theirs: Tensor = sum(t.square().sum() for t in target)  # type: ignore[assignment]
        across = (guess[..., 1:] - guess[..., :-1]).abs().mean()
        down = (guess[..., 1:, :] - guess[..., :-1, :]).abs().mean()
        value = 1 - product / (ours * theirs).sqrt() + 0.2 * (across + down)
        guess.grad = torch.autograd.grad(value, guess)[0].sign()
        optimiser.step()
        with torch.no_grad():
            guess.clamp_(0, 1)

    return step


def captured_steps(steps: list[Callable[[], None]]) -> list[torch.cuda.CUDAGraph]:
    """Return each step as a CUDA graph."""
    graphs = []
    for step in steps:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graphs.append(graph)
    return graphs


def rate(f: Callable[[], object], number: int) -> float:
    """Return calls a second."""
    f()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(number):
        f()
    torch.cuda.synchronize()
    return number / (time.perf_counter() - began)


def used() -> float:
    """Return the most GiB held on the card since the last call, and begin anew."""
    most = torch.cuda.max_memory_reserved() / 2**30
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def seconds(f: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    f()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(network: str, side: int, trials: int, images: int, *, tf32: bool, iterations: int) -> str:
    """Return the line of one case."""
    with precision(tf32):
        setup = set_up(network, side, trials, images, tf32)
        used()
        first = seconds(lambda: setup.run(1))
        used()
        engine = iterations / seconds(lambda: setup.run(iterations))
        engine_gib = used()
        steps = [plain_step(setup, i, images, side) for i in range(trials)]
        loop = rate(lambda: [step() for step in steps], 10)
        loop_gib = used()
        graphs = captured_steps(steps)
        captured = rate(lambda: [graph.replay() for graph in graphs], 40)
        captured_gib = used()
    return (
        f"{loop:7.1f} {loop_gib:5.1f} {captured:10.1f} {captured_gib:5.1f} {engine:9.1f} {engine_gib:5.1f} {first:7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--iterations", type=int, default=300)
    asked = parser.parse_args()
    print(
        f"{'case':18} {'loop/s':>7} {'GiB':>5} {'captured/s':>10} {'GiB':>5} {'engine/s':>9} {'GiB':>5} {'first s':>7}"
    )
    for name in asked.cases:
        print(f"{name:18} {measured(*CASES[name], tf32=asked.tf32, iterations=asked.iterations)}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
