"""What leakscope needs to audit this federation: `leakscope audit digits_federation.audit:build`."""

from __future__ import annotations

import torch

from digits_federation.task import BATCH_SIZE, EXAMPLES, RATE, Net, private_digits
from leakscope import LocalTraining, Target

SAMPLE = 96
TRAINING = LocalTraining(epochs=1, batch_size=BATCH_SIZE, rate=RATE)


def build() -> Target:
    """Return the model as it starts, a sample of one client's digits, and how clients train."""
    torch.manual_seed(0)
    inputs, labels = private_digits(0, SAMPLE)
    return Target(
        model=Net(),
        inputs=inputs,
        labels=labels,
        client=TRAINING,
        examples=EXAMPLES,
        truth=lambda partition: private_digits(partition, EXAMPLES),
    )


def build_blind() -> Target:
    """Return the same without the truth: all that someone who only has the captures knows."""
    return Target(model=Net(), client=TRAINING, input_shape=(1, 8, 8))
