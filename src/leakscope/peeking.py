"""`leakscope.peek(model, x, y)`: what a batch leaks through one gradient of a model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Progress
from leakscope.attacks.exact.analytic import Analytic
from leakscope.attacks.recipes import cpl
from leakscope.auditing.criterion import Criterion, compare, loss_on
from leakscope.auditing.descriptions import sent_part
from leakscope.auditing.suite import division_problem
from leakscope.clients import Client
from leakscope.core.devices import find_device
from leakscope.core.errors import InputError
from leakscope.core.progress import ProgressOption, reporting
from leakscope.core.scaling import Scaling
from leakscope.core.tree import to
from leakscope.core.types import make_batch
from leakscope.learning.losses import UserLoss
from leakscope.metrics.scoring import arrange
from leakscope.models import from_module
from leakscope.play import Demonstration, Exposure, expose, shared_weights, sweep_noise
from leakscope.play import attack as run_attack
from leakscope.play.demonstration import NOISE_LEVELS

if TYPE_CHECKING:
    from leakscope.report.page_data import Page

EXPLANATION = (
    "Your model computed one gradient on this batch, as a federated client would, and the attack was given that gradient, "
    "the model and nothing of the batch but its size."
)
LIMITS = (
    "One batch, one set of weights, one attack with capped steps: a picture that was not recovered may not be safe, "
    "and a trained model may leak less or more than an untrained one."
)


@dataclass(frozen=True, slots=True, eq=False)
class Peek:
    """The result of `peek`: displays in a notebook, prints as a line, writes a page."""

    shown: Demonstration

    @property
    def page(self) -> Page:
        """Return the page."""
        return _page(self.shown)

    def _repr_html_(self) -> str:
        from leakscope.report.page import fragment

        return fragment(self.page)

    def __repr__(self) -> str:
        runs = [
            f"{run.name}: {int(run.recovered.sum())} of {run.summary.samples} recovered, "
            f"mean MSE {run.summary.means['mse'].value:.2g}"
            for run in self.shown.attacks
        ]
        sent = sent_part(self.shown.exposure)
        return "; ".join([*runs, *([f"sent: {sent.words}"] if sent.numbers < sent.of_numbers else [])])

    @property
    def inputs(self) -> Tensor:
        """Return the attack's reconstructions, N x ..., in the order of the truth, clamped to [0, 1]."""
        run = self.shown.attacks[0]
        return arrange(run.reconstruction.inputs, run.scores.pairing)[0].clamp(0, 1)

    def write(self, path: str | Path) -> Path:
        """Write the page, whole or not at all, and return its path; only a plain file is replaced."""
        from leakscope.report.page import render, write_page

        return write_page(render(self.page), path, plain=True)


def peek(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Criterion = "cross_entropy",
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    attack: Attack | None = None,
    iterations: int = 60,
    noise: bool = False,
    seed: int = 0,
    execution: Execution | None = None,
    device: str | None = None,
    progress: ProgressOption = None,
) -> Peek:
    """Return what the gradient of `loss(model(x), y)` leaks about `x`.

    `x` is as the model takes it, N x ...; if it was normalised, say `mean` and `std` so that pictures lie in [0, 1]. `y`
    holds N class numbers, or what `loss` compares outputs with: any function `(output, y) -> scalar` will do. It runs on `device`,
    or where the model's weights lie. The default attack is CPL with at most `iterations` steps, which searches the targets of
    a loss of yours too; where the first layer is dense, such a loss is met by its division. An `attack` of yours brings its own.
    `noise` also attacks under eight levels of noise. `progress` is as in `audit`.
    """
    began = time.perf_counter()
    if x.ndim < 2 or len(x) == 0 or y.shape[:1] != x.shape[:1]:
        raise InputError(f"peek needs x of shape N x ... and y of shape N, got {tuple(x.shape)} and {tuple(y.shape)}")
    place = execution.device if device is None and execution is not None else device
    exposure = _exposed(model, x, y, loss, Scaling(tuple(mean), tuple(std)), seed, place)
    network, batch = exposure.model, exposure.batch
    method = attack or _attack(exposure, iterations)
    dense = network.head is not None and division_problem(network) is None and not isinstance(method, Analytic)
    algebra = run_attack(exposure, Analytic(), execution=execution) if attack is None and dense else None
    note = f"at most {iterations} steps" if attack is None and isinstance(method, Matching) else ""
    with reporting(progress) as report:

        def tick(name: str, state: Progress) -> None:
            report(name, done=state.iteration, total=method.stop.iterations if isinstance(method, Matching) else 0)

        report(method.name, f"{batch.samples} examples")
        attacked = run_attack(exposure, method, note=note, execution=execution, report=tick)
        if noise:
            report("noise", f"{len(NOISE_LEVELS)} levels")
        weights = shared_weights(network, 1)
        noised = sweep_noise(exposure, weights, method, execution=execution) if noise else None
    names, exact = tuple(f"sample {i}" for i in range(batch.samples)), None if algebra is None else (algebra, batch)
    return Peek(Demonstration(exposure, names, (attacked,), time.perf_counter() - began, exact, noised))


def _exposed(
    model: nn.Module, x: Tensor, y: Tensor, loss: Criterion, scaling: Scaling, seed: int, device: str | None
) -> Exposure:
    """Return what one client with this batch exposes, on `device` or where the model's weights lie."""
    place = find_device(None, model.parameters())
    where = find_device(device or place)
    network = from_module(model, input_shape=tuple(x.shape[1:]), example=x[:1].to(place), any_output=True)
    compared = compare(loss, y, to(network, device="cpu"), x.detach().cpu().float(), [])
    network = network if place == where else to(network, device=where)
    pictures = scaling.unscale(x.detach().cpu().float(), x.ndim - 1)
    batch = make_batch(
        pictures[None].clamp(0, 1) if _nearly(pictures) else pictures[None],
        compared.labels[None],
        classes=network.classes,
        targets=None if compared.targets is None else compared.targets[None],
    )
    client = Client(loss=loss_on(where, compared.loss), scaling=scaling)
    return expose(network, client, shared_weights(network, 1), batch, [seed])


def _attack(exposure: Exposure, iterations: int) -> Attack:
    """Return CPL; under a loss of the caller's own the division of the first layer, if it is dense."""
    loss = exposure.knowledge.loss
    if not isinstance(loss, UserLoss):
        return cpl(iterations=iterations, labels="auto" if exposure.model.head is not None else "joint")
    if (problem := division_problem(exposure.model)) is None:
        return Analytic()
    if loss.targets is None:
        raise InputError(
            f"peek has no attack for this model: cpl cannot search the targets of {loss}: {loss.reason}; {problem}"
        )
    return cpl(iterations=iterations, labels="joint")


def _page(shown: Demonstration) -> Page:
    from leakscope.report.attack_page import page_of

    loss = shown.exposure.knowledge.loss
    return page_of(
        shown,
        title="leakscope peek",
        explanation=EXPLANATION,
        knowledge=f"The loss ({loss}), the input shape, the scaling and the batch size. The labels are not known.",
        limits=LIMITS,
        command="leakscope.peek(model, x, y)",
    )


def _nearly(pictures: Tensor) -> bool:
    """Return whether images leave [0, 1] only by rounding errors of the normalisation."""
    return (
        bool((pictures >= -1e-4).all()) and bool((pictures <= 1 + 1e-4).all()) and bool(torch.isfinite(pictures).all())
    )
