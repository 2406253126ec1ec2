"""Exact recovery from a first dense layer: exact where the algebra says so, refused and doubted where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks.attack import Attack
from leakscope.attacks.recipes import analytic, cpa, linear_system, peeling
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.pairing import pair, squared_distances
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, scale, take, to
from leakscope.core.types import (
    Batch,
    Knowledge,
    LocalTraining,
    Observation,
    Outcome,
    Reconstruction,
    Round,
    make_batch,
)
from leakscope.data import load
from leakscope.defences import Defence, GaussianNoise, Quantise, RandomMask, Sign, Sparsify
from leakscope.models import Torch, build, draw_parameters, from_module

torch.set_num_threads(1)
CLASSES = 4
SEEDS = list(range(6))
SCALING = Scaling((0.4, 0.5), (0.2, 0.3))
SHAPE = (2, 3, 4)
NETWORKS = {
    "linear": None,
    "mlp": {"hidden": (9,)},
    "mlp sigmoid": {"hidden": (9, 5), "activation": "sigmoid"},
    "mlp tanh": {"hidden": (9,), "activation": "tanh"},
}


def network(name: str, shape: tuple[int, ...] = SHAPE) -> Model:
    return to(build(name.split()[0], shape, CLASSES, NETWORKS[name]), dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def play(
    model: Model,
    x: Tensor,
    client: Client = Client(),  # noqa: B008  frozen
    weights: Tree | None = None,
    seeds: Sequence[int] = SEEDS,
) -> tuple[Observation, Knowledge, Batch]:
    y = torch.randint(model.classes, x.shape[:2], generator=torch.Generator().manual_seed(1))
    batch = make_batch(x, y, classes=model.classes)
    if weights is None:
        weights = to(draw_parameters(model, Torch(), random.key(list(seeds))), dtype=torch.float64)
    return client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch), batch


def recover(model: Model, x: Tensor, client: Client = Client(), **given: Tree) -> tuple[Reconstruction, Batch]:  # noqa: B008
    seen, knowledge, batch = play(model, x, client, **given)
    return analytic().run(model, seen, knowledge, SEEDS[: len(x)]), batch


@pytest.mark.parametrize("scaling", [Scaling(), SCALING])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_one_example_comes_back_exactly_with_its_label(name: str, scaling: Scaling) -> None:
    found, batch = recover(network(name), draw(0, 6, 1, *SHAPE), Client(scaling=scaling))
    assert_close(found.inputs, batch.inputs, rtol=1e-8, atol=1e-8)
    assert torch.equal(found.labels, batch.labels)
    assert found.mismatch.max() < 1e-6
    assert (found.outcome == Outcome.CONVERGED).all()


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_tables_come_back_too(name: str) -> None:
    found, batch = recover(network(name, (7,)), draw(0, 6, 1, 7))
    assert_close(found.inputs, batch.inputs, rtol=1e-8, atol=1e-8)


def test_single_precision_is_exact_enough_to_see() -> None:
    model = to(network("mlp"), dtype=torch.float32)
    seen, knowledge, batch = play(network("mlp"), draw(0, 6, 1, *SHAPE))
    found = analytic().run(model, to(seen, dtype=torch.float32), knowledge, SEEDS)
    assert_close(found.inputs, batch.inputs.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(rate=0.1),
        LocalTraining(rate=0.1, epochs=4),
        LocalTraining(rate=0.1, epochs=3, momentum=0.9),
    ],
    ids=["one step", "four steps", "momentum"],
)
@pytest.mark.parametrize("scaling", [Scaling(), SCALING])
def test_weight_updates_of_one_example_give_it_away_whatever_the_number_of_steps(
    local: LocalTraining, scaling: Scaling
) -> None:
    """Every step's gradient is a multiple of the same input, so their sum is."""
    found, batch = recover(network("mlp"), draw(0, 6, 1, *SHAPE), Client(local, scaling=scaling))
    assert_close(found.inputs, batch.inputs, rtol=1e-6, atol=1e-6)
    assert torch.equal(found.labels, batch.labels)


