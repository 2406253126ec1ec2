"""What a model, its client and the size of its batch say about a leak before any attack: one function a line.

A line names the attack that decides it. None runs an attack; all read one forward pass (`leakscope.models.Structure`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.analysis.ranks import Convolution, LayerRank, layer_rank
from leakscope.attacks.recipes import ATTACKS
from leakscope.auditing.adapters import Adapter, find_adapters
from leakscope.auditing.descriptions import Sent
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.short_repr import short_repr
from leakscope.models import Layer, Structure

ZEROS = frozenset({"relu", "relu_", "relu6", "hardtanh", "hardtanh_", "threshold", "threshold_", "clamp", "clamp_", "clamp_min"})
NO_ZEROS = frozenset({
    "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "elu", "selu", "celu", "leaky_relu", "leaky_relu_", "prelu",
    "rrelu", "softsign", "logsigmoid", "linear", "conv1d", "conv2d", "conv3d",
})  # fmt: skip
BATCHES = 16  # of the sample, in which examples that activate a unit alone are counted
STATIC = "explanation/static.md"


class Severity(StrEnum):
    """What a line means for the client's data."""

    EXACT = "exact"  # the update gives data without a search
    PARTIAL = "partial"  # it gives a part of the data, or narrows the search
    NEUTRAL = "neutral"  # a fact that decides nothing alone
    NONE = "none"  # it gives nothing in this way
    UNKNOWN = "not known"


class Topic(StrEnum):
    """What a line is about."""

    SENT = "what is sent"
    DIVISION = "layers that divide"
    UNITS = "units against batch"
    BUFFERS = "batch-norm buffers"
    EMBEDDINGS = "embedding rows"
    ADAPTERS = "adapter budget"
    LABELS = "labels"
    COLLISIONS = "parameters against inputs"
    RANKS = "rank analysis"


@dataclass(frozen=True, slots=True)
class Line:
    """One static finding. `decided_by` are attacks or label rules (empty: none here); `page` is a page of the docs with its anchor."""

    topic: Topic
    finding: str
    severity: Severity
    numbers: Mapping[str, float] = field(default_factory=dict)
    decided_by: tuple[str, ...] = ()
    page: str = STATIC

    def __str__(self) -> str:
        deciding = f" [decided by {', '.join(self.decided_by)}]" if self.decided_by else ""
        return f"{self.topic}: {self.finding}{deciding}"


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What the lines are read from; `structure` is None if the model was not run, for the reason `why`."""

    module: nn.Module
    structure: Structure | None
    why: str
    batch: int
    client: Client
    input_shape: tuple[int, ...] | None
    inputs: Tensor | None  # a sample, as the model takes it
    sends_buffers: bool | None  # None: not known

    __repr__ = short_repr

    @property
    def steps(self) -> int:
        """Return the number of local steps."""
        return 1 if self.client.local is None else self.client.local.steps(self.batch)

    @property
    def trained(self) -> dict[str, Tensor]:
        """Return the parameters that are trained and sent."""
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    def runs_once(self) -> list[tuple[Layer, nn.Module]]:
        """Return the layers that ran exactly once, with their modules, in their order."""
        layers = () if self.structure is None else self.structure.layers
        names, modules = [layer.name for layer in layers], dict(self.module.named_modules())
        return [(layer, modules[layer.name]) for layer in layers if names.count(layer.name) == 1 and layer.name in modules]


def deciders(*names: str) -> tuple[str, ...]:
    """Return those of the attacks that this installation has."""
    return tuple(name for name in names if name in ATTACKS)


def unknown(topic: Topic, why: str) -> Line:
    """Return that nothing can be said, and why."""
    return Line(topic, f"not known: {why}", Severity.UNKNOWN)


def sent_line(facts: Facts) -> Line:
    """Return how much of the model is sent, and what is done to it first."""
    sizes = [value.numel() for value in facts.module.parameters()]
    sent = [value.numel() for value in facts.trained.values()]
    part = Sent(len(sent), sum(sent), len(sizes), sum(sizes))
    defended = ", then ".join(str(defence) for defence in facts.client.defences)
    words = f"{part.words}{f'; the lines below hold before {defended}' if defended else ''}"
    severity = Severity.NEUTRAL if sent else Severity.NONE
    return Line(Topic.SENT, words if sent else "nothing: all parameters are frozen", severity, part._asdict())


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


def division_line(facts: Facts) -> Line:
    """Return which layer's weight gradient over its bias gradient gives its input."""
    if facts.structure is None:
        return unknown(Topic.DIVISION, facts.why)
    dense = dividing_layers(facts)
    if not dense:
        return Line(Topic.DIVISION, "no dense layer with a trained bias reads whole examples", Severity.NONE)
    layer, module = dense[0]
    numbers = {"layers": len(dense), "features": module.in_features, "units": module.out_features}
    shape = f"{layer.name or 'the model'} ({module.in_features} -> {module.out_features}, bias)"
    if not layer.reads_input:
        before = _before(facts, layer.name)
        words = f"{shape} gives its input features, not the input: {len(before)} other layers stand before it"
        page = f"{STATIC}#layers-that-divide"
        return Line(Topic.DIVISION, words, Severity.PARTIAL, numbers, deciders("cpa", "ig"), page)
    if facts.batch == 1:
        words, page = f"{shape} reads the input: each unit's division is the example", "explanation/exact.md#one-example-division"
        return Line(Topic.DIVISION, words, Severity.EXACT, numbers, deciders("analytic"), page)
    zeros = has_zeros(layer) is True
    words = f"{shape} reads the input: each unit's division is an example or a mixture of {facts.batch}"
    names = ("analytic",) if facts.steps > 1 else ("peeling", "spear") if zeros else ("cpa", "analytic")
    severity = Severity.EXACT if zeros else Severity.PARTIAL
    return Line(Topic.DIVISION, words, severity, numbers, deciders(*names), "explanation/exact.md#a-batch-peeling")


