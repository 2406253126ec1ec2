"""Units that few samples of a client activate are not sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining, direction, make_batch
from leakscope.models import from_module
from leakscope.play import shared_weights

N = 5


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 3)).double()


INPUTS = random.uniform(random.key(3), (1, N, 1, 4, 4), torch.float64)
BATCH = make_batch(INPUTS, torch.arange(N)[None] % 3, classes=3, mask=torch.tensor([[True] * 4 + [False]]))


@pytest.mark.parametrize("least", [1, 2, 3])
def test_units_below_the_number_are_zero_and_all_else_is_sent(least: int) -> None:
    module = network()
    model = from_module(module, input_shape=(1, 4, 4))
    plain, censored = (Client(censor=q).observe(model, shared_weights(model, 1), BATCH, [0]) for q in (0, least))
    with torch.no_grad():
        counts = (module[1](INPUTS[0, :4].flatten(1)) > 0).sum(0)  # type: ignore[index]
    assert 0 < int((counts < least).sum()) < 60
    for name, value in censored.rounds[0].sent.items():
        expected = plain.rounds[0].sent[name].clone()
        if name.endswith("1.weight") or name.endswith("1.bias"):
            expected[0, counts < least] = 0
        assert torch.equal(value, expected)


def test_no_unit_of_a_censoring_client_divides_into_a_sample() -> None:
    model = from_module(network(), input_shape=(1, 4, 4))
    number = []
    for q in (0, 2):
        sent = Client(censor=q).observe(model, shared_weights(model, 1), BATCH, [0]).rounds[0].sent
        rows = sent["1.weight"][0] / sent["1.bias"][0][:, None]
        number.append(int((torch.cdist(rows, INPUTS[0, :4].flatten(1)) < 1e-6).any(1).sum()))
    assert number[0] > 0
    assert number[1] == 0


def test_after_local_steps_both_weights_count() -> None:
    model = from_module(network(), input_shape=(1, 4, 4))
    local = LocalTraining(epochs=3, batch_size=1, rate=0.3)
    client = Client(local=local, censor=1)
    seen = client.observe(model, shared_weights(model, 1), BATCH, [0])
    whole = Client(local=local).observe(model, shared_weights(model, 1), BATCH, [0])
    weight, bias = model.entry.weight, model.entry.bias  # type: ignore[union-attr]
    flat, active = INPUTS[0, :4].flatten(1), []
    for tree in (whole.rounds[0].before, whole.rounds[0].sent):
        active.append(flat @ tree[weight][0].mT + tree[str(bias)][0] > 0)
    kept = (active[0] & active[1]).any(0)
    assert 0 < int(kept.sum()) < 60
    assert torch.equal(direction(seen.rounds[0], seen.shares)[str(bias)][0].ne(0), kept)


def test_a_network_without_a_first_dense_layer_is_refused() -> None:
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    model = from_module(layers, input_shape=(1, 4, 4))
    with pytest.raises(InputError, match="censor"):
        Client(censor=2).observe(model, shared_weights(model, 1), BATCH, [0])
    with pytest.raises(InputError, match="censor"):
        Client(censor=-1)