class Offset(nn.Module):
    """Ends in something else than a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + x.mean()


@pytest.mark.parametrize(
    ("made", "loss"), [(None, "mse"), (None, "softmax_cross_entropy"), (Offset(), "cross_entropy")], ids=str
)
def test_pictures_come_back_where_labels_cannot_be_read(made: nn.Module | None, loss: str) -> None:
    module = made or nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model = to(from_module(module, input_shape=(5,)), dtype=torch.float64)
    seen, knowledge, batch = play(model, draw(0, 6, 1, 5), Client(loss=loss))
    with pytest.warns(UserWarning, match="labels are drawn"):
        found = analytic().run(model, seen, knowledge, SEEDS)
    assert_close(found.inputs, batch.inputs, rtol=1e-8, atol=1e-8)
    assert (found.outcome == Outcome.CONVERGED).all()
    assert found.labels.shape == batch.labels.shape
    assert len(found.labels.unique()) > 1
    with pytest.warns(UserWarning, match="drawn at random"):
        again = analytic().run(model, seen, knowledge, SEEDS)
    assert torch.equal(found.labels, again.labels)
    told_of = analytic().run(model, seen, replace(knowledge, labels=batch.labels), SEEDS)
    assert torch.equal(told_of.labels, batch.labels)


def test_every_trial_is_read_as_it_is_alone() -> None:
    model = network("mlp")
    seen, knowledge, _ = play(model, draw(0, 6, 2, *SHAPE))
    many = analytic().run(model, seen, knowledge, SEEDS)
    one = analytic().run(model, take(seen, slice(2, 3)), knowledge, SEEDS[2:3])
    assert_close(many.inputs[2:3], one.inputs, rtol=1e-10, atol=1e-10)
    assert_close(many.mismatch[2:3], one.mismatch, rtol=1e-6, atol=1e-8)


# -- told what was sent


@pytest.mark.parametrize(
    "client",
    [
        Client(defences=(RandomMask(0.7),)),
        Client(LocalTraining(rate=0.1), defences=(RandomMask(0.7),), scaling=SCALING),
        Client(defences=(Sparsify(0.7),)),
    ],
    ids=["random mask", "weights", "sparsified"],
)
def test_who_knows_what_was_sent_reads_each_input_off_its_pairs(client: Client) -> None:
    model = network("mlp tanh")
    seen, plain, batch = play(model, draw(0, 6, 1, *SHAPE), client)
    knowledge = knowledge_of_defences(plain, client, seen)
    found = analytic().run(model, seen, knowledge, SEEDS)
    assert knowledge.mask is not None
    both = (knowledge.mask["dense1.weight"] != 0) & (knowledge.mask["dense1.bias"] != 0)[..., None]
    read = both.any(1).reshape(batch.inputs.shape)
    assert read.double().mean() > 0.6
    assert_close(found.inputs[read], batch.inputs[read], rtol=1e-6, atol=1e-6)
    blank = client.scaling.unscale(torch.zeros_like(batch.inputs), len(SHAPE))
    assert torch.equal(found.inputs[~read], blank[~read])
    blind = analytic().run(model, seen, plain, SEEDS)
    assert (blind.inputs - batch.inputs)[read].abs().max() > 1e-2


def test_the_pairs_are_weighed_by_least_squares_under_noise() -> None:
    model, client = network("mlp tanh"), Client(defences=(GaussianNoise(0.01), RandomMask(0.6)))
    seen, plain, _ = play(model, draw(0, 6, 1, *SHAPE), client)
    found = analytic().run(model, seen, knowledge_of_defences(plain, client, seen), SEEDS).inputs.flatten(1)
    rows, bias = (seen.rounds[0].sent[name] for name in ("dense1.weight", "dense1.bias"))
    for trial in range(2):
        for j in range(rows.shape[-1]):
            sent = (rows[trial, :, j] != 0) & (bias[trial] != 0)
            if sent.any():
                slow = torch.linalg.lstsq(bias[trial, sent, None], rows[trial, sent, j, None]).solution
                assert float(found[trial, j]) == pytest.approx(float(slow), rel=1e-8)


def test_what_was_sent_of_an_input_without_a_pair_is_not_explained() -> None:
    model, client = network("mlp tanh"), Client()
    seen, plain, batch = play(model, draw(0, 6, 1, *SHAPE), client)
    mask = {name: torch.ones_like(value) for name, value in seen.rounds[0].sent.items()}
    whole = analytic().run(model, seen, replace(plain, mask=mask), SEEDS)
    assert_close(whole.inputs, batch.inputs, rtol=1e-8, atol=1e-8)
    assert (whole.outcome == Outcome.CONVERGED).all()
    mask["dense1.weight"][:, 1:, 0] = 0.0  # of the first input unit 0 alone was sent,
    mask["dense1.bias"][:, 0] = 0.0  # and the bias of that unit was not
    found = analytic().run(model, seen, replace(plain, mask=mask), SEEDS)
    assert (found.inputs.flatten(1)[:, 0] == 0).all()
    assert_close(found.inputs.flatten(1)[:, 1:], batch.inputs.flatten(1)[:, 1:], rtol=1e-8, atol=1e-8)
    assert (found.outcome == Outcome.EXHAUSTED).all()


@pytest.mark.parametrize("defence", [Sign(), Quantise(2)], ids=["signs", "2 bits"])
def test_zeros_of_few_bits_are_read_as_small_whether_a_mask_is_told_or_not(defence: Defence) -> None:
    model, client = network("mlp tanh"), Client(defences=(RandomMask(0.7), defence))
    seen, plain, _ = play(model, draw(0, 6, 1, *SHAPE), client)
    knowledge = knowledge_of_defences(plain, client, seen)
    assert knowledge.mask is not None
    assert_close(analytic().run(model, seen, knowledge, SEEDS).inputs, analytic().run(model, seen, plain, SEEDS).inputs)


def test_rounds_are_read_as_their_mean_on_the_pairs_sent_in_any_of_them() -> None:
    model, client = network("mlp tanh"), Client(defences=(RandomMask(0.3),), rounds=3)
    seen, plain, _ = play(model, draw(0, 6, 1, *SHAPE), client)
    knowledge = knowledge_of_defences(plain, client, seen)
    mean = {n: torch.stack([each.sent[n] for each in seen.rounds]).mean(0) for n in seen.rounds[0].sent}
    merged = replace(seen, rounds=(replace(seen.rounds[0], sent=mean),))
    found = [analytic().run(model, each, knowledge, SEEDS).inputs for each in (seen, merged)]
    assert_close(found[0], found[1])
    assert (found[0] - analytic().run(model, seen, plain, SEEDS).inputs).abs().max() > 0.05


def test_batches_are_read_alike_whether_a_mask_is_told_or_not() -> None:
    model, client = network("mlp tanh"), Client(defences=(RandomMask(0.5),))
    seen, plain, batch = play(model, draw(0, 6, 2, *SHAPE), client)
    plain = replace(plain, labels=batch.labels)
    found = [analytic().run(model, seen, k, SEEDS).inputs for k in (plain, knowledge_of_defences(plain, client, seen))]
    assert torch.equal(found[0], found[1])


# -- more than one example


def trapped(samples: int, scaling: Scaling) -> tuple[Model, Tree, Tensor]:
    """Return a ReLU network, its weights and examples such that every example alone wakes one hidden unit."""
    model = to(build("mlp", (samples + 2,), CLASSES, {"hidden": (samples + 2,)}), dtype=torch.float64)
    x = 0.1 + 0.1 * draw(0, 6, samples, samples + 2)
    x[:, range(samples), range(samples)] = 0.9 - 0.05 * draw(1, 6, samples)
    entry = torch.eye(samples + 2, dtype=torch.float64).expand(6, -1, -1)
    threshold = scaling.scale(torch.tensor([0.5], dtype=torch.float64), 1)
    weights = to(draw_parameters(model, Torch(), random.key(SEEDS)), dtype=torch.float64)
    head = draw(3, *weights["head.weight"].shape) + 0.1
    return (
        model,
        {**weights, "dense1.weight": entry, "dense1.bias": (-threshold).expand(6, samples + 2), "head.weight": head},
        x,
    )


def paired(found: Tensor, true: Tensor) -> Tensor:
    """Return the largest error of the best pairing, per trial."""
    worst = []
    for made, want in zip(found, true, strict=True):
        order = pair(squared_distances(made, want))
        worst.append((made - want[order]).abs().max())
    return torch.stack(worst)


@pytest.mark.parametrize("scaling", [Scaling(), Scaling((0.5,), (0.25,))])
@pytest.mark.parametrize("samples", [2, 4])
def test_examples_that_wake_a_unit_alone_come_back_exactly(samples: int, scaling: Scaling) -> None:
    model, weights, x = trapped(samples, scaling)
    found, batch = recover(model, x, Client(scaling=scaling), weights=weights)
    assert found.inputs.shape == batch.inputs.shape
    assert paired(found.inputs, batch.inputs).max() < 1e-8


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("power", [-80, 40])
def test_the_size_of_an_update_changes_nothing(samples: int, power: int) -> None:
    """A quotient has no unit: a loss that is scaled down hides nothing."""
    model, weights, x = trapped(samples, Scaling())
    seen, knowledge, _ = play(model, x, weights=weights)
    other = replace(
        seen, rounds=tuple(replace(r, sent={n: v * 2.0**power for n, v in r.sent.items()}) for r in seen.rounds)
    )
    first, second = (analytic().run(model, each, knowledge, SEEDS[: len(x)]) for each in (seen, other))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.outcome, second.outcome)


def test_examples_come_back_from_a_weight_update_too() -> None:
    model, weights, x = trapped(3, Scaling())
    found, batch = recover(model, x, Client(LocalTraining(rate=0.01)), weights=weights)
    assert paired(found.inputs, batch.inputs).max() < 1e-6


def test_local_epochs_leave_the_quotients_of_units_that_one_example_alone_activates() -> None:
    model, weights, x = trapped(3, Scaling())
    for epochs in (1, 4):
        client = Client(LocalTraining(epochs=epochs, batch_size=2, rate=0.01, momentum=0.5))
        found, batch = recover(model, x, client, weights=weights)
        assert paired(found.inputs, batch.inputs).max() < 1e-6


def test_a_batch_is_read_off_every_round() -> None:
    """Each round's weights leave other examples alone in a unit: rounds together show more than any of them."""
    model, data = to(build("mlp", (1, 8, 8), 10, {"hidden": (40,)}), dtype=torch.float64), load("digits")
    x = data.pictures("test", range(48)).double().unflatten(0, (6, 8))
    played = [play(model, x, seeds=range(start, start + 6)) for start in (0, 10, 20)]
    rounds, knowledge, batch = tuple(seen.rounds[0] for seen, _, _ in played), *played[0][1:]

    def exact(*chosen: Round) -> int:
        found = analytic().run(model, replace(played[0][0], rounds=chosen), knowledge, SEEDS)
        near = [
            squared_distances(want, each).amin(1) < 1e-12 for want, each in zip(batch.inputs, found.inputs, strict=True)
        ]
        return int(torch.stack(near).sum())

    assert exact(*rounds) > max(exact(one) for one in rounds) > 0


