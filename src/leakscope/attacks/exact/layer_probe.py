"""What a client's update and network say about the inputs of one dense layer: the first of the network, or one behind other layers.

Behind other layers the network is run from that layer on (`giving`), and what comes back are its inputs: features of the samples. That
holds where outputs depend on nothing but the layer's own inputs, example by example (`separates`): no way around it, no batch norm in
train mode behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.exact.ledger import ROUNDING, Probe, Update
from leakscope.attacks.exact.peeling import CHUNK
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.layer_inputs import giving
from leakscope.core.model import Dense, Model
from leakscope.core.short_repr import short_repr
from leakscope.core.tree import TINY, Tree, lift, to
from leakscope.core.types import Knowledge, Round, Shares, direction
from leakscope.learning.losses import loss_of

LENGTH = 10.0  # of features in their unit: tolerances are those of images


def feature_layer(model: Model) -> Dense | None:
    """Return the first shared dense layer with a bias, behind others, from whose inputs alone the outputs follow; None without one."""
    behind = (each for each in model.dense if is_behind(model, each) and not {each.weight, each.bias} & model.private)
    return next((each for each in behind if separates(model, each)), None)


def is_behind(model: Model, layer: Dense) -> bool:
    """Return whether a layer reads something else than the network's input."""
    return model.entry is None or model.entry.weight != layer.weight


def separates(model: Model, layer: Dense) -> bool:
    """Return whether an output depends on its example's input of this layer alone: neither on the image nor on other examples."""
    exact = to(model, dtype=torch.float64)
    images = random.uniform(random.key(0), (2, 2, *model.input_shape), torch.float64)
    rows = random.uniform(random.key(1), (3, exact.parameters[layer.weight].shape[1]), torch.float64)
    outputs = []
    for x, given in zip(images.to(exact.parameters[layer.weight].device), (rows[:2], rows[::2]), strict=True):
        with giving(layer.layer, given.to(x.device)):
            outputs.append(exact.apply(exact.parameters, exact.buffers, x, random.key(0, x.device))[0][0])
    return torch.allclose(outputs[0], outputs[1], rtol=1e-9, atol=0.0)


def makes_zeros(model: Model, layer: Dense) -> bool:
    """Return whether some units of a layer are silent for a random input, as behind ReLU: without such, no sample is ever alone."""
    exact = to(model, dtype=torch.float64)
    weight = exact.parameters[layer.weight]
    x = random.uniform(random.key(0), (2, *model.input_shape), torch.float64).to(weight.device)

    def total(value: Tensor) -> Tensor:
        values = exact.parameters | {layer.weight: value}
        return exact.apply(values, exact.buffers, x, random.key(0, x.device))[0].square().sum()

    return bool((torch.func.grad(total)(weight) == 0).all(1).any())


def unit_of(sent: Tree, layer: Dense) -> float:
    """Return a unit in which the features of a layer have about the length `LENGTH`, by its update; infinite features have none."""
    size = sent[layer.weight].double().norm() / sent[str(layer.bias)].double().norm().clamp_min(TINY**10)
    return float(size) / LENGTH if 0 < float(size) < math.inf else 1.0


def read_layer(
    seen: Round, shares: Shares, model: Model, entry: Dense, knowledge: Knowledge, unit: float = 1.0
) -> tuple[Update, Probe]:
    """Return the gradients of a dense layer and the next one in float64, and what the network says about inputs in this unit."""
    sent = direction(seen, shares)
    dtype = sent[entry.weight].dtype
    if dtype not in ROUNDING:
        raise InputError(f"peeling needs updates in float32 or float64; {entry.weight} is {dtype}")
    exact = to(sent, dtype=torch.float64)
    probe, next_layer = probe_network(to(seen, dtype=torch.float64), model, entry, knowledge, unit)
    columns = None if next_layer is None else exact[next_layer].mT
    update = Update(exact[entry.weight] / unit, exact[str(entry.bias)], columns, dtype)
    if shares is Shares.WEIGHTS:
        before = to(seen.before, dtype=torch.float64)
        size = before[entry.weight].abs().amax(1) / unit + before[str(entry.bias)].abs()
        update = replace(update, size=size, columns_size=0.0 if next_layer is None else before[next_layer].norm(dim=0))
    return update, probe


