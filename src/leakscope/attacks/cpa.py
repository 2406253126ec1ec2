"""The cocktail party attack: a batch unmixed from the gradient of a dense layer by independent components. No zeros are needed.

The layer's gradient is `G = D^T X`: each row mixes the N inputs. With its rows centred over the inputs' values and whitened to N
components Z, an unmixing U with rows of length 1 makes sources `S = U Z` that should look like inputs: far from Gaussian, smooth for
images, and not twice the same. Kariyappa et al. 2023, arXiv:2209.05578:

    min over U of  -mean J(s_i) + decorrelation mean_{i != j} (exp(T |cos(u_i, u_j)|) - 1) + tv TV(S)

J is the negentropy `(E log cosh s - E log cosh n)^2`, n normal. Differences from the paper: its published code leaves J out, and its
settings were chosen by the true images; here one set of settings serves all, and the search ends when the loss stops falling. Where the
layer has a bias, sign and scale of a source are not open: the same unmixing turns its gradient `h = D^T 1` into the source's factor. The
sources are approximate and certify nothing; `exact/newton.py` starts from them, and what it finds is certified by the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of
from leakscope.attacks.exact.layer_probe import read_layer, separates
from leakscope.attacks.exact.ledger import Peeled, never
from leakscope.attacks.exact.newton import solve_batch
from leakscope.attacks.exact.peel_attack import sample_weight
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, take
from leakscope.core.types import (
    IMAGE_RANK,
    Knowledge,
    Observation,
    Outcome,
    Reconstruction,
    Round,
    Seeds,
    Shares,
    direction,
)
from leakscope.learning.losses import LOSSES

NORMAL = 0.37457  # mean of log cosh of a standard normal number
RANK = 1e-6  # singular values below this share of the largest are rounding of float32
RATE, SHARPNESS = 2e-2, 10.0  # of Adam, and T of the decorrelation
ALONE = 1e-3  # decorrelation beside negentropy alone, which is small, in units of that beside total variation
GAIN, PATIENCE = 3e-4, 100  # the search ends when so many steps lowered the loss by less than this


@dataclass(frozen=True, slots=True)
class Sources:
    """The unmixed inputs of one batch (N x F), the loss of the unmixing, and whether it stopped falling."""

    inputs: Tensor
    loss: Tensor
    settled: bool

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cocktail:
    """Unmix the inputs of a first dense layer, with or without a bias and with any activation; at most `iterations` steps of Adam.

    A trial is converged if the loss stopped falling, and proved if the sources lead to a batch that the update certifies (`newton.py`;
    not without a bias). The mismatch is that loss: the lower, the more the sources look like inputs.
    """

    name: str = "cpa"
    iterations: int = 4000
    decorrelation: float = 1.5
    tv: float = 3.0

    def __post_init__(self) -> None:
        if self.iterations < 1 or not (self.decorrelation >= 0 and self.tv >= 0):
            raise InputError("cpa needs at least 1 iteration, and decorrelation and tv of at least 0")

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the sources of every trial as images."""
        check_observation(model, observation, knowledge, seeds)
        entry = model.entry
        if entry is None or {entry.weight, entry.bias} & model.private:
            raise InputError(f"cpa reads a first dense layer, and {model.name!r} shares none: use ig")
        ends, batches = [], []
        exact = entry.bias is not None and knowledge.loss in LOSSES and separates(model, entry)
        for t in range(observation.trials):
            seen = take(observation.rounds[0], t)
            sent = direction(seen, observation.shares)
            bias = None if entry.bias is None else sent[entry.bias]
            ends.append(self.unmix(sent[entry.weight], bias, knowledge, execution.over))
            start = ends[-1].inputs if exact else None
            batches.append(
                start
                if start is None
                else _solved(seen, observation.shares, model, entry, knowledge, start, execution.over)
            )
        inputs = [end.inputs if batch is None else batch.inputs for end, batch in zip(ends, batches, strict=True)]
        shape = (len(ends), knowledge.samples, *knowledge.input_shape)
        rows = torch.stack(inputs).reshape(shape).to(sent[entry.weight].dtype)
        loss = torch.stack([each.loss for each in ends]).to(rows)
        pictures = knowledge.scaling.unscale(rows, len(knowledge.input_shape))
        labels = labels_of(model, observation, knowledge, seeds)
        labels = torch.stack(
            [rule if each is None else each.labels for rule, each in zip(labels, batches, strict=True)]
        )
        result = exact_result(pictures, labels, loss, torch.inf)
        proved = torch.tensor([batch is not None for batch in batches])
        settled = torch.tensor([each.settled for each in ends]) | (result.outcome != Outcome.CONVERGED)
        outcome = torch.where(settled, result.outcome, int(Outcome.EXHAUSTED))
        outcome = torch.where(proved, int(Outcome.PROVED), outcome)
        return replace(result, outcome=outcome, proved=proved[:, None].expand(-1, knowledge.samples).to(rows.device))

    def unmix(
        self,
        weight: Tensor,
        bias: Tensor | None,
        knowledge: Knowledge,
        over: Callable[[], bool] = never,
    ) -> Sources:
        """Return the sources of one batch from its gradients (K x F and K); of fewer than N, the first stands for the others.

        Where the time is over, the rows of the strongest units stand for sources.
        """
        weight = weight.double()
        if over():
            chosen = weight.norm(dim=1).topk(min(knowledge.samples, len(weight))).indices
            unmixing = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)[chosen]
            return _sources(unmixing, weight, bias, knowledge, weight.new_tensor(torch.inf), settled=False)
        mean = weight.mean(1, keepdim=True)
        left, values, right = torch.linalg.svd(weight - mean, full_matrices=False)
        rank = min(knowledge.samples, int((values > RANK * values[0]).sum()))
        if not rank:
            raise InputError("cpa found a gradient of 0 in the first layer: there is nothing to unmix")
        spread = weight.shape[1] ** 0.5
        Z = right[:rank] * spread
        U, loss, settled = self._search(Z, knowledge, over)
        unmixing = U @ (left[:, :rank] / values[:rank]).mT * spread  # K units to sources
        return _sources(unmixing, weight, bias, knowledge, loss, settled=settled)

    def _search(self, Z: Tensor, knowledge: Knowledge, over: Callable[[], bool]) -> tuple[Tensor, Tensor, bool]:
        """Return the unmixing with rows of length 1, its loss, and whether that stopped falling within the iterations."""
        U = torch.eye(len(Z), dtype=Z.dtype, device=Z.device).requires_grad_()
        adam, best, reference = torch.optim.Adam([U], lr=RATE), U.detach().clone(), torch.inf
        least = Z.new_full((), torch.inf)
        for step in range(self.iterations):
            loss = self._loss(U, Z, knowledge)
            if float(loss.detach()) < float(least):
                least, best = loss.detach(), U.detach().clone()
            if step % PATIENCE == 0:
                if reference - float(least) < GAIN:
                    return _unit(best), least, True
                reference = float(least)
            if over():
                break
            adam.zero_grad()
            loss.backward()
            adam.step()
        return _unit(best), least, False

    def _loss(self, U: Tensor, Z: Tensor, knowledge: Knowledge) -> Tensor:
        """Return how little `U Z` looks like distinct inputs."""
        rows = _unit(U)
        S = rows @ Z
        strength = S.abs()
        log_cosh = strength + torch.log1p(torch.exp(-2 * strength)) - torch.log(S.new_tensor(2.0))
        loss = -(log_cosh.mean(1) - NORMAL).square().mean()
        alike = (rows @ rows.mT).abs() - torch.eye(len(U), dtype=U.dtype, device=U.device)
        smooth = self.tv > 0 and len(knowledge.input_shape) >= IMAGE_RANK
        weight = self.decorrelation * (1 if smooth else ALONE)
        loss = loss + weight * (torch.exp(SHARPNESS * alike) - 1).triu(1).mean()
        if smooth:
            images = S.unflatten(1, tuple(knowledge.input_shape))
            loss = loss + self.tv * (images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean())
        return loss