def test_fewer_units_than_examples_explain_themselves_and_are_no_success() -> None:
    found, _ = recover(network("mlp"), draw(0, 6, 12, *SHAPE))
    assert found.mismatch.max() < 1e-6
    assert (found.outcome == Outcome.EXHAUSTED).all()


@pytest.mark.parametrize("scaling", [Scaling(), Scaling((0.5,), (0.5,))])
@pytest.mark.parametrize(("samples", "least"), [(8, 0.9), (32, 0.1)])
def test_rows_of_a_relu_layer_return_the_examples_that_wake_a_unit_alone(
    samples: int, least: float, scaling: Scaling
) -> None:
    """Every quotient of a row is a candidate; mixtures leave the box or are not repeated by another unit."""
    model = build("mlp", (60,), CLASSES, {"hidden": (512,)})
    x = (draw(0, 4, samples, 60) * (draw(1, 4, samples, 60) > 0.6)).float()
    weights = draw_parameters(model, Torch(), random.key(SEEDS[:4]))
    seen, knowledge, batch = play(model, x, Client(scaling=scaling), weights, SEEDS[:4])
    found = analytic().run(model, seen, replace(knowledge, labels=batch.labels), SEEDS[:4])
    apart = [squared_distances(want, made)[range(samples), pair(squared_distances(want, made))]
             for want, made in zip(x, found.inputs.clamp(0, 1), strict=True)]  # fmt: skip
    assert (torch.stack(apart) < 1e-6).double().mean() >= least


