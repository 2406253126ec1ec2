"""The client: what it sends against plain torch, what it never sends, and what it refuses."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, subtract, take, tensors, to
from leakscope.core.types import Batch, LocalTraining, Shares, make_batch, to_gradient
from leakscope.defences import Clip, Defence, GaussianNoise, LaplaceNoise, Sign, Sparsify
from leakscope.learning.local import draw_order
from leakscope.models import Torch, Uniform, build, draw_parameters, from_module
from small_parts import CLASSES, Affine, network

SEEDS = [11, 12, 13]
SCALING = Scaling((0.4,), (0.3,))


def weights_of(model: Model, seeds: Sequence[int] = SEEDS) -> Tree:
    return to(draw_parameters(model, Torch(), random.key(list(seeds))), dtype=torch.float64)


def batch_of(model: Model, trials: int = 3, samples: int = 4, mask: Tensor | None = None) -> Batch:
    generator = torch.Generator().manual_seed(trials)
    x = torch.rand((trials, samples, *model.input_shape), generator=generator, dtype=torch.float64)
    return make_batch(x, torch.randint(CLASSES, (trials, samples), generator=generator), classes=CLASSES, mask=mask)


def module_of(model: Model, weights: Tree) -> nn.Module:
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict({**model.buffers, **weights})
    return module


def plain_gradient(model: Model, weights: Tree, x: Tensor, y: Tensor) -> Tree:
    module = module_of(model, weights)
    F.cross_entropy(module(x), y).backward()
    return {name: p.grad for name, p in module.named_parameters()}


def plain_training(model: Model, weights: Tree, make: type, given: dict, x: Tensor, y: Tensor, batches: list) -> Tree:
    module = module_of(model, weights)
    optimiser = make(module.parameters(), **given)
    for chosen in batches:
        optimiser.zero_grad()
        F.cross_entropy(module(x[chosen]), y[chosen]).backward()
        optimiser.step()
    return {name: p.detach() for name, p in module.named_parameters()}


def sent(client: Client, model: Model, weights: Tree, batch: Batch, seeds: Sequence[int] = SEEDS) -> Tree:
    return client.observe(model, weights, batch, seeds).rounds[0].sent


# -- what is sent


@pytest.mark.parametrize("name", ["lenet_dlg", "mlp", "resnet20"])
@pytest.mark.parametrize("scaling", [Scaling(), SCALING])
def test_fedsgd_sends_the_gradient_autograd_gives_at_each_trials_own_weights(name: str, scaling: Scaling) -> None:
    model = network(name)
    weights, batch = weights_of(model), batch_of(model)
    seen = Client(scaling=scaling).observe(model, weights, batch, SEEDS)
    assert seen.shares is Shares.GRADIENT
    for i in range(3):
        x = (batch.inputs[i] - scaling.mean[0]) / scaling.std[0]
        expected = plain_gradient(model, take(weights, i), x, batch.labels[i])
        assert_close(take(seen.rounds[0].sent, i), expected, rtol=1e-9, atol=1e-11)
    assert_close(seen.rounds[0].before, weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("local", "make", "given"),
    [
        (LocalTraining(rate=0.2), torch.optim.SGD, {"lr": 0.2}),
        (LocalTraining(rate=0.1, momentum=0.9, weight_decay=0.1), torch.optim.SGD,
         {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        (LocalTraining(rate=0.01, optimiser="adam"), torch.optim.Adam, {"lr": 0.01}),
    ],
    ids=["sgd", "momentum", "adam"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["lenet_dlg", "mlp"])
def test_fedavg_sends_the_weights_a_torch_optim_loop_ends_with(
    name: str, local: LocalTraining, make: type, given: dict
) -> None:
    model = network(name)
    local = replace(local, epochs=2, batch_size=3, shuffle=False)
    weights, batch = weights_of(model), batch_of(model)
    seen = Client(local, scaling=SCALING).observe(model, weights, batch, SEEDS)
    assert seen.shares is Shares.WEIGHTS
    for i in range(3):
        x = SCALING.scale(batch.inputs[i], len(model.input_shape))
        batches = [[0, 1, 2], [3]] * 2
        expected = plain_training(model, take(weights, i), make, given, x, batch.labels[i], batches)
        assert_close(take(seen.rounds[0].sent, i), expected, rtol=1e-8, atol=1e-8)


def test_fedavg_shuffles_by_the_clients_key_and_every_trial_its_own_way() -> None:
    model, local = network("mlp"), LocalTraining(epochs=2, batch_size=1, rate=0.3)
    weights, batch = weights_of(model), batch_of(model, samples=5)
    order = draw_order(local, 5, random.fold(random.key(SEEDS), "client"))
    assert len({tuple(row.flatten().tolist()) for row in order}) == 3
    ours = sent(Client(local), model, weights, batch)
    for i in range(3):
        expected = plain_training(
            model, take(weights, i), torch.optim.SGD, {"lr": 0.3}, batch.inputs[i], batch.labels[i], order[i].tolist()
        )
        assert_close(take(ours, i), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("loss", ["mse", "softmax_cross_entropy"])
def test_the_loss_is_the_one_asked_for(loss: str) -> None:
    model = network("mlp")
    weights, batch = weights_of(model), batch_of(model)
    ours = sent(Client(loss=loss), model, weights, batch)
    module = module_of(model, take(weights, 1))
    output, y = module(batch.inputs[1]), batch.labels[1]
    value = (
        F.mse_loss(output, F.one_hot(y, CLASSES).double()) if loss == "mse" else F.cross_entropy(output.softmax(-1), y)
    )
    value.backward()
    assert_close(take(ours, 1), {n: p.grad for n, p in module.named_parameters()}, rtol=1e-9, atol=1e-12)


def test_one_sgd_step_reads_back_as_the_gradient() -> None:
    model = network()
    weights, batch = weights_of(model), batch_of(model)
    seen = Client(LocalTraining(rate=0.05)).observe(model, weights, batch, SEEDS)
    as_gradient = to_gradient(seen, 0.05)
    assert as_gradient.shares is Shares.GRADIENT
    assert_close(as_gradient.rounds[0].sent, sent(Client(), model, weights, batch), rtol=1e-9, atol=1e-11)


def test_the_dtype_of_the_weights_is_the_dtype_of_the_update() -> None:
    model = to(network(), dtype=torch.float32)
    weights, batch = to(weights_of(model), dtype=torch.float32), batch_of(model)
    for client in (Client(), Client(LocalTraining())):
        made = sent(client, model, weights, batch)
        assert {value.dtype for value in made.values()} == {torch.float32}
        exact = sent(client, model, to(weights, dtype=torch.float64), batch)
        assert_close(to(made, dtype=torch.float64), exact, rtol=1e-3, atol=1e-6)


def test_more_trials_than_are_computed_at_once_change_nothing() -> None:
    model, seeds = network("mlp"), list(range(70))
    weights, batch = weights_of(model, seeds), batch_of(model, trials=70, samples=2)
    client = Client(LocalTraining(batch_size=1), defences=(GaussianNoise(torch.linspace(0, 1, 70)),))
    whole = client.observe(model, weights, batch, seeds)
    tail = replace(client, defences=(GaussianNoise(torch.linspace(0, 1, 70)[60:]),))
    part = tail.observe(model, take(weights, slice(60, 70)), take(batch, slice(60, 70)), seeds[60:])
    assert whole.trials == 70
    assert_close(take(whole.rounds[0].sent, slice(60, 70)), part.rounds[0].sent, rtol=1e-10, atol=1e-10)


# -- unequal clients


def test_masked_examples_do_not_enter_the_gradient_and_are_not_counted() -> None:
    model = network()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]]).bool()
    weights, batch = weights_of(model), batch_of(model, mask=mask)
    seen = Client().observe(model, weights, batch, SEEDS)
    assert seen.samples.tolist() == [4, 2, 2]
    for i in range(3):
        own = plain_gradient(model, take(weights, i), batch.inputs[i][mask[i]], batch.labels[i][mask[i]])
        assert_close(take(seen.rounds[0].sent, i), own, rtol=1e-9, atol=1e-11)


def test_a_small_client_beside_a_large_one_trains_as_it_would_alone_without_shuffling() -> None:
    model, local = network("mlp"), LocalTraining(epochs=2, batch_size=2, rate=0.3, shuffle=False)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 2 + [False] * 3])
    weights, batch = weights_of(model), batch_of(model, samples=5, mask=mask)
    ours = sent(Client(local), model, weights, batch)
    for i, size in enumerate((5, 3, 2)):
        small = Batch(batch.inputs[i : i + 1, :size], batch.labels[i : i + 1, :size], mask[i : i + 1, :size])
        alone = sent(Client(local), model, take(weights, slice(i, i + 1)), small, SEEDS[i : i + 1])
        assert_close(take(ours, i), take(alone, 0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "local",
    [LocalTraining(rate=0.3), LocalTraining(rate=0.3, momentum=0.9), LocalTraining(rate=0.05, optimiser="adam")],
    ids=["sgd", "momentum", "adam"],
)
def test_a_small_client_beside_a_large_one_takes_the_steps_of_some_order_of_its_own_examples(
    local: LocalTraining,
) -> None:
    """Three examples in batches of two are one batch of two and one of one, whatever the size of the neighbour."""
    model, local = network("mlp"), replace(local, batch_size=2)
    mask = torch.tensor([[True] * 3 + [False] * 3])
    for seed in (1, 2, 3):
        weights, batch = weights_of(model, [seed]), batch_of(model, trials=1, samples=6, mask=mask)
        ours = take(sent(Client(local), model, weights, batch, [seed]), 0)
        given = {"lr": local.rate} | ({"momentum": local.momentum} if local.momentum else {})
        make = torch.optim.Adam if local.optimiser == "adam" else torch.optim.SGD
        possible = [
            plain_training(
                model, take(weights, 0), make, given, batch.inputs[0], batch.labels[0], [list(p[:2]), [p[2]]]
            )
            for p in itertools.permutations(range(3))
        ]
        nearest = min(max(float((ours[n] - p[n]).abs().max()) for n in p) for p in possible)
        assert nearest < 1e-8


# -- what never leaves


def test_private_parameters_stay_at_home_but_are_trained_and_used() -> None:
    whole = network("mlp")
    model = replace(whole, private=frozenset({"head.weight", "head.bias"}))
    weights, batch = weights_of(model), batch_of(model)
    for client in (Client(), Client(LocalTraining(epochs=2, rate=0.3))):
        seen = client.observe(model, weights, batch, SEEDS)
        assert set(seen.rounds[0].before) == set(seen.rounds[0].sent) == {"dense1.weight", "dense1.bias"}
        everything = sent(client, whole, weights, batch)
        assert_close(seen.rounds[0].sent, {n: everything[n] for n in seen.rounds[0].sent}, rtol=1e-12, atol=1e-12)
        hidden = [weights["head.weight"], weights["head.bias"], batch.inputs, batch.labels]
        shown = list(tensors(seen))
        assert not any(a.shape == b.shape and torch.equal(a, b.to(a)) for a in shown for b in hidden)


def test_the_observation_carries_no_graph_back_to_the_client() -> None:
    model = network("mlp")
    weights = {name: value.requires_grad_() for name, value in weights_of(model).items()}
    for client in (Client(), Client(LocalTraining())):
        seen = client.observe(model, weights, batch_of(model), SEEDS)
        assert not any(value.requires_grad for value in tensors(seen))


def test_nothing_given_is_changed() -> None:
    model = network()
    weights, batch = weights_of(model), batch_of(model)
    kept = copy.deepcopy((weights, batch.inputs, batch.labels, model.parameters))
    Client(LocalTraining(epochs=2, momentum=0.5), defences=(GaussianNoise(1.0),)).observe(model, weights, batch, SEEDS)
    assert_close((weights, batch.inputs, batch.labels, model.parameters), kept, rtol=0, atol=0)


# -- defences and seeds


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.3)])
def test_defences_apply_to_the_update_in_the_order_given(local: LocalTraining | None) -> None:
    model = network("mlp")
    weights, batch = weights_of(model), batch_of(model)

    def update(*defences: Affine) -> Tree:
        made = sent(Client(local, defences=defences), model, weights, batch)
        return made if local is None else subtract(weights, made)

    plain = update()
    expected = {name: 2 * value + 5 for name, value in plain.items()}
    assert_close(update(Affine(2.0, 0.0), Affine(1.0, 5.0)), expected, rtol=1e-10, atol=1e-10)
    expected = {name: 2 * (value + 5) for name, value in plain.items()}
    assert_close(update(Affine(1.0, 5.0), Affine(2.0, 0.0)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("local", [None, LocalTraining(rate=0.3)])
def test_a_sigma_for_each_trial_equals_separate_clients(local: LocalTraining | None) -> None:
    model, sigma = network("mlp"), torch.tensor([0.0, 0.1, 2.0], dtype=torch.float64)
    weights, batch = weights_of(model), batch_of(model)
    many = sent(Client(local, defences=(GaussianNoise(sigma),)), model, weights, batch)
    for i in range(3):
        one = slice(i, i + 1)
        client = Client(local, defences=(GaussianNoise(float(sigma[i])),))
        alone = sent(client, model, take(weights, one), take(batch, one), SEEDS[one])
        assert_close(take(many, one), alone, rtol=1e-9, atol=1e-11)
    bare = sent(Client(local), model, weights, batch)
    spread = [float(torch.cat([(many[n] - bare[n])[i].flatten() for n in many]).std()) for i in range(3)]
    assert spread[0] == 0
    assert 0.06 < spread[1] < 0.14
    assert 1.2 < spread[2] < 2.8


def test_two_noises_in_a_stack_are_drawn_apart() -> None:
    model = network()
    weights, batch = weights_of(model), batch_of(model)
    bare = sent(Client(), model, weights, batch)["head.weight"].flatten()
    once = sent(Client(defences=(GaussianNoise(1.0),)), model, weights, batch)["head.weight"].flatten() - bare
    both = (GaussianNoise(1.0), LaplaceNoise(1.0))
    twice = sent(Client(defences=both), model, weights, batch)["head.weight"].flatten() - bare
    assert abs(torch.corrcoef(torch.stack([once, twice - once]))[0, 1]) < 0.4
    assert 1.1 < twice.std() / once.std() < 1.75  # sqrt(2) if independent, 2 if the same


@pytest.mark.parametrize(
    ("defences", "words"),
    [
        ((GaussianNoise(1.0), GaussianNoise(1.0)), "GaussianNoise .*twice"),
        ((Sign(), Clip(1.0)), "Sign before Clip"),
        ((Sparsify(0.5), LaplaceNoise(1.0)), "Sparsify before LaplaceNoise"),
    ],
)
def test_a_senseless_stack_is_refused_when_the_client_is_made(defences: tuple[Defence, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Client(defences=defences)


def test_the_same_seeds_give_the_same_update_and_other_seeds_another() -> None:
    model = network("mlp")
    weights, batch = weights_of(model), batch_of(model)
    client = Client(LocalTraining(epochs=2, batch_size=1), defences=(GaussianNoise(0.1),))
    first = sent(client, model, weights, batch)
    assert_close(sent(client, model, weights, batch), first, rtol=0, atol=0)
    other = sent(client, model, weights, batch, [11, 99, 13])
    for i, same in enumerate((True, False, True)):
        assert torch.equal(first["head.bias"][i], other["head.bias"][i]) is same


def test_dropout_masks_come_from_each_trials_seed() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).train()
    model = to(from_module(layers, input_shape=(4,)), dtype=torch.float64)
    weights = {n: v.expand(3, *v.shape) for n, v in model.parameters.items()}
    one = batch_of(model, trials=1)
    batch = Batch(one.inputs.expand(3, -1, -1), one.labels.expand(3, -1), one.mask.expand(3, -1))
    made = sent(Client(), model, weights, batch, [7, 8, 7])["0.weight"]
    assert torch.equal(made[0], made[2])
    assert not torch.equal(made[0], made[1])


# -- what the server is told


def test_what_is_told_is_what_the_scenario_says_and_no_more() -> None:
    model = network()
    batch = batch_of(model)
    client = Client(LocalTraining(epochs=2), loss="mse", scaling=SCALING, defences=(GaussianNoise(1.0),))
    plain = attacker_knowledge(model, client, batch)
    assert (plain.input_shape, plain.classes, plain.samples) == ((1, 8, 8), CLASSES, 4)
    assert (plain.loss, plain.scaling, plain.local) == ("mse", SCALING, client.local)
    assert plain.labels is plain.order is plain.sigma is plain.mask is None
    assert attacker_knowledge(model, client, batch, local=False).local is None
    assert attacker_knowledge(model, client, batch, labels=True).labels is batch.labels


# -- what is refused


def refuse(words: str, **changed: object) -> None:
    model = network("mlp")
    given = {"model": model, "weights": weights_of(model), "batch": batch_of(model), "seeds": SEEDS} | changed
    with pytest.raises(InputError, match=words) as caught:
        Client().observe(**given)
    assert "\n" not in str(caught.value)


def test_a_batch_of_the_wrong_shape_is_refused() -> None:
    refuse(r"takes inputs \(4,\)", batch=batch_of(network("lenet_dlg")))


@pytest.mark.parametrize("label", [CLASSES, -1])
def test_a_label_outside_the_classes_is_refused(label: int) -> None:
    batch = batch_of(network("mlp"))
    refuse(r"labels must lie in 0\.\.2", batch=replace(batch, labels=torch.full_like(batch.labels, label)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float) -> None:
    weights = weights_of(network("mlp"))
    weights["head.bias"][1, 0] = value
    refuse(r"head\.bias.*NaN or infinity", weights=weights)


@pytest.mark.parametrize("seeds", [[1, 2], [1, 2, 3, 4]])
def test_the_wrong_number_of_seeds_is_refused(seeds: list[int]) -> None:
    refuse("one seed per trial", seeds=seeds)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused_as_the_users_mistake(seed: int) -> None:
    refuse("seed", seeds=[1, 2, seed])


def test_missing_weights_and_weights_without_a_trial_dimension_are_refused_by_name() -> None:
    model = network("mlp")
    without = weights_of(model)
    del without["head.bias"]
    refuse(r"head\.bias.*got nothing", weights=without)
    refuse(r"dense1\.weight.*one set per trial", weights=model.parameters)


@pytest.mark.parametrize("sigma", [torch.tensor([0.1, 0.2]), torch.tensor(0.1)])
def test_strengths_that_do_not_match_the_trials_are_refused(sigma: Tensor) -> None:
    model = network("mlp")
    with pytest.raises(InputError, match="sigma"):
        Client(defences=(GaussianNoise(sigma),)).observe(model, weights_of(model), batch_of(model), SEEDS)


def test_an_unknown_loss_is_refused_with_the_near_names() -> None:
    with pytest.raises(InputError, match=r"'crossentropy'.*'cross_entropy'"):
        Client(loss="crossentropy")


def test_uniform_weights_of_dlg_give_every_trial_a_gradient() -> None:
    """The published initialisation: no trial may silently send zeros."""
    model = network()
    weights = to(draw_parameters(model, Uniform(), random.key(SEEDS)), dtype=torch.float64)
    made = sent(Client(), model, weights, batch_of(model))
    assert all(bool((value.flatten(1).abs().amax(1) > 0).all()) for value in made.values())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_update_over_its_length_is_a_gradient_for_every_size_of_client(momentum: float) -> None:
    model = build("mlp", (1, 8, 8), 10, {"hidden": [16]})
    seeds = [0, 1]
    weights = draw_parameters(model, Uniform(0.3), random.key(seeds))
    inputs = random.uniform(random.key(seeds), (4, 1, 8, 8))
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    batch = make_batch(inputs, torch.zeros(2, 4, dtype=torch.int64), classes=10, mask=mask)
    local = LocalTraining(epochs=4, batch_size=1, rate=1e-5, momentum=momentum)
    sent = Client(local=local).observe(model, weights, batch, seeds)
    made = to_gradient(sent, local.length([4, 1])).rounds[0].sent
    true = Client().observe(model, weights, batch, seeds).rounds[0].sent
    lengths = [
        torch.stack([v.flatten(1).square().sum(1) for v in tree.values()]).sum(0).sqrt() for tree in (made, true)
    ]
    torch.testing.assert_close(lengths[0] / lengths[1], torch.ones(2), rtol=0.05, atol=0)
