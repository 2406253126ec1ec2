"""The static line on token networks: the tokens of an update against the width of the layers that read them, and dropout."""

from __future__ import annotations

from torch import nn

from leakscope.attacks.exact.span_test import ROOM
from leakscope.auditing.static.facts import Facts, Line, Severity, Topic
from leakscope.core.token_layers import EMBEDDINGS

SOLVED = 0.2  # dropout whose masks are solved for while the tokens fill half of the width (benchmarks/text.py)
PAGE = "explanation/text.md#span-test"


def tokens_line(facts: Facts) -> Line:
    """Return whether the tokens of an update leave room in the span of the layers that read them."""
    tables = [each for each in facts.module.modules() if isinstance(each, EMBEDDINGS)]
    if not tables:
        return Line(Topic.TOKENS, "no embedding reads tokens", Severity.NONE, {}, (), PAGE)
    width = max(tables, key=lambda each: each.num_embeddings).embedding_dim
    if facts.input_shape is None or len(facts.input_shape) != 1:
        return Line(Topic.TOKENS, "not known: the length of a sentence is not given", Severity.UNKNOWN, {}, (), PAGE)
    tokens = facts.batch * facts.input_shape[0]
    dropped = [each.p for each in facts.module.modules() if isinstance(each, nn.Dropout) and each.training and each.p]
    numbers = {"tokens": tokens, "width": width, "dropout": max(dropped, default=0.0)}
    words, severity = f"{tokens} tokens in an update against {width} dimensions", Severity.NEUTRAL
    local = facts.client.local
    if dropped:
        words += f"; dropout of {max(dropped):g} hides their span until its masks are solved for"
        severity = Severity.EXACT if 2 * (tokens + ROOM) <= width and max(dropped) <= SOLVED else severity
    elif local is not None and local.optimiser != "sgd":
        words += "; Adam's steps leave their span"
    elif tokens + ROOM > width:
        words += ": they may span all of them"
    else:
        words += ": wrong tokens lie outside of their span"
        severity = Severity.EXACT
    return Line(Topic.TOKENS, words, severity, numbers, (), PAGE)
