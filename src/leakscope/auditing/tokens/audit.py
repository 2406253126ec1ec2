"""Audits of networks over token numbers on simulated clients: the bag of words, the span test and the labels, beside null baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leakscope.attacks.exact.span_test import SpanEnd
from leakscope.auditing.attack_runs import INTERRUPTED, LabelReading, check_updates, read_labels
from leakscope.auditing.criterion import compare
from leakscope.auditing.limits import Budget, Pace, whole_number
from leakscope.auditing.result import Audit
from leakscope.auditing.suite import Untested
from leakscope.auditing.target import Target, UntestedError, make_client, plain_module
from leakscope.auditing.tokens.dishonest import play_on_tokens
from leakscope.auditing.tokens.network import TokenTable, find_table, from_numbers, read_update
from leakscope.auditing.tokens.remedies import TextRemedy, left_to_read, try_remedies
from leakscope.auditing.tokens.search import Searched, search_tokens
from leakscope.auditing.tokens.verdict import SEARCH, grade_text
from leakscope.auditing.verdict import HALF, LEAKING, Grade, Measures
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.progress import Reporter
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take
from leakscope.core.types import Batch
from leakscope.models import from_module, is_transformer
from leakscope.models import token_model as as_token_module
from leakscope.play import Exposure, expose, shared_weights
from leakscope.play.text_baselines import LEAST_PUBLIC, without_padding
from leakscope.play.text_leak import SPAN_TEST, Reading, TextLeak, score_readings

NO_ORDER = Untested(
    "order of the tokens",
    "the span test found no trained matrix that multiplies single tokens; it reads no recurrent layers",
)
UNREAD = "the span test cannot read this network"
NO_PUBLIC = Untested(
    "null baselines of public sentences", f"the sample has fewer than {LEAST_PUBLIC} that no client holds"
)


class ClientReadings(NamedTuple):
    """What was read off each client's update, of as many clients as there was time for; Ctrl-C keeps those that were read."""

    readings: list[Reading]
    interrupted: bool
    cut: bool = False  # whether the time ended the last reading
    fewer: str = ""  # in words, if updates of the clients that were read are left


def audit_tokens(
    target: Target, budget: Budget, report: Reporter, *, minutes: float, clients: int, seed: int, remedies: bool,
    dishonest: bool = False,
) -> Audit:  # fmt: skip
    """Return the audit of a token network on its sample of sentences, on the CPU; a `dishonest` server also manipulates it."""

    def played(target: Target, searching: Reporter | None) -> tuple[Audit, TokenTable]:
        notes: list[str] = []
        module, table, inputs = token_module(target, notes)
        exposure, public = _expose(target, module, inputs, clients, seed, notes)
        readings = read_clients(exposure, module, table, budget, report)
        audit = score_clients(target, table, exposure, readings, public, budget, searching)
        server = play_on_tokens(exposure, public) if dishonest and target is asked else None
        return replace(audit, minutes=minutes, seed=seed, notes=(*notes, *audit.notes), dishonest=server), table

    def read(changed: Target) -> tuple[TextLeak, Grade]:
        audit, _ = played(changed, None)
        if audit.text is None or audit.interrupted:
            raise KeyboardInterrupt
        return audit.text, audit.grade

    asked = target
    audit, table = played(target, report)
    if not remedies or audit.interrupted or audit.grade not in LEAKING or audit.exposure is None:
        return audit
    tried = list[TextRemedy]()
    try:
        for remedy in try_remedies(target, table, audit.exposure, budget, report, read):
            tried.append(remedy)
    except KeyboardInterrupt:  # remedies that were tried are kept
        audit = replace(audit, interrupted=True, unfinished=(*audit.unfinished, INTERRUPTED))
    return replace(audit, text_remedies=tuple(sorted(tried, key=left_to_read)), seconds=budget.used)


def token_module(target: Target, notes: list[str]) -> tuple[nn.Module, TokenTable, Tensor]:
    """Return the network behind floating numbers, the embedding that reads its tokens, and the sample."""
    if target.inputs is None:
        raise InputError("audit of a token network needs inputs: a sample of sentences")
    plain = plain_module(target.model, notes)
    module = as_token_module(plain) if is_transformer(plain) else from_numbers(plain)
    inputs = target.inputs.detach().cpu().long()
    return module, find_table(module, inputs, target.words), inputs


def token_model(module: nn.Module, inputs: Tensor) -> Model:
    """Return the network as a pure function of tokens in floating numbers."""
    try:
        return from_module(module, input_shape=tuple(inputs.shape[1:]), example=inputs[:2].float(), any_output=True)
    except InputError as error:
        raise UntestedError(str(error)) from None