def _before(facts: Facts, name: str) -> list[str]:
    """Return the names of the layers with own parameters that ran before a layer."""
    modules = dict(facts.module.named_modules())
    layers = [layer.name for layer in facts.structure.layers] if facts.structure is not None else []
    return [each for each in layers[: layers.index(name)] if next(modules[each].parameters(recurse=False), None) is not None]


def has_zeros(layer: Layer) -> bool | None:
    """Return whether the activation behind a layer stops the gradient of some units; None: not known."""
    if layer.reader in ZEROS:
        return True
    return False if layer.reader is None or layer.reader in NO_ZEROS else None


def units_line(facts: Facts) -> Line:
    """Return how many examples of a batch activate a unit of the dividing layer alone."""
    if facts.structure is None:
        return unknown(Topic.UNITS, facts.why)
    dense = dividing_layers(facts)
    if not dense:
        return Line(Topic.UNITS, "no layer divides", Severity.NONE)
    layer, module = dense[0]
    units, batch, page = module.out_features, facts.batch, f"{STATIC}#units-against-batch"
    numbers: dict[str, float] = {"units": units, "batch": batch, "units_per_example": units / batch}
    zeros = has_zeros(layer)
    behind = "no activation" if layer.reader is None else f"{layer.reader.rstrip('_')}"
    if batch == 1:
        words = f"{units} units for one example: every unit with a gradient sees it alone"
        severity, names = (Severity.EXACT, "analytic") if layer.reads_input else (Severity.PARTIAL, "ig")
        return Line(Topic.UNITS, words, severity, numbers, deciders(names), page)
    if zeros is None:
        return unknown(Topic.UNITS, f"{units} units for {batch} examples, and whether {behind} leaves units at zero is not known")
    if not zeros:
        words = f"{units} units for {batch} examples; {behind} leaves no unit at zero, so every division is a mixture"
        return Line(Topic.UNITS, words, Severity.PARTIAL, numbers, deciders("cpa", "ig"), page)
    names = deciders("peeling", "spear") if facts.steps == 1 else deciders("analytic")
    share = _alone(module, facts) if layer.reads_input else None
    if share is not None:
        numbers["alone"] = share
        words = f"{units} units for {batch} examples: {share:.0%} of the sample's examples activate a unit alone ({behind})"
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