def probe_network(
    seen: Round, model: Model, entry: Dense, knowledge: Knowledge, unit: float = 1.0
) -> tuple[Probe, str | None]:
    """Return what a client's network says about candidates, in float64, and the name of the next dense layer's weights if it helps."""
    parameters = to(model.parameters, dtype=torch.float64) | seen.before
    buffers = to(model.buffers, dtype=torch.float64) | seen.buffers
    name = layer_behind(model, entry)
    running = model.in_mode("eval") if is_behind(model, entry) and model.norms else model  # `separates`: none is behind
    net = _Network(running, parameters, buffers, entry, name or "", knowledge, unit)
    if name is not None:
        trial = torch.full((1, parameters[entry.weight].shape[1]), 0.5, dtype=torch.float64, device=net.labels.device)
        silent = (net.slopes(trial)[0] == 0).all(0)
        columns, _ = net.witness(trial, torch.zeros(1, dtype=torch.int64, device=trial.device))
        if not bool(
            columns[0][silent].any()
        ):  # a silent unit has a column only where something lies between the layers
            return Probe(net.slopes, net.witness, net.outside), name
    return Probe(net.slopes, None, net.outside), None


@dataclass(frozen=True, slots=True)
class _Network:
    """A client's network in float64 as a function of single inputs of `layer`, in a unit; `next_layer` names the weights behind it."""

    model: Model
    parameters: Tree
    buffers: Tree
    layer: Dense
    next_layer: str
    knowledge: Knowledge
    unit: float

    @property
    def bias(self) -> str:
        """Return the name of the layer's bias."""
        return str(self.layer.bias)

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
        parameters, shape = self.parameters | {name: value}, tuple(self.knowledge.input_shape)
        if not is_behind(self.model, self.layer):
            return self.model.apply(parameters, self.buffers, x.reshape(1, *shape), random.key(0))[0][0]
        blank = self.labels.new_zeros(1, *shape)
        with giving(self.layer.layer, (x * self.unit)[None]):
            return self.model.apply(parameters, self.buffers, blank, random.key(0, blank.device))[0][0]

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

        weight, bias = self.parameters[self.layer.weight] * self.unit, self.parameters[self.bias]
        columns = lift(one)(rows, self.labels[chosen])
        length = columns.norm(dim=2)
        strongest = length.argmax(1, keepdim=True)
        sums, terms = rows @ weight.mT + bias, rows.abs() @ weight.abs().mT + bias.abs()
        pull = length.gather(1, strongest) / sums.abs().gather(1, strongest).clamp_min(TINY)
        return columns, length + pull * terms  # a unit's value has the rounding of its terms, however small it is

    def outside(self, rows: Tensor) -> Tensor:
        """Return how far inputs are from valid ones, as the root of a mean square; for features relative to their own."""
        if is_behind(self.model, self.layer):
            below: Tensor = rows.clamp_max(0).norm(dim=1) if self.layer.nonnegative else rows.new_zeros(len(rows))
            share: Tensor = below / rows.norm(dim=1).clamp_min(TINY**10)
            return share
        shape = tuple(self.knowledge.input_shape)
        shown: Tensor = self.knowledge.scaling.unscale(rows.unflatten(-1, shape), len(shape)).flatten(1)
        return (shown - shown.clamp(0, 1)).square().mean(1).sqrt()


def layer_behind(model: Model, entry: Dense) -> str | None:
    """Return the first shared weight matrix behind the first layer that reads as many values as it has units."""
    names = list(model.shared(model.parameters))
    units = model.parameters[str(entry.bias)].numel()
    behind = names[max(names.index(entry.weight), names.index(str(entry.bias))) + 1 :]
    fitting = (name for name in behind if model.parameters[name].ndim == 2 and model.parameters[name].shape[1] == units)
    return next(fitting, None)
