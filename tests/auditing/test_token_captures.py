"""Captured updates of token networks: scored with the truth, shown without it, rounds of one client pooled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.auditing.capture_audit import audit_captures
from leakscope.auditing.limits import Budget
from leakscope.auditing.target import Target
from leakscope.auditing.tokens.captures import pool_rounds
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining
from leakscope.data.text import load_text
from leakscope.models import adapt, gpt
from leakscope.store.captures import Capture, write_capture

torch.set_num_threads(1)
LENGTH = 4
TOKENS, LABELS, WORDS = load_text().tokens(LENGTH)


def network(rank: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = gpt(vocabulary=len(WORDS), positions=LENGTH, width=32, classes=2)
    return module if rank is None else adapt(module, rank=rank)


def private(partition: int) -> tuple[Tensor, Tensor]:
    return TOKENS[2 * partition : 2 * partition + 2], LABELS[2 * partition : 2 * partition + 2]


def record(
    directory: Path, module: nn.Module, *, number: int = 0, partition: int = 0, steps: int = 1, rate: float = 0.1
) -> None:
    """Train on a partition and write what a server would have seen of it."""
    trained = {name: w for name, w in module.named_parameters() if w.requires_grad}
    before = {name: w.detach().clone() for name, w in trained.items()}
    x, y = private(partition)
    optimiser = torch.optim.SGD(trained.values(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    sent = {name: w.detach().clone() for name, w in trained.items()}
    write_capture(
        directory,
        Capture(round=number, client=str(partition), before=before, sent=sent, partition=partition, examples=2),
    )


def target(module: nn.Module, steps: int = 1, rate: float = 0.1) -> Target:
    local = LocalTraining(epochs=steps, rate=rate)
    return Target(model=module, inputs=TOKENS[40:], labels=LABELS[40:], client=local, truth=private, words=WORDS.words)


def test_captures_of_a_token_network_are_scored_with_their_truth(tmp_path: Path) -> None:
    for partition in range(2):
        record(tmp_path, network(), partition=partition)
    made = audit_captures(tmp_path, target(network()), progress=False)
    assert made.text is not None
    assert (made.grade, made.text.sentences.n, made.recovered) == ("F", 4, 4)
    assert made.text.shown[0].truth == tuple(WORDS.decode(private(0)[0][0].tolist()).split())
    assert made.static is not None
    assert made.static.batch == 2


def test_captures_of_adapters_alone_are_scored_and_rounds_count_once(tmp_path: Path) -> None:
    module = network(rank=12)
    for number in range(2):
        record(tmp_path, module, number=number, steps=10, rate=0.3)
    made = audit_captures(tmp_path, target(network(rank=12), steps=10, rate=0.3), progress=False)
    assert made.text is not None
    assert made.text.bag is None
    assert (made.grade, made.text.sentences.n) == ("F", 2)


def test_without_the_truth_what_came_back_is_kept_and_not_graded(tmp_path: Path) -> None:
    record(tmp_path, network())
    made = audit_captures(tmp_path, replace(target(network()), truth=None), progress=False)
    assert made.grade == "unscored"
    assert made.text is None
    assert any(WORDS.decode(private(0)[0][0].tolist()) in note for note in made.notes)
    assert made.failures({"asr": 0.9}) != []


def test_adapters_of_another_rank_are_refused(tmp_path: Path) -> None:
    record(tmp_path, network(rank=8), steps=2)
    with pytest.raises(InputError) as caught:
        audit_captures(tmp_path, target(network(rank=6)), progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"truth": lambda p: (private(p)[0] + len(WORDS), private(p)[1])}, "the true tokens must lie in 0..887"),
        ({"truth": lambda p: (private(p)[0] - len(WORDS), private(p)[1])}, "the true tokens must lie in 0..887"),
        ({"truth": lambda p: (private(p)[0].repeat(1, 2), private(p)[1])}, r"inputs of shape \(4,\)"),
        ({"words": WORDS.words[1:]}, "words must name the embedding's 888 rows"),
        ({"inputs": TOKENS[40:] - len(WORDS)}, "tokens must lie in 0..887"),
    ],
)
def test_tokens_and_words_of_another_model_are_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    record(tmp_path, network())
    with pytest.raises(InputError, match=why) as caught:
        audit_captures(tmp_path, replace(target(network()), **changed), progress=False)
    assert "\n" not in str(caught.value)


def test_an_update_without_the_rows_that_the_model_trains_is_refused(tmp_path: Path) -> None:
    weights = {name: w.detach() for name, w in network().named_parameters() if name != "embedding.weight"}
    write_capture(tmp_path, Capture(round=0, client="0", before=weights, sent=weights, partition=0, examples=2))
    with pytest.raises(InputError, match=r"it lacks 'embedding\.weight'") as caught:
        audit_captures(tmp_path, target(network()), progress=False)
    assert "\n" not in str(caught.value)


def test_rounds_of_one_client_are_pooled_by_votes() -> None:
    true, false = (1, 2, 3), (7, 8, 9)
    rounds = [
        (SpanReading(SpanEnd.CLOSEST, (false,), rank=2), Bag(torch.tensor([1, 2]), exact=True)),
        (SpanReading(SpanEnd.CLOSEST, (true,), rank=3), Bag(torch.tensor([2, 3]), exact=True)),
        (SpanReading(SpanEnd.CLOSEST, (true, false), rank=3), Bag(torch.tensor([0]), exact=False)),
        (SpanReading(SpanEnd.CLOSEST, (true,), rank=1), None),
    ]
    reading, bag = pool_rounds(rounds, 1)
    assert reading.end is SpanEnd.CLOSEST
    assert pool_rounds([*rounds, (SpanReading(SpanEnd.CUT), None)], 1)[0].end is SpanEnd.CUT
    assert reading.sentences == (true,)
    assert bag is not None
    assert bag.exact
    assert bag.tokens.tolist() == [1, 2, 3]


def test_captures_that_no_time_was_left_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        record(tmp_path, network(), number=number)
    monkeypatch.setattr(Budget, "left", property(lambda self: 0.0))
    for asked in (target(network()), replace(target(network()), truth=None)):
        made = audit_captures(tmp_path, asked, progress=False)
        assert "1 of 2 captures were read" in made.unfinished