def buffers_line(facts: Facts) -> Line:
    """Return what the running statistics of batch norm tell of the batch."""
    norms = [each for each in facts.module.modules() if isinstance(each, _BatchNorm) and each.track_running_stats]
    page, topic = f"{STATIC}#batch-norm-buffers", Topic.BUFFERS
    numbers = {"layers": len(norms), "channels": sum(norm.num_features for norm in norms), "steps": facts.steps}
    if not norms:
        return Line(topic, "no batch norm keeps running statistics", Severity.NONE, numbers, (), page)
    if not any(norm.training for norm in norms):
        words = f"{len(norms)} batch norms in eval mode: their buffers do not change"
        return Line(topic, words, Severity.NONE, numbers, (), page)
    if facts.sends_buffers is False:
        return Line(topic, f"{len(norms)} batch norms in train mode; their buffers stay here", Severity.NONE, numbers, (), page)
    of = "the batch" if facts.steps == 1 else f"{facts.steps} local batches, the last weighing most"
    words = f"mean and variance of {numbers['channels']} channels over {of}, by {len(norms)} batch norms in train mode"
    if facts.sends_buffers is None:
        words = f"a client that sends its buffers, as a state_dict does, gives {words}"
    severity = Severity.UNKNOWN if facts.sends_buffers is None else Severity.PARTIAL
    return Line(topic, words, severity, numbers, deciders("gradinversion", "ig"), page)


def embeddings_line(facts: Facts) -> Line:
    """Return whether the rows of a trained embedding show the tokens."""
    page = f"{STATIC}#embedding-rows"
    tables = [
        (name, each)
        for name, each in facts.module.named_modules()
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.weight.requires_grad
    ]
    if not tables:
        return Line(Topic.EMBEDDINGS, "no embedding is trained", Severity.NONE, {"tables": 0, "rows": 0}, (), page)
    holders = [id(value) for each in facts.module.modules() for value in each.parameters(recurse=False)]
    free = [(name, each) for name, each in tables if holders.count(id(each.weight)) == 1]
    name, table = max(free or tables, key=lambda item: item[1].num_embeddings)
    numbers = {"tables": len(tables), "tied": len(tables) - len(free), "rows": table.num_embeddings}
    if not free:
        words = f"{name} is tied to another layer, which moves every row; tokens of the batch move theirs otherwise"
        return Line(Topic.EMBEDDINGS, words, Severity.PARTIAL, numbers, deciders("tokens", "dager"), page)
    words = f"of the {table.num_embeddings} rows of {name or 'the model'} only those of the client's tokens have a gradient"
    return Line(Topic.EMBEDDINGS, words, Severity.EXACT, numbers, deciders("tokens", "dager"), page)


def adapters_line(facts: Facts) -> Line:
    """Return how many tokens the low-rank updates of one input can span: r times the modules that share it, against the tokens."""
    pairs, page = find_adapters(facts.module), f"{STATIC}#adapter-budget"
    if not pairs:
        return Line(Topic.ADAPTERS, "no low-rank adapters", Severity.NONE, {"modules": 0}, (), page)
    budget, tokens = _budget(facts, pairs)
    numbers: dict[str, float] = {"modules": len(pairs), "rank": max(pair.rank for pair in pairs)}
    if tokens is None:
        return Line(Topic.ADAPTERS, f"{len(pairs)} adapters; not known how many tokens they read: {facts.why or 'they did not run alone'}",
                    Severity.UNKNOWN, numbers, (), page)  # fmt: skip
    numbers |= {"budget": budget, "tokens": tokens, "fresh": sum(pair.fresh for pair in pairs)}
    local = facts.client.local
    plain = local is None or local.optimiser == "sgd"
    words = f"rank times modules that share an input is {budget}, against {tokens} tokens in a batch"
    if all(pair.fresh for pair in pairs) and facts.steps == 1:
        words += "; the outer factors are zero, so the first gradient gives projections only"
    elif not plain:
        words += "; Adam's steps leave the span of the inputs"
    elif budget >= tokens:
        return Line(Topic.ADAPTERS, f"{words}: the span of the inputs is given whole", Severity.EXACT, numbers, deciders("lora", "dager"), page)
    return Line(Topic.ADAPTERS, words, Severity.PARTIAL, numbers, deciders("lora", "dager"), page)