def _sources(
    unmixing: Tensor, weight: Tensor, bias: Tensor | None, knowledge: Knowledge, loss: Tensor, *, settled: bool
) -> Sources:
    """Return the sources `unmixing @ weight` (M x K and K x F), each divided by its factor; the first stands for missing ones."""
    sources = unmixing @ weight
    factors = _fitting_factors(sources, knowledge) if bias is None else unmixing @ bias.double()
    inputs = sources / torch.where(factors.abs() < TINY, TINY, factors)[:, None]
    places = torch.arange(knowledge.samples, device=inputs.device)
    return Sources(inputs[torch.where(places < len(inputs), places, 0)], loss, settled)


def _solved(
    seen: Round,
    shares: Shares,
    model: Model,
    entry: Dense,
    knowledge: Knowledge,
    start: Tensor,
    over: Callable[[], bool],
) -> Peeled | None:
    """Return the batch near `start` that the update of ONE client certifies; None without one, or if the time is over."""
    if over():
        return None
    update, probe = read_layer(seen, shares, model, entry, knowledge)
    factor = sample_weight(shares, knowledge)
    return None if factor is None else solve_batch(update, start, factor, probe, knowledge.classes, over)


def _unit(U: Tensor) -> Tensor:
    unit: Tensor = U / U.norm(dim=1, keepdim=True)
    return unit


def _fitting_factors(sources: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the factor by which each source is divided to fill the box of valid inputs: without a bias the update does not tell it."""
    low, high = (side.to(sources).repeat_interleave(sources.shape[1] // len(side)) for side in knowledge.scaling.box())
    needed = torch.stack(
        [torch.where(each > 0, each / high, each / low.clamp_max(-TINY)).amax(1) for each in (sources, -sources)]
    )
    return torch.where(needed[0] <= needed[1], needed[0], -needed[1])


def cpa(*, iterations: int = 4000, decorrelation: float = 1.5, tv: float = 3.0) -> Cocktail:
    """Recovery of a batch from a first dense layer by independent components (Kariyappa et al. 2023); approximate, or proved.

    `decorrelation` keeps sources apart, `tv` weighs their total variation if they are images.

    Equation: `min over U of -negentropy(U Z) + decorrelation mean (exp(10 |cos(u_i, u_j)|) - 1) + tv TV(U Z)`, Z the whitened gradient.
    Reference: Kariyappa et al. 2023, Cocktail party attack, arXiv:2209.05578.
    Works when: a first dense layer whose units are never silent (tanh, GELU), with more units than samples; also without a bias.
    Costs: at most 4000 steps on a matrix of samples x samples, then up to 40 Gauss-Newton steps that may make the batch exact.
    """
    return Cocktail(iterations=iterations, decorrelation=decorrelation, tv=tv)
