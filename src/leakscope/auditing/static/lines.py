"""Static lines on what is sent, batch norm, embeddings, labels, and equations against unknowns."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakscope.analysis.ranks import Convolution, LayerRank, layer_rank
from leakscope.auditing.descriptions import Sent
from leakscope.auditing.static.facts import STATIC, Facts, Line, Severity, Topic, called, deciders, unknown
from leakscope.core.token_layers import EMBEDDINGS


def sent_line(facts: Facts) -> Line:
    """Return how much of the model is sent, and what is done to it first."""
    sizes = [value.numel() for value in facts.module.parameters()]
    sent = [value.numel() for value in facts.trained.values()]
    part = Sent(len(sent), sum(sent), len(sizes), sum(sizes))
    defended = ", then ".join(str(defence) for defence in facts.client.defences)
    words = f"{part.words}{f'; the lines below hold before {defended}' if defended else ''}"
    severity = Severity.NEUTRAL if sent else Severity.NONE
    return Line(Topic.SENT, words if sent else "nothing: all parameters are frozen", severity, part._asdict())


def buffers_line(facts: Facts) -> Line:
    """Return what the running statistics of batch norm show of the batch."""
    norms = [each for each in facts.module.modules() if isinstance(each, _BatchNorm) and each.track_running_stats]
    page, topic = f"{STATIC}#batch-norm-buffers", Topic.BUFFERS
    numbers = {"layers": len(norms), "channels": sum(norm.num_features for norm in norms), "steps": facts.steps}
    if not norms:
        return Line(topic, "no batch norm keeps running statistics", Severity.NONE, numbers, (), page)
    trains = any(norm.training for norm in norms) if facts.client.norm is None else facts.client.norm == "train"
    if not trains:
        words = f"{len(norms)} batch norms in eval mode: their buffers do not change"
        return Line(topic, words, Severity.NONE, numbers, (), page)
    if facts.sends_buffers is False:
        return Line(
            topic,
            f"{len(norms)} batch norms in train mode; clients keep their buffers",
            Severity.NONE,
            numbers,
            (),
            page,
        )
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
        if isinstance(each, EMBEDDINGS) and each.weight.requires_grad
    ]
    if not tables:
        return Line(Topic.EMBEDDINGS, "no embedding is trained", Severity.NONE, {"tables": 0, "rows": 0}, (), page)
    holders = [id(value) for each in facts.module.modules() for value in each.parameters(recurse=False)]
    free = [(name, each) for name, each in tables if holders.count(id(each.weight)) == 1]
    name, table = max(free or tables, key=lambda item: item[1].num_embeddings)
    numbers = {"tables": len(tables), "tied": len(tables) - len(free), "rows": table.num_embeddings}
    if not free:
        words = (
            f"{called(name)} is tied to another layer, which moves every row; tokens of the batch move theirs otherwise"
        )
        return Line(Topic.EMBEDDINGS, words, Severity.PARTIAL, numbers, deciders("tokens", "dager"), page)
    some = f"of the {table.num_embeddings} rows of {called(name)} only those"
    if facts.inputs is not None and facts.inputs.is_floating_point():  # an image or a table
        words = f"{some} that the client's examples look up have a gradient; no attack on images or tables reads them"
        return Line(Topic.EMBEDDINGS, words, Severity.PARTIAL, numbers, (), page)
    words = f"{some} of the client's tokens have a gradient"
    return Line(Topic.EMBEDDINGS, words, Severity.EXACT, numbers, deciders("tokens", "dager"), page)


def labels_line(facts: Facts) -> Line:
    """Return whether the last layer's update shows the labels, under cross entropy."""
    if facts.structure is None:
        return unknown(Topic.LABELS, facts.why)
    head, page = facts.structure.head, "explanation/labels.md"
    if head is None:
        return Line(Topic.LABELS, "the model does not end in a trained dense layer", Severity.NONE, {}, (), page)
    if facts.client.on_model is not None:
        return Line(
            Topic.LABELS,
            "the client keeps a private head beside the last layer",
            Severity.PARTIAL,
            {},
            ("counts",),
            page,
        )
    if head.bias is None and not head.nonnegative:
        words = "the last layer has no bias and its features may be negative"
        return Line(Topic.LABELS, words, Severity.NONE, {}, (), page)
    classes = facts.trained[head.weight].shape[0]
    numbers = {"classes": classes, "batch": facts.batch}
    if facts.batch == 1:
        words = f"the last layer's gradient gives the label, one of {classes}, under cross entropy"
        return Line(Topic.LABELS, words, Severity.EXACT, numbers, ("idlg", "cpl"), page)
    words = (
        f"the last layer's gradient gives how often each of {classes} labels occurs, with errors, under cross entropy"
    )
    return Line(Topic.LABELS, words, Severity.PARTIAL, numbers, ("by_residual",), page)


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
        or (
            isinstance(module, Convolution)
            and module.padding_mode == "zeros"
            and len(layer.entering) == module.weight.ndim
        )
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
        words += f"; that of {called(worst.name)} has at least {worst.left:,} of {worst.unknowns:,} open"
    severity = Severity.PARTIAL if fixed == len(best) else Severity.NEUTRAL
    return Line(Topic.RANKS, words, severity, numbers, deciders("cpl", "ig"), page)
