"""Seconds per policy of both search scores: many policies, all pictures and points of the line at once, against one at a time.

    python benchmarks/policy_scores.py [--device cuda] [--images 20] [--width 16] [--data cifar100] [--pairs 5]
    OMP_NUM_THREADS=1 python benchmarks/policy_scores.py --clock cpu      # on a machine that does other work too

The slow side is what the authors' code does: for every picture the gradient at every point of its line, one after the other
(21 for 21 points, the last being the target's), for one policy. Both sides run in float32 on the same device with the same threads.
The ratio is the median over interleaved pairs. Goal: at least 5 for the privacy score. docs/policies.md says what was reached.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.heap import keep_freed
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import to
from leakscope.data import load
from leakscope.defences.on_data import Transform
from leakscope.models import build
from leakscope.search.accuracy_score import accuracy_scores, correlation, score_of
from leakscope.search.privacy_score import Line, privacy_scores
from leakscope.search.random_search import draw_policies

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def slow_privacy(model: Model, targets: Tensor, starts: Tensor, labels: Tensor, points: int) -> float:
    """Return the score of one policy, one gradient at a time by plain autograd."""
    total = 0.0
    for target, start, label in zip(targets, starts, labels, strict=True):
        true = gradient(model, target, label)
        curve = [
            statistics.fmean(
                float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))
                for a, b in zip(gradient(model, torch.lerp(start, target, j / (points - 1)), label), true, strict=True)
            )
            for j in range(points - 1)
        ] + [1.0]
        total += float(torch.trapezoid(torch.tensor(curve), dx=1 / (points - 1)))
    return total / len(targets)


def gradient(model: Model, x: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    weights = {name: value.detach().requires_grad_(True) for name, value in model.parameters.items()}
    output, _ = model.apply(weights, model.buffers, x[None], torch.zeros((), dtype=torch.int64, device=x.device))
    return torch.autograd.grad(torch.nn.functional.cross_entropy(output, label[None]), list(weights.values()))


def slow_accuracy(model: Model, inputs: Tensor) -> float:
    """Return the score of one policy and batch, one Jacobian at a time."""
    rows = []
    for one in inputs:
        x = one[None].clone().requires_grad_(True)
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        rows.append(torch.autograd.grad(model.apply(model.parameters, model.buffers, x, key)[0].sum(), x)[0].flatten())
    return float(score_of(torch.linalg.eigvalsh(correlation(torch.stack(rows)))))


def seconds(work: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


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
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "privacy": (
            lambda: privacy_scores(model, x, y, hows, scaling=scaling, line=line),
            lambda: slow_privacy(model, moved, noise, y, line.points),
        ),
        "accuracy": (
            lambda: accuracy_scores(model, [(x, torch.arange(len(x), device=told.device))], hows, scaling=scaling),
            lambda: slow_accuracy(model, moved),
        ),
    }
    print(
        f"{told.device}, {torch.get_num_threads()} threads, {told.clock} clock, resnet20 width {told.width}, "
        f"{told.images} pictures of {told.data}, {len(hows)} policies"
    )
    print("| score | ours s / policy | one at a time s / policy | ratio, median (min - max) | pairs |")
    print("|---|---|---|---|---|")
    for name, (fast, slow) in cases.items():
        if told.score not in (None, name):
            continue
        fast()
        clock = CLOCKS[told.clock]
        pairs = [
            (seconds(fast, told.device, clock) / len(hows), seconds(slow, told.device, clock))
            for _ in range(told.pairs)
        ]
        ratios = [b / a for a, b in pairs]
        ours, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        print(
            f"| {name} | {ours:.3f} | {theirs:.3f} | {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} - {max(ratios):.1f}) | {told.pairs} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