def test_a_batch_gets_as_many_candidates_and_labels_as_it_has_examples() -> None:
    found, batch = recover(network("mlp"), draw(0, 6, 3, *SHAPE))
    assert found.inputs.shape == batch.inputs.shape
    assert found.labels.shape == batch.labels.shape
    assert found.inputs.isfinite().all()


# -- doubt


def test_noise_shows_in_the_mismatch() -> None:
    model, x = network("mlp"), draw(0, 6, 1, *SHAPE)
    clean, _ = recover(model, x)
    noisy, _ = recover(model, x, Client(defences=(GaussianNoise(1.0),)))
    assert clean.mismatch.max() < 1e-6
    assert noisy.mismatch.min() > 0.1


def test_a_bias_gradient_that_does_not_fit_the_rows_shows_in_the_mismatch() -> None:
    """The system is row_k = bias_k x: rows that are multiples of x say nothing if the factors are not the biases."""
    model = network("mlp")
    seen, knowledge, _ = play(model, draw(0, 6, 1, *SHAPE))
    first = seen.rounds[0]
    spoiled = {**first.sent, "dense1.bias": first.sent["dense1.bias"].roll(1, dims=1)}
    found = analytic().run(model, replace(seen, rounds=(replace(first, sent=spoiled),)), knowledge, SEEDS)
    assert found.mismatch.min() > 0.05


