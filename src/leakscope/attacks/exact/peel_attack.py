"""The peeling attack: `peeling.peel` on the first dense layer of every client, with what the network says about each candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of, recover
from leakscope.attacks.exact.peeling import CHUNK, Peeled, Slopes, peel
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, Model
from leakscope.core.tree import lift, take, to
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Round, Seeds, Shares, direction
from leakscope.learning.losses import LOSSES, loss_of

APART = 1e-3  # root mean square between samples of two rounds that are two samples


@dataclass(frozen=True, slots=True)
class Peeling:
    """Read a batch sample by sample from a first dense layer with ReLU-like zeros; see `peeling`.

    A trial is `PROVED` if each of its samples is certified; `Reconstruction.proved` says which are. The others are quotients of
    the gradient that is left, as in `analytic`, and prove nothing. Noise, dropout behind the layer, clipping of single examples, batch
    statistics and several local steps leave no certificate, nor do copies of a sample with different labels.
    """

    name: str = "peeling"

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the samples of every trial; the mismatch is the share of the layer's gradient that no certified sample explains."""
        del execution
        check_observation(model, observation, knowledge, seeds)
        entry = model.entry
        if entry is None or entry.bias is None or {entry.weight, entry.bias} & model.private:
            raise InputError(
                f"peeling reads a first dense layer with a bias, and {model.name!r} shares none: use cpl or ig"
            )
        if knowledge.loss not in LOSSES:
            raise InputError(
                f"peeling certifies samples by a loss of {', '.join(LOSSES)}; this one is {knowledge.loss}"
            )
        inputs, certified, left = [], [], []
        for t in range(observation.trials):
            seen = take(observation, t)
            ends = [_peel_round(r, seen.shares, model, entry, knowledge) for r in seen.rounds]
            best = max(range(len(ends)), key=lambda i: len(ends[i].inputs))
            certified.append(_joined(ends)[: knowledge.samples])
            inputs.append(_filled(ends[best], certified[-1], knowledge))
            sent = direction(seen.rounds[best], seen.shares)[entry.weight]
            left.append(ends[best].weight.norm() / sent.double().norm())
        number = torch.tensor([len(samples) for samples in certified], device=sent.device)
        proved = torch.arange(knowledge.samples, device=sent.device) < number[:, None]
        rule = proved.long() if bool(proved.all()) else labels_of(model, observation, knowledge, seeds)
        labels = [_labels([label for _, label in samples], rule[t]) for t, samples in enumerate(certified)]
        shape = (len(inputs), knowledge.samples, *knowledge.input_shape)
        rows = torch.stack(inputs).reshape(shape).to(sent.dtype)
        pictures = knowledge.scaling.unscale(rows, len(knowledge.input_shape))
        result = exact_result(pictures, torch.stack(labels), torch.stack(left).to(sent.dtype), 0.0)
        every = (proved if knowledge.present is None else proved | ~knowledge.present).all(1)
        outcome = torch.where(every.to(result.outcome.device), int(Outcome.PROVED), result.outcome)
        return replace(result, outcome=outcome, proved=proved)


def _peel_round(seen: Round, shares: Shares, model: Model, entry: Dense, knowledge: Knowledge) -> Peeled:
    """Return the certified samples of one round of one client, with the factor of the threat model, else with one that fits."""
    update = direction(seen, shares)
    weight, bias = update[entry.weight], update[str(entry.bias)]
    shape = tuple(knowledge.input_shape)

    def outside(rows: Tensor) -> Tensor:
        shown = knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)).flatten(1)
        return (shown - shown.clamp(0, 1)).square().mean(1).sqrt()

    slopes = _slopes(to(seen, dtype=torch.float64), model, str(entry.bias), knowledge)
    known = _factor(shares, knowledge)
    for factor in dict.fromkeys((known, None)):
        peeled = peel(weight, bias, slopes, outside, dtype=weight.dtype, factor=factor, most=knowledge.samples)
        if len(peeled.inputs):
            break
    return peeled


def _factor(shares: Shares, knowledge: Knowledge) -> float | None:
    """Return the weight of one sample in the update if the threat model says it: 1 / N of a mean, times the rate of one step."""
    if knowledge.bound is not None or knowledge.present is not None:
        return None
    if shares is Shares.GRADIENT:
        return 1 / knowledge.samples
    local = knowledge.local
    return None if local is None else float(local.length([knowledge.samples])[0]) / knowledge.samples


def _slopes(seen: Round, model: Model, bias: str, knowledge: Knowledge) -> Slopes:
    """Return a function from inputs to the gradient of each label's loss by the output of the first layer, in float64."""
    loss, key = loss_of(knowledge.loss), random.key(0)
    buffers, shape = to(model.buffers, dtype=torch.float64) | seen.buffers, tuple(knowledge.input_shape)
    parameters = to(model.parameters, dtype=torch.float64) | seen.before
    labels = torch.eye(knowledge.classes, dtype=torch.float64, device=seen.before[bias].device)

    def one(x: Tensor) -> Tensor:
        def output(shift: Tensor) -> Tensor:
            return model.apply(parameters | {bias: shift}, buffers, x.reshape(1, *shape), key)[0][0]

        logits, pull = torch.func.vjp(output, parameters[bias])  # type: ignore[misc]  # two without has_aux
        towards = torch.func.grad(lambda o, label: loss(o[None], label[None])[0])
        slopes: Tensor = torch.func.vmap(pull)(torch.func.vmap(towards, (None, 0))(logits, labels))[0]
        return slopes

    def many(rows: Tensor) -> Tensor:
        width = max(1, CHUNK // (knowledge.classes * parameters[bias].numel()))
        return torch.cat([lift(one)(part) for part in rows.split(width)])

    return many


def _joined(ends: Sequence[Peeled]) -> list[tuple[Tensor, int]]:
    """Return the certified samples of all rounds with their labels: those of the richest round, then what others add."""
    samples: list[tuple[Tensor, int]] = []
    for end in sorted(ends, key=lambda end: -len(end.inputs)):
        known = [x for x, _ in samples]
        for x, label in zip(end.inputs, end.labels.tolist(), strict=True):
            if all(float((x - other).square().mean().sqrt()) > APART for other in known):
                samples.append((x, label))
    return samples


def _filled(best: Peeled, samples: Sequence[tuple[Tensor, int]], knowledge: Knowledge) -> Tensor:
    """Return N x F inputs: the certified ones, then quotients of the gradient that is left."""
    rows = [x for x, _ in samples]
    missing = knowledge.samples - len(rows)
    if missing:
        rows += recover(best.weight[None], best.bias[None], replace(knowledge, samples=missing))[0].unbind()
    return torch.stack(rows)


def _labels(certified: Sequence[int], rule: Tensor) -> Tensor:
    """Return N labels: the certified ones, then those that a rule has left over."""
    rest = list((Counter(rule.tolist()) - Counter(certified)).elements())
    rest += rule.tolist()[: len(rule) - len(certified) - len(rest)]
    return torch.tensor([*certified, *rest][: len(rule)], device=rule.device)
