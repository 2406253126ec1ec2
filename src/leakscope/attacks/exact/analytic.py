"""Exact recovery from a first dense layer with a bias, without optimisation. Aono et al. 2017; Phong et al. 2018.

For a layer `z = W x + b` the gradients of unit k are `dL/dW_k = (dL/dz_k) x` and `dL/db_k = dL/dz_k`, so for one example `x =
dL/dW_k / dL/db_k` for every unit with a non-zero bias gradient. For a batch both are sums over the examples: a unit that only one
example activates gives that example, any other a mixture.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.ledger import never
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.null import draw_labels
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import TINY
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Seeds, direction
from leakscope.learning.losses import LOSSES

FEW = 2  # bits
MOST_ROWS = 4096  # units of a batch that are divided: those with the largest bias gradients
BOX, SAME = 1e-4, 1e-5  # mean squares: distance from the box of valid values, and between two copies of an example
MOST_POWER = 120  # of two: a float32 holds its inverse too
FAINT = 1e-6  # bias gradient, relative to the largest, below which rounding decides the quotient


@dataclass(frozen=True, slots=True)
class Analytic:
    """Divide the first dense layer's weight gradient by its bias gradient.

    One example: the mean of `dW_k / db_k` over units weighted by `db_k^2` (least squares, exact without noise). With a known mask
    each input uses the units whose pair was sent; an input without a pair stays 0 and counts as residual. N examples: every row of
    every round gives a candidate, exact for a unit that one example alone activates, and N are chosen (`_recover_batch`). Local SGD steps
    keep that: the sums of both gradients over the steps have the same quotient. A relative residual above `threshold` makes the trial
    exhausted, and so do fewer rows than examples, which explain themselves. Labels that cannot be read are drawn at random with a warning.
    """

    name: str = "analytic"
    threshold: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < math.inf:
            raise InputError(f"Analytic.threshold must be a number of at least 0, got {self.threshold}")

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the recovered inputs of every trial; the mismatch is the relative residual of the linear system."""
        check_observation(model, observation, knowledge, seeds)
        entry = model.entry
        if entry is not None and {entry.weight, entry.bias} & model.private:
            raise InputError(
                f"the first layer of {model.name!r} ({entry.weight}) is private: the analytic attack never sees it"
            )
        if (problem := no_ratio(model)) is not None:
            raise InputError(problem)
        if entry is None or entry.bias is None:
            raise InputError(
                f"model {model.name!r} does not begin with a dense layer with a bias that is trained; the analytic attack "
                "cannot read it: use cpl, dlg or ig"
            )
        weight, bias, pairs = first_layer(entry.weight, entry.bias, observation, knowledge)
        if knowledge.samples > 1 and len(observation.rounds) > 1:  # other weights activate units for other examples
            seen = [direction(r, observation.shares) for r in observation.rounds]
            weight, bias = (torch.cat([r[name] for r in seen], 1) for name in (entry.weight, entry.bias))
        weight, bias = _scaled(weight, bias)
        flat = recover(weight, bias, knowledge, execution.over) if pairs is None else _recover_one(weight, bias, pairs)
        fit = relative_residual(weight, bias, flat, pairs)
        labels = labels_of(model, observation, knowledge, seeds)
        inputs = flat.unflatten(-1, tuple(knowledge.input_shape))
        pictures = knowledge.scaling.unscale(inputs, len(knowledge.input_shape))
        enough = (bias != 0).sum(1) > (knowledge.samples if knowledge.samples > 1 else 0)
        return exact_result(pictures, labels, fit, torch.where(enough, self.threshold, -1.0))


def no_ratio(model: Model) -> str | None:
    """Return that a first dense layer has no bias to divide by, and which attack reads it all the same; None if it has one."""
    entry = model.entry
    if entry is None or entry.bias is not None:
        return None
    return f"the first layer of {model.name!r} ({entry.weight}) has no bias, so its ratio is unknown: use cpa, which needs no bias"


def labels_of(model: Model, observation: Observation, knowledge: Knowledge, seeds: Sequence[int]) -> Tensor:
    """Return the labels: known, read from the update, or drawn at random with a warning."""
    device = next(iter(observation.rounds[0].sent.values())).device
    if knowledge.loss not in LOSSES:  # a caller's own loss: labels are not judged
        return draw_labels(seeds, knowledge.samples, knowledge.classes).to(device)
    if knowledge.labels is not None:
        return knowledge.labels
    rule = "idlg" if knowledge.samples == 1 else "by_residual"
    try:
        return LABEL_RULES[rule](model, observation, knowledge, random.key(list(seeds)))
    except InputError as error:  # images need no labels
        why = str(error).partition("; use ")[0]  # the hint to use another label rule does not apply
        warnings.warn(f"labels are drawn at random, they cannot be read: {why}", stacklevel=3)
        return draw_labels(seeds, knowledge.samples, knowledge.classes).to(device)