@pytest.mark.parametrize("samples", [1, 2])
def test_an_update_without_a_gradient_is_not_a_success(samples: int) -> None:
    """All units dead: nothing was recovered, and a report must not count it as converged."""
    model = network("mlp")
    seen, knowledge, batch = play(model, draw(0, 6, samples, *SHAPE))
    first = seen.rounds[0]
    dead = replace(seen, rounds=(replace(first, sent=scale(first.sent, 0.0)),))
    found = analytic().run(model, dead, replace(knowledge, labels=batch.labels), SEEDS)
    assert (found.outcome != Outcome.CONVERGED).all()


# -- refusal


@pytest.mark.parametrize("name", ["lenet_dlg", "cnn_mnist", "resnet20"])
def test_networks_that_begin_with_a_convolution_are_refused_in_one_line(name: str) -> None:
    model = build(name, (1, 8, 8), CLASSES)
    seen, knowledge, _ = play(to(model, dtype=torch.float64), draw(0, 1, 1, 1, 8, 8), seeds=[0])
    with pytest.raises(InputError, match=rf"{name}.*dense layer.*cpl, dlg") as caught:
        analytic().run(model, seen, knowledge, [0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("recipe", [analytic, linear_system, peeling])
def test_a_first_layer_without_bias_is_refused_and_the_attack_that_needs_none_is_named(
    recipe: Callable[[], Attack],
) -> None:
    layers = nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, CLASSES))
    model = to(from_module(layers, input_shape=(5,)), dtype=torch.float64)
    seen, knowledge, _ = play(model, x := draw(0, 1, 1, 5), seeds=[0])
    with pytest.raises(InputError, match=r"0\.weight.* has no bias, so its ratio is unknown: use cpa") as caught:
        recipe().run(model, seen, knowledge, [0])
    assert "\n" not in str(caught.value)
    found = cpa(iterations=5).run(model, seen, knowledge, [0]).inputs.flatten()
    assert_close(found / found.norm(), x.flatten() / x.norm())  # of one example all but the factor


def test_a_first_layer_that_stays_at_home_is_refused() -> None:
    model = replace(network("mlp"), private=frozenset({"dense1.weight", "dense1.bias"}))
    seen, knowledge, _ = play(model, draw(0, 6, 1, *SHAPE))
    with pytest.raises(InputError, match="dense1"):
        analytic().run(model, seen, knowledge, SEEDS)


def test_a_frozen_first_layer_is_refused() -> None:
    """It has no gradient, whatever the client sends."""
    layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    layers[0].requires_grad_(False)
    model = to(from_module(layers, input_shape=(5,)), dtype=torch.float64)
    seen, knowledge, _ = play(model, draw(0, 1, 1, 5), seeds=[0])
    assert set(seen.rounds[0].sent) == {"2.weight", "2.bias"}
    with pytest.raises(InputError, match="that is trained"):
        analytic().run(model, seen, knowledge, [0])


def test_the_wrong_number_of_seeds_is_refused() -> None:
    model = network("mlp")
    seen, knowledge, _ = play(model, draw(0, 6, 1, *SHAPE))
    with pytest.raises(InputError, match="seed per trial"):
        analytic().run(model, seen, knowledge, SEEDS[:2])
