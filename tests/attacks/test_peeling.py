"""Peeling: batches come back exactly where the algebra says so, and nothing is certified that is no sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.exact.joint_solution import NEAR, errors_of
from leakscope.attacks.exact.layer_probe import probe_network
from leakscope.attacks.exact.ledger import ROUNDING, Probe, Update
from leakscope.attacks.exact.peel_attack import Peeling
from leakscope.attacks.exact.peeling import distinct_rows, peel
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.scaling import Scaling
from leakscope.core.tree import take, to
from leakscope.core.types import Batch, LocalTraining, Observation, Outcome, Reconstruction, Round, make_batch
from leakscope.data import load
from leakscope.defences import Clip, Defence, GaussianNoise
from leakscope.models import Torch, Uniform, build, draw_parameters
from leakscope.models.initialise import Init

torch.set_num_threads(1)
SEEDS = [0, 1]
DATA = load("digits")


def network(*hidden: int, dtype: torch.dtype = torch.float64, activation: str = "relu") -> Model:
    return to(build("mlp", (1, 8, 8), 10, {"hidden": hidden or (300,), "activation": activation}), dtype=dtype)


def digits(samples: int) -> Batch:
    number = len(SEEDS) * samples
    inputs, labels = DATA.pictures("test", range(number)), torch.as_tensor(DATA.labels("test", range(number)))
    grouped = [t.unflatten(0, (len(SEEDS), -1)) for t in (inputs.double(), labels)]
    return make_batch(*grouped, classes=10)


def attacked(model: Model, batch: Batch, client: Client) -> tuple[Reconstruction, Observation]:
    dtype = next(iter(model.parameters.values())).dtype
    weights = to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=dtype)
    seen = client.observe(model, weights, to(batch, dtype=dtype), SEEDS)
    return Peeling().run(model, seen, attacker_knowledge(model, client, batch), SEEDS), seen


def check_recovered(batch: Batch, found: Reconstruction, error: float) -> None:
    """Assert that every certified sample is one of the batch, each at most once, with its label."""
    assert found.proved is not None
    for t in range(batch.trials):
        inputs, labels = found.inputs[t][found.proved[t]].double(), found.labels[t][found.proved[t]]
        distances = squared_distances(batch.inputs[t], inputs)
        nearest = distances.argmin(0)
        assert bool((distances.amin(0) < error**2).all())
        assert torch.equal(batch.labels[t][nearest], labels)
        counts = nearest.bincount(minlength=batch.samples)
        same = (squared_distances(batch.inputs[t], batch.inputs[t]) == 0).sum(0)
        assert bool((counts <= same).all())


CLIENTS = {
    "gradient": Client(),
    "scaled": Client(scaling=Scaling((0.4,), (0.3,))),
    "mse": Client(loss="mse"),
    "one step": Client(local=LocalTraining(rate=0.3)),
    "clipped": Client(defences=(Clip(1e-2),)),
}


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_every_sample_of_a_batch_is_proved_with_its_label(name: str) -> None:
    batch = digits(12)
    found, _ = attacked(network(400), batch, CLIENTS[name])
    assert (found.outcome == Outcome.PROVED).all()
    assert found.proved is not None
    assert bool(found.proved.all())
    check_recovered(batch, found, 1e-6)
    for t in range(batch.trials):
        paired = pair(squared_distances(batch.inputs[t], found.inputs[t]))
        assert torch.equal(batch.labels[t], found.labels[t][paired])
    assert float(found.mismatch.max()) < 1e-9


def test_deeper_networks_and_float32_updates() -> None:
    batch = digits(8)
    found, _ = attacked(network(300, 50), batch, Client())
    assert bool(found.proved is not None and found.proved.all())
    rough, _ = attacked(network(300, dtype=torch.float32), batch, Client())
    assert bool(rough.proved is not None and rough.proved.all())
    check_recovered(batch, rough, 1e-5)


def by_a_chain(active: Tensor) -> int:
    """Return how many samples (rows) are alone on a unit (columns) once those before them are gone."""
    known = torch.zeros(len(active), dtype=torch.bool)
    while True:
        new = ~known & active[:, active[~known].sum(0) == 1].any(1)
        if not bool(new.any()):
            return int(known.sum())
        known |= new


def test_as_many_samples_are_proved_as_the_activations_allow() -> None:
    """Chains of a dozen subtractions: errors that grow from one sample to the next must not end them."""
    model, places, seeds = network(200), range(32, 64), [1]
    batch = make_batch(
        DATA.pictures("test", places).double()[None], torch.as_tensor(DATA.labels("test", places))[None], classes=10
    )
    weights = {}
    for name, like in model.parameters.items():
        drawn = random.normal(random.fold(random.key(seeds), name), like.shape).double()
        weights[name] = drawn * (0.0 if like.ndim == 1 else 0.5 if len(like) == 200 else 0.05)
    assert model.entry is not None
    active = batch.inputs.flatten(2) @ weights[model.entry.weight].mT > 0
    seen = Client().observe(model, weights, batch, seeds)
    found = Peeling(draws=0).run(model, seen, attacker_knowledge(model, Client(), batch), seeds)
    check_recovered(batch, found, 1e-6)
    assert found.proved is not None
    assert found.proved.sum(1).tolist() == [by_a_chain(each) for each in active]


def test_copies_of_a_sample_are_not_certified_but_others_are() -> None:
    one = digits(8)
    batch = make_batch(one.inputs[:, [0, 0, 1, 2, 3, 4]], one.labels[:, [0, 0, 1, 2, 3, 4]], classes=10)
    found, _ = attacked(network(400), batch, Client())
    assert found.proved is not None
    assert bool((found.proved.sum(1) >= 3).all())
    check_recovered(batch, found, 1e-6)
    copied = squared_distances(found.inputs[0][found.proved[0]], batch.inputs[0, :1])
    assert float(copied.min()) > 1e-3


def test_saturated_networks_certify_no_mean_of_samples() -> None:
    """A softmax far from 0 and 1 pulls samples of one label alike, so that k copies of their mean have their gradients."""
    model, batch = network(400), digits(24)
    for dtype in (torch.float64, torch.float32):
        used, data = to((model, batch), dtype=dtype)
        weights = {
            n: random.normal(random.fold(random.key(SEEDS), n), w.shape).to(dtype) for n, w in used.parameters.items()
        }
        seen = Client().observe(used, weights, data, SEEDS)
        check_recovered(batch, Peeling().run(used, seen, attacker_knowledge(used, Client(), data), SEEDS), 1e-3)


def test_a_sample_that_the_units_hardly_determine_is_not_certified() -> None:
    """Two samples with nearly the same gradients: rounding of the update moves each of them far, along their difference."""
    pulls = torch.tensor([[1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 1.0 + 1e-5, 0.5]], dtype=torch.float64)
    assert bool((errors_of(pulls.mT, ROUNDING[torch.float32]) > NEAR).all())
    assert bool((errors_of(pulls.mT, ROUNDING[torch.float64]) < NEAR).all())
    assert bool((errors_of(pulls[[0, 0]].mT, ROUNDING[torch.float64]) > NEAR).all())
    other = torch.cat([pulls[[0, 0]], torch.tensor([[0.2, -1.0, 0.3, 0.0]], dtype=torch.float64)])
    assert (errors_of(other.mT, ROUNDING[torch.float64]) > NEAR).tolist() == [True, True, False]
    exact = torch.linalg.pinv(pulls.mT).norm(dim=1)
    assert_close(errors_of(pulls.mT, 1.0), exact, rtol=1e-4, atol=0.0)


def test_a_unit_in_which_opposite_samples_cancel_moves_no_other_sample() -> None:
    """The bias gradient of unit 2 is that of sample 0 alone; its weights hold samples 2 and 3, of opposite gradients, too."""
    samples = torch.rand(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pulls = torch.tensor(
        [[1.0, 0.5, 0.7, 0, 0], [0, 0, 0, 1.0, 0.3], [0, 0, 0.9, 0, 0], [0, 0, -0.9, 0, 0]], dtype=torch.float64
    )

    def slopes(rows: Tensor) -> Tensor:
        distance, nearest = torch.cdist(rows, samples).min(1)
        return (pulls[nearest] + (distance > 1e-6)[:, None].double())[:, None]

    update = Update(pulls.mT @ samples, pulls.sum(0), None, torch.float64)
    peeled = peel(update, Probe(slopes, None, lambda rows: torch.zeros(len(rows))), factor=1.0, most=4)
    assert_close(peeled.inputs[peeled.inputs[:, 0].argsort()], samples[:2][samples[:2, 0].argsort()])


def test_no_sample_is_certified_twice() -> None:
    known = torch.rand(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = known[1:2] * (1 + NEAR / 4)
    other = torch.rand(1, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = torch.cat([known, again, other, other])
    assert distinct_rows(rows, known=3).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("defence", [GaussianNoise(1e-4), GaussianNoise(1e-2)])
def test_noise_leaves_nothing_certified(defence: Defence) -> None:
    found, _ = attacked(network(400), digits(8), Client(defences=(defence,)))
    assert found.proved is not None
    assert not bool(found.proved.any())
    assert (found.outcome != Outcome.PROVED).all()


def test_smooth_units_and_large_batches_certify_no_mixture() -> None:
    for model, samples in ((network(300, activation="tanh"), 4), (network(40), 40)):
        batch = digits(samples)
        check_recovered(batch, attacked(model, batch, Client())[0], 1e-6)


@pytest.mark.parametrize("weights", [Torch(), Uniform(5.0)])
def test_a_mixture_is_no_sample_where_the_batch_fits_another_factor(weights: Init) -> None:
    """Two classes give slopes one direction, a saturated softmax one size: means then look like samples of another weight."""
    model = to(build("mlp", (1, 3, 3), 2, {"hidden": (4,)}), dtype=torch.float64)
    seeds = list(range(40))
    inputs = torch.rand(len(seeds), 2, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = make_batch(inputs, torch.ones(len(seeds), 2, dtype=torch.int64), classes=2)
    drawn = to(draw_parameters(model, weights, random.key(seeds)), dtype=torch.float64)
    seen = Client().observe(model, drawn, batch, seeds)
    found = Peeling(draws=0).run(model, seen, attacker_knowledge(model, Client(), batch), seeds)
    assert found.proved is not None
    assert found.proved.sum() >= 5
    for t in seeds:
        distances = squared_distances(batch.inputs[t], found.inputs[t][found.proved[t]])
        assert bool((distances < 1e-12).any(0).all())


@pytest.mark.parametrize("classes", [2, 3])
def test_clients_of_fewer_samples_weigh_each_by_their_own_number(classes: int) -> None:
    model = to(build("mlp", (1, 8, 8), classes, {"hidden": (100,)}), dtype=torch.float64)
    inputs, labels = DATA.pictures("test", range(8)).double(), torch.as_tensor(DATA.labels("test", range(8))) % classes
    batch = Batch(inputs.unflatten(0, (2, 4)), labels.unflatten(0, (2, 4)), torch.arange(4) < torch.tensor([[1], [4]]))
    weights = to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=torch.float64)
    seen = Client().observe(model, weights, batch, SEEDS)
    found = Peeling(draws=0).run(model, seen, attacker_knowledge(model, Client(), batch), SEEDS)
    assert found.proved is not None
    assert torch.equal(found.proved, batch.mask)
    assert_close(found.inputs[0, 0], batch.inputs[0, 0])
    assert (found.outcome == Outcome.PROVED).all()


def test_one_sample_of_a_wrong_number_is_proved_where_classes_tell_it_from_a_mean() -> None:
    batch, model = digits(1), network(100)
    weights = to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=torch.float64)
    seen = Client().observe(model, weights, batch, SEEDS)
    known = replace(attacker_knowledge(model, Client(), batch), samples=8)
    found = Peeling(draws=0).run(model, seen, known, SEEDS)
    assert found.proved is not None
    assert found.proved.sum(1).tolist() == [1, 1]
    assert_close(found.inputs[:, :1], batch.inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("factor", [0.25, None])
@pytest.mark.parametrize("witness", [True, False])
def test_foreign_updates_certify_nothing(factor: float | None, dtype: torch.dtype, witness: bool) -> None:
    model = network(200)
    batch = digits(4)
    seen = Client().observe(
        model, to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=torch.float64), batch, SEEDS
    )
    assert model.entry is not None
    probe, name = probe_network(take(seen.rounds[0], 0), model, model.entry, attacker_knowledge(model, Client(), batch))
    assert name == "head.weight"
    probe = replace(probe, outside=lambda rows: torch.zeros(len(rows)))
    if not witness:
        probe = replace(probe, witness=None)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        parts = torch.rand(200, 6, generator=generator, dtype=torch.float64).square()
        images = torch.rand(6, 64, generator=generator, dtype=torch.float64)
        columns = torch.rand(200, 10, generator=generator, dtype=torch.float64) if witness else None
        # every quotient is a mixture of images
        update = Update(parts @ images, parts.sum(1), columns, dtype)
        assert len(peel(update, probe, factor=factor, most=8).inputs) == 0


def test_slopes_and_witness_are_those_of_autograd() -> None:
    model, batch = network(20, 10), digits(3)
    seen = Client().observe(
        model, to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=torch.float64), batch, SEEDS
    )
    assert model.entry is not None
    before = take(seen.rounds[0], 0)
    probe, name = probe_network(before, model, model.entry, attacker_knowledge(model, Client(), batch))
    assert name is not None
    assert probe.witness is not None
    rows = batch.inputs[0].flatten(1)
    slopes = probe.slopes(rows)
    weights = {n: w.clone().requires_grad_() for n, w in before.before.items()}
    for label in (0, 7):
        columns, _ = probe.witness(rows, torch.full((3,), label))
        for i in range(3):
            out = model.apply(weights, {}, batch.inputs[0, i : i + 1], random.key(0))[0]
            loss = nn.functional.cross_entropy(out, torch.tensor([label]))
            wanted = torch.autograd.grad(loss, [weights[str(model.entry.bias)], weights[name]])
            assert_close(slopes[i, label], wanted[0])
            assert_close(columns[i], wanted[1].mT)


def test_rounds_add_what_another_round_lacks() -> None:
    model, batch = network(60), digits(16)
    rounds: list[Round] = []
    alone: list[int] = []
    for number in range(3):
        weights = to(draw_parameters(model, Torch(), random.key([5 + number, 9 + number])), dtype=torch.float64)
        seen = Client().observe(model, weights, batch, SEEDS)
        knowledge = attacker_knowledge(model, Client(), batch)
        one = Peeling(draws=0).run(model, seen, knowledge, SEEDS)
        assert one.proved is not None
        alone.append(int(one.proved.sum()))
        rounds += seen.rounds
    found = Peeling(draws=0).run(model, Observation(tuple(rounds), seen.shares, seen.samples), knowledge, SEEDS)
    assert found.proved is not None
    assert int(found.proved.sum()) >= max(alone)
    check_recovered(batch, found, 1e-6)


def test_more_samples_than_units_are_exhausted_and_an_update_of_zeros_diverges() -> None:
    batch, model = digits(24), network(16)
    found, seen = attacked(model, batch, Client())
    check_recovered(batch, found, 1e-6)
    assert (found.outcome == Outcome.EXHAUSTED).all()
    first = seen.rounds[0]
    dead = replace(seen, rounds=(replace(first, sent={n: torch.zeros_like(v) for n, v in first.sent.items()}),))
    found = Peeling().run(model, dead, attacker_knowledge(model, Client(), batch), SEEDS)
    assert (found.outcome == Outcome.DIVERGED).all()


def test_local_epochs_prove_nothing_and_leave_quotients() -> None:
    batch = digits(4)
    found, _ = attacked(network(400), batch, Client(local=LocalTraining(epochs=3, batch_size=2, rate=0.01)))
    assert found.proved is not None
    assert not bool(found.proved.any())
    nearest = [squared_distances(batch.inputs[t], found.inputs[t]).amin(1) for t in range(batch.trials)]
    assert float((torch.stack(nearest) < 1e-12).double().mean()) > 0.5


def test_models_without_a_first_dense_layer_are_refused() -> None:
    model = build("lenet_cpl", (1, 8, 8), 10)
    seen = Client().observe(
        model, draw_parameters(model, Torch(), random.key(SEEDS)), to(digits(2), dtype=torch.float32), SEEDS
    )
    with pytest.raises(InputError, match="dense"):
        Peeling().run(model, seen, attacker_knowledge(model, Client(), digits(2)), SEEDS)