def _expose(
    target: Target, module: nn.Module, inputs: Tensor, clients: int, seed: int, notes: list[str]
) -> tuple[Exposure, Tensor]:
    """Return the simulated clients and the sentences that none of them holds."""
    if target.labels is None:
        raise InputError("audit needs inputs and labels: a sample of your own data")
    numbers, model = inputs.float(), token_model(module, inputs)
    examples = whole_number(target.examples, "examples", 1, len(inputs))
    compared = compare(target.loss, target.labels, model, numbers, notes, padded=False)
    client = make_client(target, Scaling(), compared.loss)
    if client.on_data is not None or client.on_model is not None:
        raise UntestedError("defences on the data and on the model apply to images; audit this model without them")
    if client.aggregation.dropouts or client.aggregation.skew > 1:
        raise UntestedError(
            "clients of tokens that drop out or differ in size are not simulated; sum those that answer"
        )
    behind = examples * whole_number(client.aggregation.clients, "aggregate", 1, len(inputs) // examples)
    trials = max(1, min(clients, len(inputs) // behind))
    order = random.permutation(random.fold(random.key(seed), "audit"), len(inputs))
    chosen = order[: trials * behind].reshape(trials, behind)
    targets = None if compared.targets is None else compared.targets[chosen]
    batch = Batch(numbers[chosen], compared.labels[chosen], torch.ones(chosen.shape, dtype=torch.bool), targets)
    seeds = [seed * 100_000 + t for t in range(trials)]
    exposure = expose(model, client, shared_weights(model, trials), batch, seeds)
    check_updates(exposure)
    return exposure, inputs[order[trials * behind :]]


def score_clients(
    target: Target,
    table: TokenTable,
    exposure: Exposure,
    done: ClientReadings,
    public: Tensor,
    budget: Budget,
    searching: Reporter | None,
) -> Audit:
    """Return the audit of clients whose sentences are known; `public` are sentences that no client holds.

    With `searching`, TAG and LAMP run where the exact attacks recovered less than half. The attack that recovered most gives the grade.
    """
    readings, interrupted, cut, fewer = done
    unread = f"{len(readings) - cut} of {exposure.trials} clients were read"
    audit = Audit(
        name=type(target.model).__name__,
        grade=Grade.INCONCLUSIVE,
        minutes=0.0,
        seconds=budget.used,
        seed=0,
        unfinished=(SEARCH, unread, *([INTERRUPTED] if interrupted else [])),
        interrupted=interrupted,
        exposure=exposure,
    )
    if not readings:
        return audit
    truth = exposure.batch.inputs.long()
    sample = torch.cat([public, truth.flatten(0, 1)])
    seen, seed = truth[: len(readings)], exposure.seeds[0]

    def score(attack: str, several: Sequence[Reading]) -> TextLeak:
        return score_readings(
            seen, several, sample, public, words=target.words, seed=seed, padding=table.padding, attack=attack
        )

    def score_search(attack: str, tokens: Tensor) -> TextLeak:
        return score(attack, with_sentences(readings, tokens, table.padding))

    leak, searched = score(SPAN_TEST, readings), Searched(unfinished=(SEARCH,))
    if leak.sentences.value < HALF and searching is not None and not interrupted:
        searched = search_tokens(exposure, budget, searching, score_search, table.padding)
        interrupted = searched.interrupted
        leak = max((leak, *searched.leaks), key=lambda each: (each.sentences.value, each.rouge1.value))
    labels = Untested("label recovery", INTERRUPTED) if interrupted else _labels(exposure, budget)
    read = labels if isinstance(labels, LabelReading) else None
    unfinished = (
        *searched.unfinished,
        *([UNREAD] if {SpanEnd.NO_LAYER, SpanEnd.CANNOT_RUN} & set(leak.ends) else []),
        *([unread] if cut or len(readings) < exposure.trials else []),
        *([fewer] if fewer else []),
        *([INTERRUPTED] if interrupted else []),
    )
    untested = (
        *searched.untested,
        *([NO_ORDER] if SpanEnd.NO_LAYER in leak.ends else []),
        *([] if isinstance(labels, LabelReading) else [labels]),
        *([NO_PUBLIC] if len(public) < LEAST_PUBLIC else []),
    )
    return replace(
        audit,
        grade=grade_text(leak, read, unfinished=unfinished),
        measures=Measures(asr=leak.sentences, labels=None if read is None else read.share),
        labels=read,
        seconds=budget.used,
        untested=untested,
        unfinished=unfinished,
        interrupted=interrupted,
        notes=searched.lines,
        text=leak,
    )


def with_sentences(readings: Sequence[Reading], tokens: Tensor, padding: int | None = None) -> list[Reading]:
    """Return the readings with the sentences of a search (T x N x L), without padding, in place of those read."""
    searched = [[tuple(without_padding(each, padding)) for each in sentences] for sentences in tokens.tolist()]
    return [
        (replace(reading, sentences=tuple(each), proved=()), bag)
        for each, (reading, bag) in zip(searched, readings, strict=False)
    ]


def read_clients(
    exposure: Exposure, module: nn.Module, table: TokenTable, budget: Budget, report: Reporter
) -> ClientReadings:
    """Return what was read off each client's update, of as many as the time allows; the attacker knows the defences."""
    samples, local = exposure.batch.samples, exposure.client.local
    several = local is not None and local.steps(samples // exposure.client.aggregation.clients) > 1
    known = exposure.known(informed=True)
    readings: list[Reading] = []
    pace = Pace(budget.clock, budget.end)

    def over() -> bool:
        return pace(0)

    try:
        while len(readings) < exposure.trials and (not readings or budget.left > 0):
            client = len(readings)
            report("tokens", f"span test and bag of words, client {client + 1} of {exposure.trials}")
            seen, facts = take((exposure.observation, known), client)
            length = exposure.batch.inputs.shape[2]
            readings.append(read_update(module, table, seen, facts, length, samples if several else None, over))
    except KeyboardInterrupt:
        return ClientReadings(readings, interrupted=True)
    return ClientReadings(readings, interrupted=False, cut=pace.ended)


def _labels(exposure: Exposure, budget: Budget) -> LabelReading | Untested:
    """Return the labels read off a classifier's updates, or why there are none."""
    if exposure.batch.targets is not None:
        return Untested("label recovery", "the rules read cross entropy of one class a sentence")
    return read_labels(exposure, budget)
