"""Audits of models over token numbers: the bag of words and the span test on simulated clients, beside the most frequent tokens.

A sentence counts as recovered if all its tokens came back in order, up to a last one that a causal language model gives no gradient.
If none came back, sentences closer than the sample's most frequent tokens are grade C, and so is a bag of words that holds more of the
client's tokens than as many frequent ones. No attack here searches over tokens, so no good grade is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import Bag, bag_of_gradient, bag_of_weights
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading, span_test
from leakscope.auditing.criterion import compare
from leakscope.auditing.limits import Budget, whole_number
from leakscope.auditing.result import Audit
from leakscope.auditing.suite import Untested
from leakscope.auditing.target import Target, UntestedError, make_client, plain_module
from leakscope.auditing.verdict import HALF, TWENTIETH, Grade, Measures
from leakscope.core import random
from leakscope.core.errors import InputError, first_line
from leakscope.core.progress import Reporter
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take
from leakscope.core.types import Batch, Observation, Round, Shares
from leakscope.models import from_module, padding_of, token_model
from leakscope.play.exposure import shared_weights
from leakscope.play.text_leak import TextLeak, score_readings

SEARCH = "attacks that search over tokens (TAG, LAMP)"
KINDS = (torch.int64, torch.int32, torch.int16)


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """The embedding that reads the tokens: its weight's name, its rows, and whether another layer uses it too."""

    weight: str
    vocabulary: int
    tied: bool


def holds_tokens(target: Target) -> bool:
    """Return whether a target is a network with an embedding on M x T whole numbers."""
    inputs, model = target.inputs, target.model
    tokens = isinstance(inputs, Tensor) and inputs.dtype in KINDS and inputs.ndim == 2 and len(inputs) > 0
    return tokens and isinstance(model, nn.Module) and any(isinstance(each, nn.Embedding) for each in model.modules())


def audit_tokens(
    target: Target, budget: Budget, report: Reporter, *, minutes: float, clients: int, seed: int, remedies: bool
) -> Audit:
    """Return the audit of a token network on its sample of sentences, on the CPU."""
    if target.inputs is None or target.labels is None:
        raise InputError("audit needs inputs and labels: a sample of your own data")
    name, notes = type(target.model).__name__, list[str]()
    module = token_model(plain_module(target.model, notes))
    inputs = target.inputs.detach().cpu().long()
    table = _find_table(module, inputs)
    numbers = inputs.float()
    try:
        model = from_module(module, input_shape=tuple(inputs.shape[1:]), example=numbers[:2], any_output=True)
    except InputError as error:
        raise UntestedError(str(error)) from None
    examples = whole_number(target.examples, "examples", 1, len(inputs))
    compared = compare(target.loss, target.labels, model, numbers, notes, padded=False)
    client = make_client(target, Scaling(), compared.loss)
    if client.on_data is not None or client.on_model is not None:
        raise UntestedError("defences on the data and on the model are of images; audit this model without them")
    behind = examples * whole_number(client.aggregate, "aggregate", 1, len(inputs) // examples)
    trials = max(1, min(clients, len(inputs) // behind))
    order = random.permutation(random.fold(random.key(seed), "audit"), len(inputs))
    chosen = order[: trials * behind].reshape(trials, behind)
    targets = None if compared.targets is None else compared.targets[chosen]
    batch = Batch(numbers[chosen], compared.labels[chosen], torch.ones(chosen.shape, dtype=torch.bool), targets)
    seen = client.observe(model, shared_weights(model, trials), batch, [seed * 100_000 + t for t in range(trials)])
    several = client.local is not None and client.local.steps(examples) > 1
    readings: list[tuple[SpanReading, Bag | None]] = []
    while len(readings) < trials and (not readings or budget.left > 0):
        report(name, f"span test and bag of words, client {len(readings) + 1} of {trials}")
        observed = take(seen, len(readings))
        readings.append(_read(module, table, observed, inputs.shape[1], behind if several else None))
    leak = score_readings(inputs[chosen[: len(readings)]], readings, inputs, padding_of(module))
    unread = (f"{len(readings)} of {trials} clients were read",) if len(readings) < trials else ()
    return Audit(
        name=name, grade=grade_text(leak), measures=Measures(asr=leak.sentences), minutes=minutes, seconds=budget.used, seed=seed,
        untested=_untested(leak, defended=bool(client.defences), remedies=remedies), notes=(*leak.lines, *notes),
        unfinished=(SEARCH, *unread), text=leak,
    )  # fmt: skip


def _untested(leak: TextLeak, *, defended: bool, remedies: bool) -> tuple[Untested, ...]:
    """Return what is not built for token networks."""
    known = Untested("attackers who know the defences", "the span test was run without that knowledge")
    tried = Untested("remedies", "none is tried on token networks yet")
    order = Untested(
        "order of the tokens", "the span test needs a trained dense layer on single tokens, recurrent ones have none"
    )
    unread = [order] if SpanEnd.NO_LAYER in leak.ends else []
    return (Untested(SEARCH, "not built yet"), *unread, *([known] if defended else []), *([tried] if remedies else []))


def _find_table(module: nn.Module, inputs: Tensor) -> _Tokens:
    """Return the embedding that reads the tokens, or raise."""
    tables = {name: each for name, each in module.named_modules() if isinstance(each, nn.Embedding)}
    read: list[str] = []
    hooks = [
        table.register_forward_pre_hook(
            lambda _, args, name=name: read.append(name) if torch.equal(args[0], inputs[:2]) else None
        )
        for name, table in tables.items()
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout draws
            module(inputs[:2])
    except (IndexError, RuntimeError) as problem:
        raise InputError(f"the model cannot run on these tokens: {first_line(problem)}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not read:
        raise UntestedError("no embedding of the model reads the token numbers themselves")
    table = tables[read[0]]
    low, high = int(inputs.min()), int(inputs.max())
    if low < 0 or high >= table.num_embeddings:
        raise InputError(f"tokens must lie in 0..{table.num_embeddings - 1}, the embedding's rows, got {low}..{high}")
    uses = sum(value is table.weight for _, value in module.named_parameters(remove_duplicate=False))
    return _Tokens(f"{read[0]}.weight", table.num_embeddings, uses > 1)


def _read(
    module: nn.Module, table: _Tokens, seen: Observation, length: int, closest: int | None
) -> tuple[SpanReading, Bag | None]:
    """Return what both attacks read off the first round of one client."""
    first: Round = seen.rounds[0]
    reading = span_test(module, first, seen.shares, vocabulary=table.vocabulary, length=length, closest=closest)
    rows = first.sent.get(table.weight)
    if rows is None:
        return reading, None
    if seen.shares is Shares.GRADIENT:
        return reading, bag_of_gradient(rows, tied=table.tied)
    return reading, bag_of_weights(first.before[table.weight], rows, tied=table.tied)


def grade_text(leak: TextLeak) -> Grade:
    """Return the grade; without recovered content it is inconclusive, since not every kind of attack exists."""
    share = leak.sentences.value
    if share >= TWENTIETH:
        return Grade.F if share >= HALF else Grade.D
    more = leak.rouge1.low > leak.null_rouge1 or (leak.bag is not None and leak.bag.value > leak.null_bag)
    return Grade.C if share > 0 or more else Grade.INCONCLUSIVE
