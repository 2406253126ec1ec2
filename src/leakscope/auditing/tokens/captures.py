"""Audits of captured updates of token networks; the rounds of one client count once, with the sentences that most of them gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.auditing.attack_runs import INTERRUPTED
from leakscope.auditing.capture_reader import BEST_ROUND, ask_truth, choose, list_one, local_training, observe_captures
from leakscope.auditing.criterion import captured_loss
from leakscope.auditing.limits import Budget
from leakscope.auditing.result import Audit
from leakscope.auditing.static.inspection import inspect_target
from leakscope.auditing.suite import Untested
from leakscope.auditing.target import Target, Truth, make_client
from leakscope.auditing.tokens.audit import ClientReadings, read_clients, score_clients, token_model, token_module
from leakscope.auditing.tokens.network import check_tokens
from leakscope.auditing.tokens.verdict import NOT_RUN, SEARCH
from leakscope.auditing.verdict import Grade
from leakscope.clients import attacker_knowledge, knowledge_of_defences
from leakscope.core.model import Model
from leakscope.core.progress import Reporter
from leakscope.core.scaling import Scaling
from leakscope.core.types import Batch, Shares
from leakscope.play import Exposure, is_defended
from leakscope.play.text_leak import Reading
from leakscope.store.captures import list_captures

POOLED = "several rounds of one client are read as one: the sentences that most of them gave, and every token of a proved bag"
SHOWN = 8  # sentences of a client without the truth
LAST_CUT = "the time ended the last reading"
TOO_FEW = "{read} of {captures} captures were read"


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Captured updates as an exposure, whether their sentences are known, and the number of each capture's client."""

    exposure: Exposure
    scored: bool
    owners: tuple[int, ...]


def audit_token_captures(
    directory: Path, target: Target, budget: Budget, report: Reporter, *, minutes: float, clients: int, seed: int
) -> Audit:
    """Return the audit of captured updates of a token network."""
    notes, untested = list[str](), list[Untested]()
    module, table, inputs = token_module(target, notes)
    gathered = _gather(directory, target, token_model(module, inputs), clients, seed, notes, untested)
    if gathered.scored:
        check_tokens(gathered.exposure.batch.inputs, table.vocabulary, "the true tokens")
    exposure, owners, samples = gathered.exposure, gathered.owners, gathered.exposure.batch.samples
    readings, interrupted, cut, _ = read_clients(exposure, module, table, budget, report)
    fewer = "" if len(readings) == exposure.trials else TOO_FEW.format(read=len(readings), captures=exposure.trials)
    if not readings:
        raise KeyboardInterrupt
    rounds = [
        [reading for reading, other in zip(readings, owners, strict=False) if other == owner]
        for owner in range(max(owners[: len(readings)]) + 1)
    ]
    pooled = [pool_rounds(each, samples) for each in rounds]
    first = exposure.select(torch.tensor([owners.index(owner) for owner in range(max(owners) + 1)]))
    scored = gathered.scored
    audit = (
        score_clients(target, table, first, ClientReadings(pooled, interrupted, cut, fewer), inputs, budget, report)
        if scored
        else _unscored(pooled, target.words, budget, interrupted=interrupted, cut=cut, fewer=fewer)
    )
    return replace(
        audit,
        name=f"{type(target.model).__name__}, captured",
        minutes=minutes,
        seed=seed,
        untested=(*audit.untested, *untested),
        notes=(*audit.notes, *notes),
        static=inspect_target(target, samples, exposure),
    )


