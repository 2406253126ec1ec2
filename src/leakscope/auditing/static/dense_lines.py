"""Static lines on dense layers: whose division gives its input, and how many examples a unit sees alone.

For z = W x + b the gradient of unit j's weights over that of its bias is the x of the only example that activates the unit, or a
mixture. Only an activation with zeros leaves units to one example; a norm in between mixes examples or units, and leaves none.
Without a bias the ratio is unknown, and CPA reads the layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from leakscope.auditing.static.facts import STATIC, Facts, Line, Severity, Topic, called, deciders, unknown
from leakscope.core import random
from leakscope.models import Layer

ZEROS = frozenset(
    {"relu", "relu_", "relu6", "hardtanh", "hardtanh_", "threshold", "threshold_", "clamp", "clamp_", "clamp_min"}
)
NO_ZEROS = frozenset({
    "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "elu", "selu", "celu", "leaky_relu", "leaky_relu_", "prelu",
    "rrelu", "softsign", "logsigmoid", "linear", "conv1d", "conv2d", "conv3d",
    "batch_norm", "layer_norm", "group_norm", "instance_norm",
})  # fmt: skip
BATCHES = 16  # of the sample, in which examples that activate a unit alone are counted


def dividing_layers(facts: Facts) -> list[tuple[Layer, nn.Linear]]:
    """Return the dense layers with trained weight and bias that meet each example once, in their order."""
    return [
        (layer, module)
        for layer, module in facts.runs_once()
        if isinstance(module, nn.Linear)
        and len(layer.entering) == 2
        and module.weight.requires_grad
        and module.bias is not None
        and module.bias.requires_grad
    ]


def bare_first_layer(facts: Facts) -> tuple[Layer, nn.Linear] | None:
    """Return the first layer if it is dense, trained, reads whole inputs and has no bias; else None."""
    for layer, module in facts.runs_once()[:1]:
        whole = layer.reads_input and len(layer.entering) == 2
        if (
            isinstance(module, nn.Linear)
            and module._parameters["bias"] is None
            and whole
            and module.weight.requires_grad
        ):
            return layer, module
    return None


def dense_lines(facts: Facts) -> tuple[Line, Line]:
    """Return the lines on the division and on the units of the first dense layer that divides."""
    if facts.structure is None:
        return unknown(Topic.DIVISION, facts.why), unknown(Topic.UNITS, facts.why)
    dense, bare = dividing_layers(facts), bare_first_layer(facts)
    if bare is not None:
        return _bare_line(facts, *bare, dense), _bare_units(_units_line(facts, *bare))
    if not dense:
        words = "no dense layer with a trained bias reads whole examples"
        return Line(Topic.DIVISION, words, Severity.NONE), Line(Topic.UNITS, "no layer divides", Severity.NONE)
    return _division_line(facts, dense), _units_line(facts, *dense[0])


def _division_line(facts: Facts, dense: list[tuple[Layer, nn.Linear]]) -> Line:
    """Return which layer's weight gradient over its bias gradient gives its input."""
    layer, module = dense[0]
    numbers = {"layers": len(dense), "features": module.in_features, "units": module.out_features}
    shape = f"{called(layer.name)} ({module.in_features} -> {module.out_features}, bias)"
    if not _reads_all(facts, layer, module):
        before = _before(facts, layer.name)
        words = f"{shape} gives its input features, not the input: {len(before)} other layers stand before it"
        page = f"{STATIC}#layers-that-divide"
        return Line(Topic.DIVISION, words, Severity.PARTIAL, numbers, deciders("cpa", "ig"), page)
    reads = "reads the input" if layer.reads_input else "reads the input as forward changes it"
    if facts.batch == 1:
        words = f"{shape} {reads}: each unit's division is the example"
        page = "explanation/exact.md#one-example-division"
        return Line(Topic.DIVISION, words, Severity.EXACT, numbers, deciders("analytic"), page)
    zeros = has_zeros(layer) is True
    words = f"{shape} {reads}: each unit's division is an example or a mixture of {facts.batch}"
    names: tuple[str, ...] = ("peeling", "spear") if zeros else ("cpa", "analytic")
    if zeros and (reason := _reason(facts)):
        names, words = ("analytic",), f"{words}; none is certified: {reason}"
    severity = Severity.EXACT if zeros else Severity.PARTIAL
    return Line(Topic.DIVISION, words, severity, numbers, deciders(*names), "explanation/exact.md#a-batch-peeling")


def _reason(facts: Facts) -> str:
    """Return why no example is certified, as the gradient that the network says one has is not the client's; empty if one may be."""
    dropped = any(isinstance(each, _DropoutNd) and each.training and each.p > 0 for each in facts.module.modules())
    return "dropout is on" if dropped else "the client takes several steps" if facts.steps > 1 else ""


