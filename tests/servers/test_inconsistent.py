"""Model inconsistency: a sum of clients is the update of the one whose weights are alive, and clients that compare hashes notice."""

from __future__ import annotations

import pytest
import torch

from leakscope.attacks import analytic
from leakscope.clients import Aggregation, Client
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.types import Batch, LocalTraining, direction
from leakscope.models import build
from leakscope.play import shared_weights
from leakscope.play.dishonest import expose_manipulated, manipulate
from leakscope.servers import Fishing, Imprint, Inconsistent, Loki, Manipulation, SolitonBiases, TrapWeights
from manipulated import SHAPE, batch_of, exact, exposed, images, small_mlp

CLIENTS, EACH = 3, 4
PUBLIC, LABELS = images(400, 3), torch.arange(400) % 4
SUM = Client(aggregate=CLIENTS)
FISHED = torch.tensor([[1, 0, 2, 3, 0, 0, 1, 2, 3, 0, 1, 2]])  # class 0 once at the first client, and at the others


def first(batch: Batch) -> Batch:
    """Return the samples of the first client."""
    return Batch(batch.inputs[:, :EACH], batch.labels[:, :EACH], batch.mask[:, :EACH])


@pytest.mark.parametrize("model", [small_mlp(), build("cnn_mnist", SHAPE, 4)], ids=["mlp", "cnn"])
@pytest.mark.parametrize(
    "client", [SUM, Client(aggregate=CLIENTS, local=LocalTraining(epochs=2))], ids=["gradient", "weights"]
)
def test_the_sum_is_the_update_of_one_client_but_for_the_bias_of_the_head(model: Model, client: Client) -> None:
    batch, inner = batch_of(1, CLIENTS * EACH), Fishing()
    given = (model, client, shared_weights(model, 1), batch, PUBLIC, [0])
    seen = expose_manipulated(Inconsistent(CLIENTS, inner), *given).observation
    alone = exposed(inner, model, first(batch), Client(local=client.local)).observation
    sums, one = (direction(each.rounds[0], each.shares) for each in (seen, alone))
    assert model.head is not None
    for name in set(one) - {model.head.bias}:
        torch.testing.assert_close(CLIENTS * sums[name], one[name], atol=2e-6, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:labels are drawn")
@pytest.mark.parametrize(
    "inner",
    [Imprint(), Imprint(inserted=48), TrapWeights(), SolitonBiases(batch=EACH)],
    ids=["imprint", "inserted", "trap weights", "soliton biases"],
)
def test_a_sum_is_read_as_well_as_one_client_alone(inner: Manipulation) -> None:
    batch, model = batch_of(1, CLIENTS * EACH), small_mlp()
    summed = manipulate(model, batch, Inconsistent(CLIENTS, inner), PUBLIC, LABELS, client=SUM).attack.reconstruction
    alone = manipulate(model, first(batch), inner, PUBLIC, LABELS).attack.reconstruction
    assert int(exact(first(batch), alone).sum()) > 0
    assert torch.equal(exact(first(batch), summed), exact(first(batch), alone))
    assert bool((summed.inputs[:, EACH:] == 0.5).all())


def test_fishing_reads_its_image_although_other_clients_hold_the_class() -> None:
    batch, inner = batch_of(1, CLIENTS * EACH, FISHED), Fishing(reader=analytic())
    found = [
        exact(batch, manipulate(small_mlp(), batch, each, PUBLIC, LABELS, client=SUM).attack.reconstruction)
        for each in (inner, Inconsistent(CLIENTS, inner))
    ]
    assert not bool(found[0].any())
    assert found[1][0].nonzero().flatten().tolist() == [1]


def test_what_cannot_be_told_apart_is_refused() -> None:
    batch, trap = batch_of(1, CLIENTS * EACH), Inconsistent(CLIENTS)
    for client in (Client(), Client(aggregate=2), Client(aggregate=Aggregation(CLIENTS, dropouts=1))):
        with pytest.raises(InputError):
            manipulate(small_mlp(), batch, trap, PUBLIC, LABELS, client=client)
    with pytest.raises(InputError, match="use another"):
        Inconsistent(2, Loki(2))
