"""Seconds per policy of both search scores: many policies, all pictures and points of the line at once, against one at a time.

    python benchmarks/policy_scores.py [--device cuda] [--images 20] [--width 16] [--data cifar100] [--pairs 5]
    OMP_NUM_THREADS=1 python benchmarks/policy_scores.py --clock cpu      # on a machine that does other work too

The slow side does what the authors' code does: for every picture the gradient at every point of its line, one after the other
(21 for 21 points, the last being the target's), for one policy, whose pictures it finds transformed already. It calls the network
in two ways: `apply`, as all of this package does, and the bare `module`, which spares it the functional call. Both sides run in
float32 on the same device; ours with all threads, the slow one with all or with one, whichever was faster in a run before.
The ratio is the median over interleaved pairs. Goal: at least 5 for both scores. docs/how-to/policies.md says what was reached.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.kernels.heap import keep_freed
from leakscope.models import build
from leakscope.models.adapter import Functional
from leakscope.search.accuracy_score import accuracy_scores, correlation, score_of
from leakscope.search.candidates import draw_policies
from leakscope.search.privacy_score import Line, privacy_scores

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Network:
    """A network as the slow side calls it: the weights to differentiate by, made for every call, and logits of a batch of one."""

    weights: Callable[[], dict[str, Tensor]]
    call: Callable[[dict[str, Tensor], Tensor], Tensor]


def by_apply(model: Model, by_weights: bool) -> Network:
    """Return the network as the functional call that this package makes."""

    def weights() -> dict[str, Tensor]:
        if not by_weights:
            return model.parameters
        return {name: value.detach().requires_grad_(True) for name, value in model.parameters.items()}

    def call(own: dict[str, Tensor], x: Tensor) -> Tensor:
        return model.apply(own, model.buffers, x, torch.zeros((), dtype=torch.int64, device=x.device))[0]

    return Network(weights, call)


def by_module(model: Model, by_weights: bool) -> Network:
    """Return the network as a module with the values in it."""
    assert isinstance(model.apply, Functional)
    values = {**model.parameters, **model.buffers}
    module = copy.deepcopy(model.apply.module).to(next(iter(values.values())).device)
    module.load_state_dict(values, strict=False)
    own: dict[str, Tensor] = dict(module.requires_grad_(by_weights).named_parameters())
    return Network(lambda: own, lambda _, x: module(x))


WAYS = {"apply": by_apply, "module": by_module}


def slow_privacy(network: Network, targets: Tensor, starts: Tensor, labels: Tensor, points: int) -> float:
    """Return the score of one policy, one gradient at a time by plain autograd."""
    total = 0.0
    for target, start, label in zip(targets, starts, labels, strict=True):
        true = gradient(network, target, label)
        curve = [
            statistics.fmean(
                float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))
                for a, b in zip(
                    gradient(network, torch.lerp(start, target, j / (points - 1)), label), true, strict=True
                )
            )
            for j in range(points - 1)
        ] + [1.0]
        total += float(torch.trapezoid(torch.tensor(curve), dx=1 / (points - 1)))
    return total / len(targets)


def gradient(network: Network, x: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    weights = network.weights()
    loss = torch.nn.functional.cross_entropy(network.call(weights, x[None]), label[None])
    return torch.autograd.grad(loss, list(weights.values()))


def slow_accuracy(network: Network, inputs: Tensor) -> float:
    """Return the score of one policy and batch, one Jacobian at a time."""
    rows = []
    for one in inputs:
        x = one[None].clone().requires_grad_(True)
        rows.append(torch.autograd.grad(network.call(network.weights(), x).sum(), x)[0].flatten())
    return float(score_of(torch.linalg.eigvalsh(correlation(torch.stack(rows)))))


def seconds(work: Callable[[], object], device: str, clock: Callable[[], float], threads: int) -> float:
    """Return how long a piece of work takes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if device == "cuda":
            torch.cuda.synchronize()
        began = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - began
    finally:
        torch.set_num_threads(before)


def compare(told: argparse.Namespace, fast: Callable[[], object], slow: Callable[[], object], policies: int) -> str:
    """Return a row's numbers: ours, theirs with its better number of threads, the ratio over interleaved pairs."""
    clock, threads = CLOCKS[told.clock], torch.get_num_threads()
    fast(), slow()
    better = min({1, threads}, key=lambda number: seconds(slow, told.device, clock, number))
    pairs = [
        (seconds(fast, told.device, clock, threads) / policies, seconds(slow, told.device, clock, better))
        for _ in range(told.pairs)
    ]
    ratios = [b / a for a, b in pairs]
    ours, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    return (
        f"{ours:.4f} | {theirs:.4f} | {better} | {statistics.median(ratios):.1f} "
        f"({min(ratios):.1f} - {max(ratios):.1f}) | {told.pairs}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--score", choices=("privacy", "accuracy"), help="one of the two; both if not given")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--policies", type=int, default=4, help="policies that are scored at once on our side")
    parser.add_argument("--at-once", type=int, default=0, help="lines at once; 8 on cpu and 64 on cuda if not given")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: seconds of the processor, with one thread"
    )
    told = parser.parse_args()
    if told.device == "cpu":
        keep_freed()  # as a search does; both sides gain
    data = load(told.data)
    model = to(build("resnet20", data.input_shape, data.classes, {"width": told.width}), device=told.device)
    x = data.pictures("test", range(told.images)).to(told.device)
    y = data.labels("test", range(told.images)).to(told.device)
    how, scaling = Transform("3-1-7"), data.statistics
    hows = [how, *map(Transform, draw_policies(told.policies, 0)[1:])]
    line = Line(at_once=told.at_once or (64 if told.device == "cuda" else 8))
    keys = random.fold(random.key(0, device=told.device).expand(len(x)), torch.arange(len(x), device=told.device))
    moved = scaling.scale(how.change(x, how.draw(keys)), 3)
    noise = scaling.scale(torch.rand_like(x), 3)
    fast: dict[str, Callable[[], object]] = {
        "privacy": lambda: privacy_scores(model, x, y, hows, scaling=scaling, line=line),
        "accuracy": lambda: accuracy_scores(
            model, [(x, torch.arange(len(x), device=told.device))], hows, scaling=scaling
        ),
    }
    slow: dict[str, Callable[[Network], object]] = {
        "privacy": lambda network: slow_privacy(network, moved, noise, y, line.points),
        "accuracy": lambda network: slow_accuracy(network, moved),
    }
    print(
        f"{told.device}, {torch.get_num_threads()} threads, {told.clock} clock, resnet20 width {told.width}, "
        f"{told.images} pictures of {told.data}, {len(hows)} policies"
    )
    print(
        "| score | one at a time by | ours s / policy | one at a time | its threads | ratio, median (min - max) | pairs |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in fast if told.score is None else (told.score,):
        for way, network in WAYS.items():
            alone = functools.partial(slow[name], network(model, by_weights=name == "privacy"))
            print(f"| {name} | {way} | {compare(told, fast[name], alone, len(hows))} |", flush=True)


if __name__ == "__main__":
    main()
