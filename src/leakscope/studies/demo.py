"""The demo: what a server learns about bundled images of 32 clients, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.recipes import cpl, dlg
from leakscope.attacks.starts import Normal
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, take
from leakscope.core.types import Batch, make_batch
from leakscope.models import Uniform, build, draw_parameters
from leakscope.play import AttackResult, Demonstration, Exposure, NoiseResult, Speed, expose, judge, sweep_noise
from leakscope.play import attack as run_attack
from leakscope.play.attacking import Report, without_labels_of
from leakscope.sweep.engines import Engine, Needs, Note, reporter, serial
from leakscope.sweep.engines.contract import torch_threads

SHAPE = (1, 28, 28)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Size of the demo; steps are capped so that it ends in a minute, and the page says so."""

    images: int = 32
    image: Path | None = None
    cpl_steps: int = 25
    dlg_steps: int = 25
    noise_images: int = 8
    noise_steps: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 1 or self.noise_images < 1:
            raise InputError(f"the demo needs at least one image, got {self.images} and {self.noise_images}")
        if min(self.cpl_steps, self.dlg_steps, self.noise_steps) < 1:
            raise InputError("the demo needs at least one step an attack")


def private_pictures(settings: DemoSettings) -> tuple[Batch, tuple[str, ...]]:
    """Return the attacked images, one per client, and their class names; the user's image comes first."""
    from leakscope.data import load

    source = load("fashion_mnist")
    pictures = source.pictures("test", range(settings.images))
    labels = torch.as_tensor(source.labels("test", range(settings.images)))
    names = source.class_names
    if settings.image is not None:
        from leakscope.data import read_image

        pictures = torch.cat([read_image(settings.image, SHAPE)[None], pictures])
        labels = torch.cat([labels.new_zeros(1), labels])
    batch = make_batch(pictures[:, None], labels[:, None], classes=len(names))
    class_names = tuple(names[int(y)] for y in labels)
    return batch, (("your picture", *class_names[1:]) if settings.image is not None else class_names)


def exact_recovery(batch: Batch, seeds: list[int]) -> AttackResult:
    """Return the analytic attack on a dense network, which is exact."""
    model = build("mlp", SHAPE, 10)
    weights = draw_parameters(model, Uniform(0.1), random.key(seeds))
    return run_attack(expose(model, Client(), weights, batch, seeds), Analytic())


@dataclass(frozen=True, slots=True)
class Job:
    """One part of the demo that any process can run."""

    name: str
    settings: DemoSettings


NOISE = "noise"
ORDER = ("DLG", NOISE, "CPL random", "CPL patterned")  # longest first, so that two processes end together
SHOWN = ("CPL patterned", "CPL random", "DLG")


def _attacks(settings: DemoSettings) -> dict[str, tuple[str, Matching]]:
    """Return name -> (note, attack)."""
    return {
        "CPL patterned": (
            f"Wei et al. 2020: one random tile repeated 2 x 2; at most {settings.cpl_steps} steps.",
            cpl(iterations=settings.cpl_steps),
        ),
        "CPL random": (
            f"The same attack from normal noise; at most {settings.cpl_steps} steps.",
            cpl(start=Normal(), iterations=settings.cpl_steps),
        ),
        "DLG": (
            f"Zhu et al. 2019: picture and label optimised together from normal noise; capped at {settings.dlg_steps} steps "
            "(the authors run 300).",
            dlg(iterations=settings.dlg_steps),
        ),
    }


def _exposed(settings: DemoSettings, images: int | None = None) -> tuple[Exposure, Tree, tuple[str, ...]]:
    """Return the first clients (None: all), their weights and image names, identical in every process."""
    batch, names = private_pictures(settings)
    batch = batch if images is None else take(batch, slice(0, images))
    seeds = [settings.seed * 100_000 + i for i in range(batch.trials)]
    model = build("lenet_cpl", SHAPE, 10)
    weights = draw_parameters(model, Uniform(0.5), random.key(seeds))
    return expose(model, Client(), weights, batch, seeds), weights, names


def play_job(job: Job) -> AttackResult | NoiseResult:
    """Return one attack on all images, or the noise sweep."""
    settings = job.settings
    execution = Execution(form="native", progress=reporter(job.name))
    if job.name == NOISE:
        exposure, weights, _ = _exposed(settings, settings.noise_images)
        return sweep_noise(exposure, weights, cpl(iterations=settings.noise_steps), execution=execution)
    note, method = _attacks(settings)[job.name]
    return run_attack(_exposed(settings)[0], method, name=job.name, note=note, execution=execution)


