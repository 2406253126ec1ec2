"""The grade of a token network, with the meaning of `leakscope.auditing.verdict.RULES`.

A sentence counts as recovered if all its tokens came back in order, up to a last one that a causal language model gives no gradient, and
no null baseline guessed it. If none came back, sentences closer than every null baseline are grade C (the interval of ROUGE-1 lies
above, or its mean by `CLOSER`: few clients have no interval), and so is a bag of words that holds more of the client's tokens than as
many frequent ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.auditing.attack_runs import LabelReading
from leakscope.auditing.suite import Untested
from leakscope.auditing.verdict import HALF, TWENTIETH, Grade
from leakscope.play.text_leak import TextLeak

CLOSER = 0.2  # ROUGE-1
SEARCH = "attacks that search over tokens (TAG, LAMP)"
NOT_RUN = Untested(SEARCH, "they run only if the sentences are known")


def grade_text(leak: TextLeak, labels: LabelReading | None = None, *, unfinished: Sequence[str] = ()) -> Grade:
    """Return the grade; A and B need that everything that applies was run to its end."""
    share = leak.sentences.value
    if share >= TWENTIETH:
        return Grade.F if share >= HALF else Grade.D
    closer = leak.rouge1.low > leak.null_rouge1 or leak.rouge1.value >= leak.null_rouge1 + CLOSER
    if share > 0 or closer or (leak.bag is not None and leak.bag.value > leak.null_bag):
        return Grade.C
    if unfinished:
        return Grade.INCONCLUSIVE
    return Grade.B if labels is not None and (labels.low or 0.0) > labels.guessing else Grade.A
