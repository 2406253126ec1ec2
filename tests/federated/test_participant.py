"""The curious participant sees the mean of the others: exactly, for weights and for gradients."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining, Observation, make_batch
from leakscope.federated import observe_others
from leakscope.models import Torch, build, draw_parameters

MODEL = build("mlp", (4,), 3, {"hidden": [5]})
WEIGHTS = draw_parameters(MODEL, Torch(), random.key([0, 1]))


def client(number: int, samples: int, local: LocalTraining | None) -> Observation:
    numbers = torch.Generator().manual_seed(number)
    x, y = torch.rand(2, samples, 4, generator=numbers), torch.randint(0, 3, (2, samples), generator=numbers)
    return Client(local).observe(MODEL, WEIGHTS, make_batch(x, y, classes=3), [number, number + 9])


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, batch_size=2, rate=0.1)])
def test_what_the_others_sent_is_their_mean_weighted_by_examples(local: LocalTraining | None) -> None:
    counts = (2, 3, 5)
    own, *others = (client(number, n, local) for number, n in enumerate(counts))
    sent = [one.rounds[0].sent for one in (own, *others)]
    mean = {name: sum(n * each[name] for n, each in zip(counts, sent, strict=True)) / 10 for name in sent[0]}
    after = mean if local else {name: WEIGHTS[name] - 0.5 * mean[name] for name in mean}
    seen = observe_others(own, after, torch.tensor([10, 10]), rate=None if local else 0.5)
    assert (seen.shares, seen.samples.tolist()) == (own.shares, [8, 8])
    for name, value in seen.rounds[0].sent.items():
        assert_close(value, (3 * sent[1][name] + 5 * sent[2][name]) / 8, rtol=1e-4, atol=1e-5)


def test_of_one_other_participant_the_whole_update_is_seen() -> None:
    local = LocalTraining(epochs=1, batch_size=2, rate=0.1)
    own, other = client(0, 2, local), client(1, 2, local)
    after = {name: (value + other.rounds[0].sent[name]) / 2 for name, value in own.rounds[0].sent.items()}
    seen = observe_others(own, after, torch.tensor([4, 4]))
    for name, value in seen.rounds[0].sent.items():
        assert_close(value, other.rounds[0].sent[name], rtol=1e-4, atol=1e-6)


def test_missing_facts_are_refused() -> None:
    own = client(0, 2, None)
    for samples, rate in ((torch.tensor([4, 4]), None), (torch.tensor([2, 4]), 0.1)):
        with pytest.raises(InputError):
            observe_others(own, WEIGHTS, samples, rate=rate)