def _budget(facts: Facts, pairs: list[Adapter]) -> tuple[int, int | None]:
    """Return the largest sum of ranks over adapters that read the same tensor, and the tokens in it over the batch."""
    runs = {layer.name: layer for layer, _ in facts.runs_once()}
    ranks: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for pair in pairs:
        if (layer := runs.get(pair.name)) is not None:
            ranks[layer.source] = ranks.get(layer.source, 0) + pair.rank
            tokens[layer.source] = facts.batch * math.prod(layer.entering[1:-1])
    if not ranks:
        return 0, None
    best = max(ranks, key=lambda source: ranks[source] / tokens[source])
    return ranks[best], tokens[best]


def labels_line(facts: Facts) -> Line:
    """Return whether the last layer's update shows the labels, under cross entropy."""
    if facts.structure is None:
        return unknown(Topic.LABELS, facts.why)
    head, page = facts.structure.head, "explanation/labels.md"
    if head is None:
        return Line(Topic.LABELS, "the model does not end in a trained dense layer", Severity.NONE, {}, (), page)
    if facts.client.on_model is not None:
        return Line(Topic.LABELS, "the client keeps a private head beside the last layer", Severity.PARTIAL, {}, ("counts",), page)
    if head.bias is None and not head.nonnegative:
        words = "the last layer has no bias and its features may be negative"
        return Line(Topic.LABELS, words, Severity.NONE, {}, (), page)
    classes = facts.trained[head.weight].shape[0]
    numbers = {"classes": classes, "batch": facts.batch}
    if facts.batch == 1:
        words = f"the last layer's gradient gives the label, one of {classes}, under cross entropy"
        return Line(Topic.LABELS, words, Severity.EXACT, numbers, ("idlg", "cpl"), page)
    words = f"the last layer's gradient gives how often each of {classes} labels occurs, with errors, under cross entropy"
    return Line(Topic.LABELS, words, Severity.PARTIAL, numbers, ("counts",), page)


def collisions_line(facts: Facts) -> Line:
    """Return the numbers that are sent over those that are private: below 1 different batches share one gradient (Du et al., Thm 4.3)."""
    page = f"{STATIC}#parameters-against-inputs"
    if facts.input_shape is None:
        return unknown(Topic.COLLISIONS, "the shape of an input is not given")
    sent = sum(value.numel() for value in facts.trained.values())
    private = facts.batch * math.prod(facts.input_shape)
    numbers = {"sent": sent, "private": private, "ratio": sent / private}
    words = f"{sent:,} numbers are sent for {private:,} private ones ({numbers['ratio']:.3g})"
    if sent < private:
        words += ": different batches have the same gradient"
    severity = Severity.NONE if sent < private else Severity.NEUTRAL
    return Line(Topic.COLLISIONS, words, severity, numbers, deciders("ig"), page)


def layer_ranks(facts: Facts) -> tuple[LayerRank, ...]:
    """Return the rank analysis of every dense and convolutional layer that ran once and pads with zeros, if at all."""
    return tuple(
        layer_rank(layer.name, module, layer.entering, layer.leaving, facts.batch)
        for layer, module in facts.runs_once()
        if isinstance(module, nn.Linear)
        or (isinstance(module, Convolution) and module.padding_mode == "zeros" and len(layer.entering) == module.weight.ndim)
    )


def ranks_line(facts: Facts, ranks: tuple[LayerRank, ...]) -> Line:
    """Return how many layers fix their input by linear equations, and the one that leaves most open."""
    page = f"{STATIC}#rank-analysis"
    if not ranks:
        return unknown(Topic.RANKS, facts.why or "no dense or convolutional layer ran alone")
    sources = {layer.name: layer.source for layer, _ in facts.runs_once()}
    best: dict[int, LayerRank] = {}  # of layers that read one tensor, such as the branches of a residual block
    for rank in sorted(ranks, key=lambda each: each.left, reverse=True):
        best[sources[rank.name]] = rank
    fixed = sum(rank.left == 0 for rank in best.values())
    worst = max(best.values(), key=lambda rank: rank.left / rank.unknowns)
    numbers = {"inputs": len(best), "fixed": fixed, "unknowns": worst.unknowns, "rank": worst.rank}
    words = f"{fixed} of {len(best)} layer inputs have as many linear equations as unknowns"
    if worst.left:
        words += f"; that of {worst.name or 'the model'} has at least {worst.left:,} of {worst.unknowns:,} open"
    severity = Severity.PARTIAL if fixed == len(best) else Severity.NEUTRAL
    return Line(Topic.RANKS, words, severity, numbers, deciders("linear_system", "ig"), page)