def _gather(
    directory: Path,
    target: Target,
    model: Model,
    clients: int,
    seed: int,
    notes: list[str],
    untested: list[Untested],
) -> Gathered:
    """Return the captures to attack, checked against the model."""
    loss = captured_loss(target.loss, model, notes)
    client = make_client(target, Scaling(), loss)
    listed = [list_one(path, model, configured=client.local is not None) for path in list_captures(directory)]
    target = replace(target, loss=str(loss), truth=_as_numbers(target.truth))
    said = [f"{len(listed)} captures in {directory}"]
    chosen = choose(listed, model, target, clients, said, untested)
    notes += [POOLED if BEST_ROUND in note else note for note in said]
    truth = ask_truth(chosen.captures, target, model, chosen.samples, notes)
    client = replace(client, local=client.local or local_training(chosen, model, target, notes, untested)[0])
    observation = observe_captures(chosen.captures, model, chosen.samples, Shares(chosen.captures[0].shares))
    trials, classes = len(chosen.captures), isinstance(loss, str)
    batch = _batch(truth, trials, chosen.samples, model.input_shape[0], classes=classes)
    known = attacker_knowledge(model, client, batch)
    informed = knowledge_of_defences(known, client, observation) if is_defended(client) else None
    seeds = tuple(seed * 100_000 + t for t in range(trials))
    exposure = Exposure(model, client, batch, seeds, observation, known, informed)
    return Gathered(exposure, truth is not None, chosen.owners)


def pool_rounds(readings: Sequence[Reading], sentences: int) -> Reading:
    """Return one reading of several rounds of a client: the sentences that most rounds gave, and every token of a proved bag."""
    votes = Counter(sentence for reading, _ in readings for sentence in reading.sentences)
    most = tuple(sentence for sentence, _ in votes.most_common(sentences))
    best: SpanReading = max((reading for reading, _ in readings), key=lambda each: (len(each.sentences), each.rank))
    if any(reading.end is SpanEnd.CUT for reading, _ in readings):
        best = replace(best, end=SpanEnd.CUT)
    bags = [bag for _, bag in readings if bag is not None]
    proved = [bag for bag in bags if bag.exact]
    bag = Bag(torch.cat([each.tokens for each in proved]).unique(), exact=True) if proved else next(iter(bags), None)
    return (best if len(readings) == 1 else replace(best, sentences=most)), bag


def _as_numbers(truth: Truth | None) -> Truth | None:
    """Return the function that gives the truth, with tokens as floating numbers."""
    if truth is None:
        return None
    ask: Callable[[int], tuple[Tensor, Tensor]] = truth

    def numbers(partition: int) -> tuple[Tensor, Tensor]:
        tokens, labels = ask(partition)
        return torch.as_tensor(tokens).float(), labels

    return numbers


def _batch(truth: tuple[Tensor, Tensor] | None, trials: int, samples: int, length: int, *, classes: bool) -> Batch:
    """Return the true sentences, or zeros that nothing reads."""
    none = torch.zeros(trials, samples, dtype=torch.int64)
    tokens, labels = (torch.zeros(trials, samples, length), none) if truth is None else truth
    mask = torch.ones_like(none, dtype=torch.bool)
    return Batch(tokens, labels, mask) if classes else Batch(tokens, none, mask, labels)


def _unscored(
    readings: Sequence[Reading],
    words: Sequence[str] | None,
    budget: Budget,
    *,
    interrupted: bool,
    cut: bool,
    fewer: str,
) -> Audit:
    """Return the audit of captures whose sentences are not known: what came back, a line a client."""
    lines = []
    for client, (reading, bag) in enumerate(readings):
        spelled = [" ".join(str(t) if words is None else words[t] for t in each) for each in reading.sentences[:SHOWN]]
        tokens = "the embedding is not sent" if bag is None else f"{len(bag.tokens)} tokens in the bag"
        lines.append(f"client {client}: {reading.end.value}; {tokens}; {' / '.join(spelled) or 'no sentence'}")
    return Audit(
        name="",
        grade=Grade.UNSCORED,
        minutes=0.0,
        seconds=budget.used,
        seed=0,
        untested=(NOT_RUN,),
        unfinished=(
            SEARCH,
            *([LAST_CUT] if cut else []),
            *([fewer] if fewer else []),
            *([INTERRUPTED] if interrupted else []),
        ),
        interrupted=interrupted,
        notes=tuple(lines),
    )