def _bare_line(facts: Facts, layer: Layer, module: nn.Linear, dense: list[tuple[Layer, nn.Linear]]) -> Line:
    """Return that the ratio of a first layer without a bias is unknown, and what its gradient gives."""
    numbers = {"layers": len(dense), "features": module.in_features, "units": module.out_features}
    gives = "the example up to a factor" if facts.batch == 1 else f"mixtures of {facts.batch} examples, to unmix"
    words = (
        f"{called(layer.name)} ({module.in_features} -> {module.out_features}) reads the input and has no bias: the ratio is unknown, "
        f"and its gradient gives {gives}"
    )
    if dense:
        words += f"; {called(dense[0][0].name)} divides, and gives its input features"
    return Line(Topic.DIVISION, words, Severity.PARTIAL, numbers, deciders("cpa"), f"{STATIC}#layers-that-divide")


def _bare_units(line: Line) -> Line:
    """Return the line on the units of a layer without a bias: a unit that sees one example gives it up to a factor."""
    if line.severity is Severity.UNKNOWN:
        return line
    words = f"{line.finding}; without a bias up to an unknown factor"
    return replace(line, finding=words, severity=Severity.PARTIAL, decided_by=deciders("cpa"))


def _reads_all(facts: Facts, layer: Layer, module: nn.Linear) -> bool:
    """Return whether a layer reads the input, or as many numbers that no parameter changed, such as the normalised input."""
    size = None if facts.input_shape is None else math.prod(facts.input_shape)
    return layer.reads_input or (module.in_features == size and not _before(facts, layer.name))


def _before(facts: Facts, name: str) -> list[str]:
    """Return the names of the layers with own parameters that ran before a layer."""
    modules = dict(facts.module.named_modules())
    layers = [layer.name for layer in facts.structure.layers] if facts.structure is not None else []
    return [
        each for each in layers[: layers.index(name)] if next(modules[each].parameters(recurse=False), None) is not None
    ]


def has_zeros(layer: Layer) -> bool | None:
    """Return whether the activation behind a layer stops the gradient of some units; None: not known."""
    if layer.reader in ZEROS:
        return True
    return False if layer.reader is None or layer.reader in NO_ZEROS else None


def _units_line(facts: Facts, layer: Layer, module: nn.Linear) -> Line:
    """Return how many examples of a batch activate a unit of the dividing layer alone."""
    units, batch, page = module.out_features, facts.batch, f"{STATIC}#units-against-batch"
    numbers: dict[str, float] = {"units": units, "batch": batch, "units_per_example": units / batch}
    zeros = has_zeros(layer)
    behind = "no activation" if layer.reader is None else f"{layer.reader.rstrip('_')}"
    if batch == 1:
        words = f"{units} units for one example: every unit with a gradient sees it alone"
        severity, name = (Severity.EXACT, "analytic") if _reads_all(facts, layer, module) else (Severity.PARTIAL, "ig")
        return Line(Topic.UNITS, words, severity, numbers, deciders(name), page)
    if zeros is None:
        return unknown(
            Topic.UNITS, f"{units} units for {batch} examples, and whether {behind} leaves units at zero is not known"
        )
    if not zeros:
        words = f"{units} units for {batch} examples; {behind} leaves no unit at zero, so every division is a mixture"
        return Line(Topic.UNITS, words, Severity.PARTIAL, numbers, deciders("cpa", "ig"), page)
    names = deciders("peeling", "spear") if not _reason(facts) else deciders("analytic")
    share = _alone(module, facts) if layer.reads_input else None
    if share is not None:
        numbers["alone"] = share
        percent = "under 1" if 0 < share < 0.005 else f"{100 * share:.0f}"
        words = (
            f"{units} units for {batch} examples: {percent} % of the sample's examples activate a unit alone ({behind})"
        )
        return Line(Topic.UNITS, words, Severity.EXACT if share else Severity.PARTIAL, numbers, names, page)
    numbers |= {"expected_at_half": units * batch * 0.5**batch, "expected_most": units * (1 - 1 / batch) ** (batch - 1)}
    words = (
        f"{units} units for {batch} examples behind {behind}: units that fire for one example alone, {numbers['expected_at_half']:.2g} "
        f"expected if each fires for half of all, {numbers['expected_most']:.2g} at most"
    )
    return Line(Topic.UNITS, words, Severity.PARTIAL, numbers, names, page)


def _alone(layer: nn.Linear, facts: Facts) -> float | None:
    """Return the share of examples that are alone in activating some unit, over batches of the sample; None without enough of one."""
    inputs, batch = facts.inputs, facts.batch
    if inputs is None or len(inputs) < batch or not inputs.is_floating_point():
        return None
    rows = inputs.detach().flatten(1).to(layer.weight)
    with torch.no_grad():
        fires = F.linear(rows, layer.weight, layer.bias) > 0
    order = random.permutation(random.fold(random.key(0), "alone"), len(rows)).to(fires.device)
    count = min(BATCHES, len(rows) // batch)
    drawn = fires[order[: count * batch]].reshape(count, batch, -1)
    alone = drawn.sum(1, keepdim=True) == 1
    return float((drawn & alone).any(2).double().mean())
