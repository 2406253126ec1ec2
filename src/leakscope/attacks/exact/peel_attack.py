"""The peeling attack: `peeling.peel` on the first dense layer of every client, with what the network says about each candidate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.attack import check_observation
from leakscope.attacks.engine.plan import DEFAULT, Execution
from leakscope.attacks.exact.analytic import exact_result, labels_of, recover
from leakscope.attacks.exact.peeling import CHUNK, ROUNDING, WORK, Peeled, Probe, Update, peel
from leakscope.attacks.exact.spear import unmix
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense, HasNorms, Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, Tree, lift, take, to
from leakscope.core.types import Knowledge, Observation, Outcome, Reconstruction, Round, Seeds, Shares, direction
from leakscope.learning.losses import LOSSES, loss_of

APART = 1e-3  # root mean square between samples of two rounds that are two samples


@dataclass(frozen=True, slots=True)
class Peeling:
    """Read a batch from a first dense layer with ReLU-like zeros: `divide` sample by sample (`peeling`), unmix the rest (`spear`).

    A trial is `PROVED` if each of its samples is certified; `Reconstruction.proved` says which are. The others are quotients of
    the gradient that is left, as in `analytic`, and prove nothing. Noise, dropout behind the layer, clipping of single examples, batch
    statistics and several local steps leave no certificate, nor do copies of a sample. `draws` is the number of starts of SPEAR (0: none).
    """

    name: str = "peeling"
    divide: bool = True
    draws: int = 2**10

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise InputError(f"Peeling.draws must not be below 0, got {self.draws}")

    def run(
        self, model: Model, observation: Observation, knowledge: Knowledge, seeds: Seeds, execution: Execution = DEFAULT
    ) -> Reconstruction:
        """Return the samples of every trial; the mismatch is the share of the layer's gradient that no certified sample explains."""
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
        layers: object = model.apply
        if isinstance(layers, HasNorms) and model.in_mode("eval") is not model:
            raise InputError("peeling certifies single samples; batch norm in train mode normalises by the batch")
        inputs, certified, left = [], [], []
        for t in range(observation.trials):
            seen = take(observation, t)
            given = (seen.shares, model, entry, knowledge)
            ends = [self._certify_round(r, *given, seeds[t], execution) for r in seen.rounds]
            best = max(range(len(ends)), key=lambda i: len(ends[i].inputs))
            certified.append(_joined(ends)[: knowledge.samples])
            inputs.append(_filled(ends[best], certified[-1], knowledge))
            sent = direction(seen.rounds[best], seen.shares)[entry.weight]
            left.append(ends[best].rest.weight.norm() / sent.double().norm())
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

    def _certify_round(
        self,
        seen: Round,
        shares: Shares,
        model: Model,
        entry: Dense,
        knowledge: Knowledge,
        seed: int,
        execution: Execution,
    ) -> Peeled:
        """Return the certified samples of one round of one client, with the factor of the threat model, else with one that fits."""
        update, probe = read_layer(seen, shares, model, entry, knowledge)
        limit = max(1, WORK // (knowledge.classes * len(update.bias)))
        stop, known = execution.out_of_time, _factor(shares, knowledge)
        peeled = Peeled.none(update)
        for factor in dict.fromkeys((known, None)) if self.divide else ():
            peeled = peel(update, probe, factor=factor, most=knowledge.samples, limit=limit, out_of_time=stop)
            if len(peeled.inputs):
                break
        if not self.draws or len(peeled.inputs) >= knowledge.samples:
            return peeled
        return unmix(
            update,
            peeled,
            probe,
            factor=known,
            samples=knowledge.samples,
            draws=self.draws,
            seed=seed,
            out_of_time=stop,
        )


def read_layer(seen: Round, shares: Shares, model: Model, entry: Dense, knowledge: Knowledge) -> tuple[Update, Probe]:
    """Return the gradients of a dense layer and the next one in float64, and what the network says about inputs."""
    sent = direction(seen, shares)
    dtype = sent[entry.weight].dtype
    if dtype not in ROUNDING:
        raise InputError(f"peeling needs updates in float32 or float64; {entry.weight} is {dtype}")
    exact = to(sent, dtype=torch.float64)
    probe, next_layer = probe_network(to(seen, dtype=torch.float64), model, entry, knowledge)
    columns = None if next_layer is None else exact[next_layer].mT
    update = Update(exact[entry.weight], exact[str(entry.bias)], columns, dtype)
    if shares is Shares.WEIGHTS:
        before = to(seen.before, dtype=torch.float64)
        size = before[entry.weight].abs().amax(1) + before[str(entry.bias)].abs()
        update = replace(update, size=size, columns_size=0.0 if next_layer is None else before[next_layer].norm(dim=0))
    return update, probe


def _factor(shares: Shares, knowledge: Knowledge) -> float | None:
    """Return the weight of one sample in the update if the threat model says it: 1 / N of a mean, times the rate of one step."""
    if knowledge.bound is not None or knowledge.present is not None:
        return None
    if shares is Shares.GRADIENT:
        return 1 / knowledge.samples
    local = knowledge.local
    return None if local is None else float(local.length([knowledge.samples])[0]) / knowledge.samples


def probe_network(seen: Round, model: Model, entry: Dense, knowledge: Knowledge) -> tuple[Probe, str | None]:
    """Return what a client's network says about candidates, in float64, and the name of the next dense layer's weights if it helps."""
    parameters = to(model.parameters, dtype=torch.float64) | seen.before
    buffers = to(model.buffers, dtype=torch.float64) | seen.buffers
    name = layer_behind(model, entry)
    net = _Network(model, parameters, buffers, entry.weight, str(entry.bias), name or "", knowledge)
    if name is not None:
        trial = torch.full((1, math.prod(model.input_shape)), 0.5, dtype=torch.float64, device=net.labels.device)
        silent = (net.slopes(trial)[0] == 0).all(0)
        columns, _ = net.witness(trial, torch.zeros(1, dtype=torch.int64, device=trial.device))
        if not bool(
            columns[0][silent].any()
        ):  # a silent unit has a column only where something lies between the layers
            return Probe(net.slopes, net.witness, net.outside), name
    return Probe(net.slopes, None, net.outside), None


@dataclass(frozen=True, slots=True)
class _Network:
    """A client's network in float64 as a function of single inputs; `next_layer` names the weights behind the first layer."""

    model: Model
    parameters: Tree
    buffers: Tree
    weight: str
    bias: str
    next_layer: str
    knowledge: Knowledge

    __repr__ = short_repr

    @property
    def labels(self) -> Tensor:
        """Return every label as a one-hot row."""
        return torch.eye(self.knowledge.classes, dtype=torch.float64, device=self.parameters[self.bias].device)

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss of one example."""
        return loss_of(self.knowledge.loss)(output[None], label[None])[0]

    def output(self, name: str, value: Tensor, x: Tensor) -> Tensor:
        """Return the output for one input, with another value of one parameter."""
        inputs = x.reshape(1, *self.knowledge.input_shape)
        return self.model.apply(self.parameters | {name: value}, self.buffers, inputs, random.key(0))[0][0]

    def slopes(self, rows: Tensor) -> Tensor:
        """Return the gradient of each label's loss by the first layer's output, M x C x K."""
        labels = self.labels

        def one(x: Tensor) -> Tensor:
            bias = self.parameters[self.bias]
            logits, pull = torch.func.vjp(lambda shift: self.output(self.bias, shift, x), bias)  # type: ignore[misc]
            towards = torch.func.vmap(torch.func.grad(self.loss), (None, 0))(logits, labels)
            slopes: Tensor = torch.func.vmap(pull)(towards)[0]
            return slopes

        width = max(1, CHUNK // (len(labels) * self.parameters[self.bias].numel()))
        return torch.cat([lift(one)(part) for part in rows.split(width)])

    def witness(self, rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient by the next layer's columns, M x K x Q, and the magnitude rounded on the way to each, M x K."""

        def one(x: Tensor, label: Tensor) -> Tensor:
            def value(weight: Tensor) -> Tensor:
                return self.loss(self.output(self.next_layer, weight, x), label)

            gradient: Tensor = torch.func.grad(value)(self.parameters[self.next_layer])
            return gradient.mT

        weight, bias = self.parameters[self.weight], self.parameters[self.bias]
        columns = lift(one)(rows, self.labels[chosen])
        length = columns.norm(dim=2)
        strongest = length.argmax(1, keepdim=True)
        sums, terms = rows @ weight.mT + bias, rows.abs() @ weight.abs().mT + bias.abs()
        pull = length.gather(1, strongest) / sums.abs().gather(1, strongest).clamp_min(TINY)
        return columns, length + pull * terms  # a unit's value has the rounding of its terms, however small it is

    def outside(self, rows: Tensor) -> Tensor:
        """Return how far inputs are from valid ones, as the root of a mean square."""
        shape = tuple(self.knowledge.input_shape)
        shown = self.knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)).flatten(1)
        return (shown - shown.clamp(0, 1)).square().mean(1).sqrt()


def layer_behind(model: Model, entry: Dense) -> str | None:
    """Return the first shared weight matrix behind the first layer that reads as many values as it has units."""
    names = list(model.shared(model.parameters))
    units = model.parameters[str(entry.bias)].numel()
    behind = names[max(names.index(entry.weight), names.index(str(entry.bias))) + 1 :]
    fitting = (name for name in behind if model.parameters[name].ndim == 2 and model.parameters[name].shape[1] == units)
    return next(fitting, None)


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
        rows += recover(best.rest.weight[None], best.rest.bias[None], replace(knowledge, samples=missing))[0].unbind()
    return torch.stack(rows)


def _labels(certified: Sequence[int], rule: Tensor) -> Tensor:
    """Return N labels: the certified ones, then those that a rule has left over."""
    rest = list((Counter(rule.tolist()) - Counter(certified)).elements())
    rest += rule.tolist()[: len(rule) - len(certified) - len(rest)]
    return torch.tensor([*certified, *rest][: len(rule)], device=rule.device)