def _scaled(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients of each trial times the power of two that makes the largest bias gradient about 1; quotients keep bits."""
    power = -torch.frexp(bias.abs().amax(1)).exponent.clamp(-MOST_POWER, MOST_POWER)
    return torch.ldexp(weight, power[:, None, None]), torch.ldexp(bias, power[:, None])


def first_layer(
    weight: str, bias: str, observation: Observation, knowledge: Knowledge
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the layer's mean gradients over rounds, T x K x F and T x K, and the usable pairs, T x K x F (None: all)."""
    seen = [direction(r, observation.shares) for r in observation.rounds]
    rows = torch.stack([s[weight] for s in seen]).mean(0)
    return rows, torch.stack([s[bias] for s in seen]).mean(0), _pairs(weight, bias, knowledge)


def _pairs(weight: str, bias: str, knowledge: Knowledge) -> Tensor | None:
    """Return where both dW_kj and db_k were sent, T x K x F; None if unknown or if there are several examples.

    With known `bits` of at most `FEW` all pairs count: most zeros come from rounding and mean a small gradient.
    """
    if knowledge.mask is None or knowledge.samples != 1:
        return None
    sent = (knowledge.mask[weight] != 0) & (knowledge.mask[bias] != 0)[..., None]
    return sent if knowledge.bits is None else sent | (knowledge.bits <= FEW)[:, None, None]


def _recover_one(weight: Tensor, bias: Tensor, pairs: Tensor) -> Tensor:
    """Return T x 1 x F inputs by least squares over the pairs of each: `x_j = sum_k m_kj W_kj b_k / sum_k m_kj b_k^2`; 0 without pairs."""
    strength = (bias.square()[..., None] * pairs).sum(1).clamp_min(TINY**2)
    return ((weight * bias[..., None] * pairs).sum(1) / strength)[:, None]


def recover(weight: Tensor, bias: Tensor, knowledge: Knowledge, over: Callable[[], bool] = never) -> Tensor:
    """Return T x N x F inputs from T x K x F and T x K gradients; once the time is `over`, the quotients of the strongest units."""
    if knowledge.samples == 1:
        strength = bias.square().sum(1).clamp_min(TINY**2)
        return ((weight * bias[..., None]).sum(1) / strength[:, None])[:, None]
    rows = zip(weight, bias, strict=True)
    return torch.stack([_recover_batch(w, b, knowledge, knowledge.samples if over() else MOST_ROWS) for w, b in rows])


def _recover_batch(weight: Tensor, bias: Tensor, knowledge: Knowledge, most: int) -> Tensor:
    """Return N x F inputs of one batch: the quotients `W_k / b_k` most likely to be one example, far from each other.

    Only those of the `most` strongest units are looked at.
    A mixture of examples with weights of both signs leaves the box of valid values. A quotient that several units repeat is an
    example: mixtures rarely coincide. So repeated quotients come first, then others inside the box, then the rest.
    """
    strongest = bias.abs().topk(min(len(bias), most)).indices
    weight, bias = weight[strongest], bias[strongest]
    rows = weight / torch.where(bias.abs() < TINY, torch.inf, bias)[:, None]
    shape = tuple(knowledge.input_shape)
    shown = knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)).flatten(1)
    boxed = shown.clamp(0, 1)
    outside = (shown - boxed).square().mean(1)
    inside = (outside <= BOX) & (bias.abs() >= FAINT * bias.abs().max().clamp_min(TINY))
    near = (torch.cdist(boxed, boxed).square() <= SAME * boxed.shape[1]) & inside & inside[:, None]
    worth = torch.where(inside, torch.where(near.sum(1) > 1, 1.0, 1e-2), 1e-4 / (1 + outside / BOX)).to(rows)
    far = (boxed - boxed[worth == worth.max()].mean(0)).square().mean(1)
    chosen: list[Tensor] = []
    for _ in range(knowledge.samples):
        chosen.append((far * worth).argmax())
        apart = (boxed - boxed[chosen[-1]]).square().mean(1)
        far = torch.minimum(far, apart) if len(chosen) > 1 else apart
    return rows[torch.stack(chosen)]


def relative_residual(weight: Tensor, bias: Tensor, flat: Tensor, pairs: Tensor | None = None) -> Tensor:
    """Return the distance of each row from its bias gradient times the nearest input, relative to all rows; inputs without pairs count."""
    if pairs is not None:
        counted = pairs | ~pairs.any(1, keepdim=True)
        weight, bias = weight * counted, bias[..., None] * pairs
    else:
        bias = bias[..., None]
    # not at once: T x K x N x F numbers
    each = ((weight - bias * one[:, None]).square().sum(-1) for one in flat.unbind(1))
    return (functools.reduce(torch.minimum, each).sum(1) / weight.square().sum((1, 2))).sqrt()


def exact_result(pictures: Tensor, labels: Tensor, fit: Tensor, threshold: Tensor | float) -> Reconstruction:
    """Return the result of a one-step attack: converged where the residual `fit` is at most the threshold."""
    T = len(pictures)
    ended = torch.where(fit <= threshold, int(Outcome.CONVERGED), int(Outcome.EXHAUSTED))
    ones = torch.ones(T, dtype=torch.int64)
    return Reconstruction(
        inputs=pictures,
        labels=labels,
        start=torch.full_like(pictures, 0.5),
        mismatch=fit,
        iterations=ones,
        evaluations=ones,
        outcome=torch.where(torch.isfinite(fit), ended, int(Outcome.DIVERGED)),
        trace=fit[:, None],
        trace_at=ones[:, None],
        snapshots=pictures[:, None],
        snapshots_at=ones[:, None],
    )