def run_demo(
    settings: DemoSettings,
    *,
    engine: Engine = serial,
    report: Report | None = None,
    shown: Callable[[AttackResult, Batch], None] | None = None,
) -> Demonstration:
    """Return the demonstration; `shown` is called as soon as the exact recovery is ready."""
    began = time.perf_counter()
    exposure, weights, names = _exposed(settings)
    first = take(exposure.batch, slice(0, 8))
    unlabelled = frozenset() if settings.image is None else frozenset({0})  # the user's image has no class
    exact = without_labels_of(exact_recovery(first, list(exposure.seeds[:8])), unlabelled)
    if shown is not None:
        shown(exact, first)

    def on_note(note: Note) -> None:
        if report is not None:
            counts = (note.total, note.done, note.converged, note.diverged)
            report(note.chunk, Progress(*counts, note.iteration, 0, note.note))

    start = time.perf_counter()
    jobs = [(Job(name, settings), Needs(threads=1)) for name in ORDER]
    results = {job.name: result for job, result in engine(play_job, jobs, on_note=on_note)}
    seconds = time.perf_counter() - start
    noise = cast(NoiseResult, results[NOISE])
    noise = replace(noise, results=tuple(without_labels_of(each, unlabelled) for each in noise.results))
    attacks = tuple(without_labels_of(cast(AttackResult, results[name]), unlabelled) for name in SHOWN)
    return Demonstration(
        exposure=exposure,
        names=names,
        exact=(exact, first),
        attacks=attacks,
        noise=noise,
        speed=measure_speed(exposure, weights, (*attacks, *noise.results), seconds),
        seconds=time.perf_counter() - began,
        baselines=tuple(without_labels_of(each, unlabelled) for each in null_baselines(exposure)),
        unlabelled=unlabelled,
    )


def null_baselines(exposure: Exposure) -> tuple[AttackResult, ...]:
    """Return the baselines without the update, from the split that holds no private images."""
    from leakscope.data import load
    from leakscope.play.baselines import baselines, public_part

    data = load("fashion_mnist")
    public, labels = public_part(data, "test")
    guesses = baselines(exposure.batch, public, labels, classes=data.classes, seeds=list(exposure.seeds))
    return tuple(judge(exposure.batch, guess, name=name) for name, guess in guesses.items())


def measure_speed(
    exposure: Exposure, weights: Tree, results: tuple[AttackResult, ...], seconds: float, *, timed: int = 40
) -> Speed:
    """Return the run time beside that of the usual loop, estimated from single evaluations."""
    sent, label = take(exposure.observation.rounds[0].sent, 0), exposure.batch.labels[0]
    evaluate = _usual_evaluation(exposure.model, take(weights, 0), sent, label)
    each = min(_seconds_each(evaluate, timed // 2, threads) for threads in (1, torch.get_num_threads()))
    evaluations = sum(int(result.reconstruction.evaluations.sum()) for result in results)
    attacks = sum(result.reconstruction.trials for result in results)
    return Speed(attacks, evaluations, seconds, evaluations * each, timed)


def _seconds_each(evaluate: Callable[[], object], times: int, threads: int) -> float:
    """Return the seconds of one evaluation with the given number of threads."""
    with torch_threads(threads):
        evaluate()
        began = time.perf_counter()
        for _ in range(times):
            evaluate()
        return (time.perf_counter() - began) / times


def _usual_evaluation(model: Model, weights: Tree, target: Tree, labels: Tensor) -> Callable[[], object]:
    """Return one evaluation of the usual loop: one trial, autograd with create_graph, the plain module."""
    guess = torch.rand(1, *model.input_shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    criterion = nn.CrossEntropyLoss()
    module: nn.Module = model.apply.module  # type: ignore[attr-defined]

    def evaluate() -> object:
        output = torch.func.functional_call(module, leaves, (guess,))
        gradient = torch.autograd.grad(criterion(output, labels), list(leaves.values()), create_graph=True)
        value = torch.stack([(g - t).square().sum() for g, t in zip(gradient, target.values(), strict=True)]).sum()
        return torch.autograd.grad(value, guess)

    return evaluate
