"""The static line on low-rank adapters of a network (LoRA, Hu et al. 2021, arXiv:2106.09685), found by their shapes.

An adapter is a module with one frozen matrix, o x d, and two trained ones, r x d and o x r with r below both. The gradient of the
inner factor A of y = W x + s B A x is s B^T (dL/dy) x^T: its rows lie in the span of the inputs x, at most r of them a module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

from leakscope.auditing.static.facts import STATIC, Facts, Line, Severity, Topic, deciders

MOST_TENSORS = 6  # of an adapter with biases


@dataclass(frozen=True, slots=True)
class Adapter:
    """The module of an adapter, its rank, and whether its outer factor is still zero, as at the start of training."""

    name: str
    rank: int
    fresh: bool


def find_adapters(module: nn.Module) -> list[Adapter]:
    """Return the adapters of a network in its order."""
    adapters: dict[int, Adapter] = {}
    for name, part in module.named_modules():
        tensors = list(islice(part.parameters(), MOST_TENSORS + 1))
        if len(tensors) <= MOST_TENSORS and (pair := _pair(tensors)) is not None:
            inner, outer = pair
            if id(inner) not in adapters:  # the outermost module that holds one pair reads its input
                adapters[id(inner)] = Adapter(
                    name, inner.shape[0], outer.device.type != "meta" and not bool(outer.any())
                )
    return list(adapters.values())


def _pair(tensors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the inner and the outer factor beside a frozen matrix of their product's shape."""
    matrices = [value for value in tensors if value.ndim == 2]
    trained = [value for value in matrices if value.requires_grad]
    frozen = [{*value.shape} for value in matrices if not value.requires_grad]
    if len(trained) != 2 or len(frozen) != 1:
        return None
    for inner, outer in (trained, trained[::-1]):
        (rank, width), (height, other) = inner.shape, outer.shape
        if rank == other and rank < min(width, height) and frozen[0] == {width, height}:
            return inner, outer
    return None


def adapters_line(facts: Facts) -> Line:
    """Return how many tokens the low-rank updates of one input can span: r times the modules that share it, against the tokens."""
    pairs, page = find_adapters(facts.module), f"{STATIC}#adapter-budget"
    if not pairs:
        return Line(Topic.ADAPTERS, "no low-rank adapters", Severity.NONE, {"modules": 0}, (), page)
    budget, tokens = _budget(facts, pairs)
    numbers: dict[str, float] = {"modules": len(pairs), "rank": max(pair.rank for pair in pairs)}
    if tokens is None:
        words = f"{len(pairs)} adapters; not known how many tokens they read: {facts.why or 'they did not run alone'}"
        return Line(Topic.ADAPTERS, words, Severity.UNKNOWN, numbers, (), page)
    numbers |= {"budget": budget, "tokens": tokens, "fresh": sum(pair.fresh for pair in pairs)}
    local, severity = facts.client.local, Severity.PARTIAL
    plain = local is None or local.optimiser == "sgd"
    words = f"rank times modules that share an input is {budget}, against {tokens} tokens in a batch"
    if all(pair.fresh for pair in pairs) and facts.steps == 1:
        words += "; the outer factors are zero, so the first gradient gives projections only"
    elif not plain:
        words += "; Adam's steps leave the span of the inputs"
    elif budget >= tokens:
        words += ": the span of the inputs is given whole"
        severity = Severity.EXACT
    return Line(Topic.ADAPTERS, words, severity, numbers, deciders("lora", "dager"), page)


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
