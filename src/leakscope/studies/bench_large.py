"""Speed of one IG attack on networks that users have: the engine beside the plain loop and the same step captured in a CUDA graph.

Rates are iterations a second of all trials at once. The engine's rate counts everything from the call to the result; `first_s` is
the time from the call to the end of a run of one iteration, with the weights on the card already. Images are random: speed
does not depend on them.
"""

from __future__ import annotations

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
from leakscope.core.errors import InputError
from leakscope.core.tree import to
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.models import Torch, build, draw_parameters

LARGE = {
    f"{network}-{side}-{trials}x{images}": (network, side, trials, images)
    for network, side, trials, images in (
        ("resnet18", 224, 1, 1),
        ("resnet18", 224, 1, 8),
        ("resnet18", 224, 1, 32),
        ("resnet18", 224, 8, 1),
        ("resnet18", 64, 1, 8),
        ("resnet18", 64, 8, 1),
        ("vit_b16", 224, 1, 1),
        ("vit_b16", 224, 1, 8),
    )
}
ITERATIONS = 300
PAIRS = 3  # whole attacks of the engine, each beside a window of captured steps
WINDOW = 2.0  # seconds of captured steps


@dataclass(frozen=True, slots=True)
class LargeTiming:
    """Timing of one case; the ratio is the engine's rate over the captured step's, its range is over all pairs."""

    name: str
    tf32: bool
    iterations: int
    pairs: int
    loop_per_s: float
    captured_per_s: float
    engine_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    first_s: float
    loop_gib: float
    captured_gib: float
    engine_gib: float

    @property
    def line(self) -> str:
        """Return the timing as one line."""
        return (
            f"{self.name:<17} {self.loop_per_s:>7.1f}/s {self.loop_gib:>5.1f} GiB  captured {self.captured_per_s:>6.1f}/s "
            f"{self.captured_gib:>5.1f} GiB  engine {self.engine_per_s:>6.1f}/s {self.engine_gib:>5.1f} GiB  "
            f"{self.ratio:.2f} of captured ({self.ratio_low:.2f} to {self.ratio_high:.2f}, n={self.pairs}, "
            f"{self.iterations} iterations)  first after {self.first_s:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class _Setup:
    module: nn.Module
    observation: Observation
    knowledge: Knowledge
    run: Callable[[int], object]


def _set_up(network: str, side: int, trials: int, images: int, tf32: bool) -> _Setup:
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

    return _Setup(model.apply.module, observation, to(knowledge, device="cuda"), run)  # type: ignore[attr-defined]


def _plain_step(setup: _Setup, trial: int, images: int, side: int) -> Callable[[], None]:
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


def _capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return a step as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def _seconds(f: Callable[[], object], number: int = 1) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(number):
        f()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _gib() -> float:
    """Return the most GiB held on the card since the last call, and begin anew."""
    most = torch.cuda.max_memory_reserved() / 2**30
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def measure_large(name: str, *, tf32: bool, iterations: int | None = None) -> LargeTiming:
    """Return the timing of one case of `LARGE`; needs a CUDA device."""
    if not torch.cuda.is_available():
        raise InputError(f"benchmark case {name!r} compares with a CUDA graph and needs --device cuda")
    network, side, trials, images = LARGE[name]
    number = iterations or ITERATIONS
    with precision(tf32):
        setup = _set_up(network, side, trials, images, tf32)
        _gib()
        first = _seconds(lambda: setup.run(1))
        _gib()
        engines = [number / _seconds(lambda: setup.run(number))]
        engine_gib = _gib()
        steps = [_plain_step(setup, i, images, side) for i in range(trials)]
        _seconds(lambda: [step() for step in steps])
        loop = 10 / _seconds(lambda: [step() for step in steps], 10)
        loop_gib = _gib()
        graphs = [_capture(step) for step in steps]

        def play() -> None:
            for graph in graphs:
                graph.replay()

        play()
        repeat = max(10, int(WINDOW / _seconds(play)))
        windows = [repeat / _seconds(play, repeat)]
        captured_gib = _gib()
        for _ in range(PAIRS - 1):
            engines.append(number / _seconds(lambda: setup.run(number)))
            windows.append(repeat / _seconds(play, repeat))
    ratios = sorted(e / c for e, c in zip(engines, windows, strict=True))
    return LargeTiming(
        name=name,
        tf32=tf32,
        iterations=number,
        pairs=PAIRS,
        loop_per_s=loop,
        captured_per_s=sorted(windows)[PAIRS // 2],
        engine_per_s=sorted(engines)[PAIRS // 2],
        ratio=ratios[PAIRS // 2],
        ratio_low=ratios[0],
        ratio_high=ratios[-1],
        first_s=first,
        loop_gib=loop_gib,
        captured_gib=captured_gib,
        engine_gib=engine_gib,
    )
