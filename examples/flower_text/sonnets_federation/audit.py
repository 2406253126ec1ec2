"""What leakscope needs to audit this federation: `leakscope audit sonnets_federation.audit:build`."""

from __future__ import annotations

from leakscope import LocalTraining, Target
from sonnets_federation.task import (
    CLIENTS,
    EPOCHS,
    EXAMPLES,
    LABELS,
    ORDER,
    RATE,
    TOKENS,
    WORDS,
    network,
    private_sentences,
)

PUBLIC = ORDER[CLIENTS * EXAMPLES :]  # sentences that no client holds


def build() -> Target:
    """Return the model as it starts, sentences like those of the clients, and how clients train."""
    return Target(
        model=network(),
        inputs=TOKENS[PUBLIC],
        labels=LABELS[PUBLIC],
        client=LocalTraining(epochs=EPOCHS, rate=RATE),
        examples=EXAMPLES,
        truth=private_sentences,
        words=WORDS.words,
    )
