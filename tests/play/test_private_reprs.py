"""No repr of what holds sentences shows a token or a word of them."""

from __future__ import annotations

import re

import torch

from leakscope.attacks.exact.embedding_rows import Bag
from leakscope.attacks.exact.masked_span import Atom
from leakscope.attacks.exact.span_test import SpanEnd, SpanReading
from leakscope.core.types import make_batch
from leakscope.data.text import PADDING, UNKNOWN, Words, load_text, sentence_set
from leakscope.metrics.text import score_text
from leakscope.play.text_leak import Mark, ShownSentence, score_readings
from leakscope.report.sentences import SentenceTable
from leakscope.servers.decepticons import Token

PUBLIC = torch.tensor([[1, 2], [2, 1]] * 8)


def test_no_repr_shows_private_tokens_or_words() -> None:
    shown = ShownSentence(0, ("secret",), (Mark.PLACE,), ("secret",))
    values = [
        SpanReading(SpanEnd.SENTENCES, ((98765, 98764),), (torch.tensor([98765]),), proved=((98765, 98764),)),
        Bag(torch.tensor([98765]), exact=True),
        Atom(98765, 0, torch.ones(2)),
        Token(98765, 0, 98764),
        shown,
        SentenceTable(name="tag", shown=(shown,), total=1),
        score_text([(98765, 98764)], [(98765, 98764)]),
        Words((PADDING, UNKNOWN, "secret")),
        load_text(),
        sentence_set(),
        make_batch(torch.full((1, 1, 2), 98765.0), torch.zeros(1, 1, dtype=torch.int64), classes=2, tokens=True),
        score_readings(
            torch.tensor([[[98765, 98764]]]), [(SpanReading(SpanEnd.NOTHING), None)], PUBLIC, PUBLIC, words=None, seed=0
        ),
    ]
    for value in values:
        assert not re.search("9876|secret|alice's|love", repr(value)), type(value).__name__
