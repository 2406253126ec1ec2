"""What would help a token network: the same clients under a defence or a change, read by the attacker who knows it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from leakscope.auditing.limits import Budget
from leakscope.auditing.target import Target
from leakscope.auditing.tokens.network import TokenTable
from leakscope.auditing.verdict import Grade
from leakscope.clients import Client
from leakscope.core.errors import InputError, first_line
from leakscope.core.progress import Reporter
from leakscope.core.tree import count, lift, norm
from leakscope.core.types import direction
from leakscope.defences import Defence, DropRows, GaussianNoise, Sparsify
from leakscope.models import is_transformer
from leakscope.play import Exposure
from leakscope.play.text_baselines import LEAST_PUBLIC
from leakscope.play.text_leak import TextLeak

CUT = "the time ended the reading of its updates"
DROPOUT = 0.1
LARGER = (4, 16)  # times the examples
NOISE = (1.0, 10.0)  # times the root mean square of a coordinate


@dataclass(frozen=True, slots=True)
class TextRemedy:
    """A remedy, and what the attacker who knows it still reads; `leak` is None if it was not tried, for the reason `why`."""

    name: str
    leak: TextLeak | None
    grade: Grade | None
    why: str = ""

    @property
    def words(self) -> str:
        """Return the finding as a line."""
        if self.leak is None:
            return f"{self.name}: not tried: {self.why}"
        bag = "not sent" if self.leak.bag is None else f"{100 * self.leak.bag.value:.0f} %"
        return (
            f"{self.name}: grade {self.grade}, sentences {100 * self.leak.sentences.value:.0f} % (n = {self.leak.sentences.n}), "
            f"ROUGE-1 {self.leak.rouge1.value:.2f} (without the update {self.leak.null_rouge1:.2f}), bag {bag}"
        )

    def record(self) -> dict[str, object]:
        """Return plain data."""
        leak = None if self.leak is None else self.leak.record()
        return {"name": self.name, "grade": self.grade, "why": self.why, "text": leak}


def try_remedies(
    target: Target,
    table: TokenTable,
    exposure: Exposure,
    budget: Budget,
    report: Reporter,
    read: Callable[[Target], tuple[TextLeak, Grade]],
) -> Iterator[TextRemedy]:
    """Yield the remedies; `read` simulates and reads the clients of a changed target."""
    for name, changed in variants(target, table, exposure):
        report("remedies", name)
        if budget.left <= 0:
            yield TextRemedy(name, None, None, "no time was left")
            continue
        try:
            leak, grade = read(changed)
        except InputError as error:
            yield TextRemedy(name, None, None, first_line(error))
            continue
        cut = leak.cut and grade is Grade.INCONCLUSIVE
        yield TextRemedy(name, None, None, CUT) if cut else TextRemedy(name, leak, grade)


def left_to_read(remedy: TextRemedy) -> tuple[float, float, float]:
    """Return what an attacker still reads under a remedy, to sort by."""
    leak = remedy.leak
    if leak is None:
        return math.inf, math.inf, math.inf
    return leak.sentences.value, leak.rouge1.value, 0.0 if leak.bag is None else leak.bag.value


def variants(target: Target, table: TokenTable, exposure: Exposure) -> Iterator[tuple[str, Target]]:
    """Return the target under each remedy that applies to it, with its name."""
    name = table.weight.removeprefix("network.") if is_transformer(target.model) else table.weight
    if target.model.get_parameter(name).requires_grad:
        if not table.tied:
            frozen = copy.deepcopy(target.model)
            frozen.get_parameter(name).requires_grad_(False)
            yield "freeze the embedding", replace(target, model=frozen)
            if has_weak_dropout(frozen):
                both = replace(target, model=with_dropout(frozen))
                yield f"freeze the embedding, dropout of {DROPOUT:g}", both
        yield "drop half of the embedding's rows", with_defence(target, DropRows((table.weight,)))
    if has_weak_dropout(target.model):
        yield f"dropout of {DROPOUT:g}", replace(target, model=with_dropout(target.model))
    for drop in (0.9, 0.99):
        yield f"prune {100 * drop:g} % of the update", with_defence(target, Sparsify(drop))
    update = direction(exposure.observation.rounds[0], exposure.observation.shares)
    size = float(lift(norm)(update).median()) / math.sqrt(count(update) / exposure.trials)
    for times in NOISE:
        yield f"noise of {times:g} times a coordinate", with_defence(target, GaussianNoise(times * size))
    sample = 0 if target.inputs is None else len(target.inputs) - LEAST_PUBLIC
    for times in LARGER:
        if times * exposure.batch.samples <= sample:
            yield f"{times} times the sentences", replace(target, examples=times * target.examples)


def has_weak_dropout(module: nn.Module) -> bool:
    """Return whether a network has a dropout below `DROPOUT`."""
    return any(isinstance(each, nn.Dropout) and each.p < DROPOUT for each in module.modules())


def with_defence(target: Target, defence: Defence) -> Target:
    """Return the target with one more defence at the end."""
    if isinstance(target.client, Client) and target.client.defences:
        client = replace(target.client, defences=(*target.client.defences, defence))
        return replace(target, client=client)
    return replace(target, defences=(*target.defences, defence))


def with_dropout(module: nn.Module) -> nn.Module:
    """Return a copy in train mode whose dropouts have at least the probability `DROPOUT`."""
    copied = copy.deepcopy(module).train()
    with torch.no_grad():
        for each in copied.modules():
            if isinstance(each, nn.Dropout):
                each.p = max(each.p, DROPOUT)
    return copied
