"""Rounds of a federation against a slow, obvious one: a module and a torch optimiser for every client, one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.clients import Client
from leakscope.clients.client import Answer
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, lift, norm, take, to
from leakscope.core.types import LocalTraining, direction
from leakscope.data import Dataset
from leakscope.data.partition import IID
from leakscope.defences import Clip, DeepCompression, GaussianNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.federated import (
    Averaging,
    Count,
    Decay,
    Deltas,
    DistributedSGD,
    Everyone,
    Federation,
    Form,
    Holdings,
    RoundRobin,
    Server,
    Share,
    State,
    begin,
    client_seeds,
    deal,
    is_finite,
    measure_utility,
    pack,
    pack_private,
    parameters_of,
    play_round,
    train_groups,
    unpack,
    who_answers,
)
from leakscope.federated.rounds import draw_orders, trimmed
from leakscope.learning.local import draw_order
from leakscope.learning.polarisation import CODES
from leakscope.models import build, from_module
from leakscope.models.batch_norm import in_eval_mode, in_train_mode

SIZES = (3, 1, 5, 2, 4)
LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.2)
SCALING = Scaling((0.3,), (0.5,))


def dataset(examples: int, *, test: int = 12, shape: tuple[int, ...] = (6,)) -> Dataset:
    """Return a small table with a rule to learn; a class is missing from it."""
    x = random.uniform(random.key(1), (examples + test, *shape)).numpy()
    y = (x.reshape(len(x), -1)[:, 0] * 3).astype(np.int64)
    names = ("a", "b", "c", "never")
    return Dataset(
        name="rows",
        kind="table",
        x_train=x[:examples],
        y_train=y[:examples],
        x_test=x[examples:],
        y_test=y[examples:],
        class_names=names,
    )


def holdings(sizes: Sequence[int] = SIZES) -> Holdings:
    ends = torch.tensor(sizes).cumsum(0).tolist()
    places = random.permutation(random.key(2), ends[-1])
    shares = tuple(places[end - size : end] for size, end in zip(sizes, ends, strict=True))
    return Holdings(dataset(ends[-1]), "train", shares)


def network(*, norm: bool = False) -> Model:
    if not norm:
        return to(build("mlp", (6,), 4, {"hidden": (5,), "activation": "tanh"}), dtype=torch.float64)
    layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).eval()
    return to(from_module(layers, input_shape=(6,)), dtype=torch.float64)


def federation(**changes: object) -> Federation:
    given = {"client": Client(local=LOCAL, scaling=SCALING), "selection": Everyone(), "seed": 4, "together": 2}
    return Federation(**{**given, **changes})  # type: ignore[arg-type]


def slow_client(
    model: Model, weights: Tree, buffers: Tree, client: Client, x: Tensor, y: Tensor, key: Tensor, *, training: bool
) -> tuple[Tree, Tree, float]:
    """Return weights and buffers after an ordinary loop of torch.optim.SGD, and the number of examples."""
    module = copy.deepcopy(model.apply.module).double().train(training)
    module.load_state_dict({**weights, **buffers})
    x = SCALING.scale(x, 1).double()
    assert client.local is not None
    optimiser = torch.optim.SGD(module.parameters(), lr=client.local.rate)
    for row in draw_order(client.local, len(x), key).tolist():
        batch = [i for i in row if i >= 0]
        optimiser.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    return {n: state[n] for n in weights}, {n: state[n] for n in buffers}, float(len(x))


def slow_round(
    fed: Federation, model: Model, held: Holdings, state: State, *, training: bool = False
) -> tuple[Tree, Tree]:
    """Return the weighted mean of the clients' weights and of their float buffers: sum_k n_k w_k / sum_k n_k."""
    answers = []
    for client in who_answers(fed, state.rounds, held.clients):
        x, y = (take_(held.part, held.shares[client]) for take_ in (held.data.pictures, held.data.labels))
        key = random.fold(random.key(client_seeds(fed, state.rounds, [client])[0]), "client")
        trainer = fed.client_at(state.rounds)
        answers.append(slow_client(model, state.weights, state.buffers, trainer, x, y, key, training=training))
    total = sum(n for _, _, n in answers)
    weights = {name: sum(w[name] * n for w, _, n in answers) / total for name in state.weights}
    buffers = {name: sum(b[name] * n for _, b, n in answers) / total for name in state.buffers}
    return weights, buffers


# -- against the slow, obvious federation


@pytest.mark.parametrize("together", [1, 2, 10])
@pytest.mark.parametrize("server", [Averaging(), Deltas()])
def test_fedavg_is_the_mean_of_one_by_one_training_weighted_by_examples(server: Server, together: int) -> None:
    held, model, fed = holdings(), network(), federation(server=server, together=together)
    state = begin(fed, model, held.clients)
    for _ in range(3):
        expected, _ = slow_round(fed, model, held, state)
        state, played = play_round(fed, model, held, state)
        assert_close(state.weights, expected, rtol=1e-10, atol=1e-12)
        assert played.examples == sum(SIZES)
    assert state.rounds == 3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_part_of_the_clients_on_each_core_gives_the_same_round(threads: int) -> None:
    held, model, before = holdings(), network(), torch.get_num_threads()
    fed = federation(client=Client(local=LOCAL, scaling=SCALING, on_model=Polarisation(bits=3)), together=2)
    state = begin(fed, model, held.clients)
    expected, _ = play_round(fed, model, held, state)
    heard: list[tuple[int, int]] = []
    torch.set_num_threads(threads)
    try:
        made, _ = play_round(
            fed, model, held, state, form=Form(split=True), progress=lambda *counts: heard.append(counts)
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_close(made.weights, expected.weights, rtol=1e-11, atol=1e-13)
    assert_close(made.private, expected.private, rtol=1e-11, atol=1e-13)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (5, 5)


def test_a_part_of_the_clients_counts_alone_and_stragglers_do_not() -> None:
    held, model = holdings(), network()
    for selection in (Share(share=0.4), Count(number=3, replies=0.6), Everyone(replies=0.5)):
        fed = federation(selection=selection)
        state = begin(fed, model, held.clients)
        for _ in range(4):
            answered = who_answers(fed, state.rounds, held.clients)
            expected = slow_round(fed, model, held, state)[0] if answered else state.weights
            state, played = play_round(fed, model, held, state)
            assert played.answered == answered
            assert_close(state.weights, expected, rtol=1e-10, atol=1e-12)


def test_distributed_sgd_is_one_step_on_all_examples_of_the_round() -> None:
    """Weighted by examples, the mean of the clients' gradients is the gradient of the mean over all examples."""
    held, model = holdings(), network()
    fed = federation(client=Client(scaling=SCALING), server=DistributedSGD(rate=0.5), decay=Decay(factor=0.5, at=(1,)))
    state = begin(fed, model, held.clients)
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict(model.parameters)
    x = SCALING.scale(held.data.pictures("train", slice(None)), 1).double()
    y = held.data.labels("train", slice(None))
    for rate in (0.5, 0.25):
        optimiser = torch.optim.SGD(module.parameters(), lr=rate)
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
        state, _ = play_round(fed, model, held, state)
        assert_close(state.weights, dict(module.named_parameters()), rtol=1e-10, atol=1e-12)


def test_round_robin_hands_the_model_on() -> None:
    held, model, fed = holdings(), network(), federation(server=RoundRobin())
    state = begin(fed, model, held.clients)
    weights = state.weights
    for client in range(held.clients):
        x, y = (take_("train", held.shares[client]) for take_ in (held.data.pictures, held.data.labels))
        key = random.fold(random.key(client_seeds(fed, 0, [client])[0]), "client")
        weights = slow_client(model, weights, {}, fed.client, x, y, key, training=False)[0]
    state, _ = play_round(fed, model, held, state)
    assert_close(state.weights, weights, rtol=1e-10, atol=1e-12)


def test_train_mode_batch_norm_averages_weights_and_statistics() -> None:
    held, model = holdings((4, 2, 6)), network(norm=True)
    fed = federation()
    state, trained = begin(fed, model, held.clients), in_train_mode(model)
    for number in range(2):
        weights, buffers = slow_round(fed, model, held, state, training=True)
        state, _ = play_round(fed, trained, held, state)
        assert_close(state.weights, weights, rtol=1e-9, atol=1e-11)
        for name, value in state.buffers.items():
            if value.is_floating_point():
                assert_close(value, buffers[name], rtol=1e-9, atol=1e-11)
        # the largest client takes ceil(6 / 2) steps in each of 2 epochs
        assert state.buffers["1.num_batches_tracked"].item() == 6 * (number + 1)
    assert not torch.equal(state.buffers["1.running_mean"], model.buffers["1.running_mean"])


def test_eval_mode_buffers_stay_to_the_bit() -> None:
    held, model, fed = holdings(), network(norm=True), federation()
    state, _ = play_round(fed, model, held, begin(fed, model, held.clients))
    assert all(torch.equal(value, model.buffers[name]) for name, value in state.buffers.items())


# -- the client of a federation is the client that attacks meet


def answers_of(fed: Federation, model: Model, held: Holdings, state: State, clients: Sequence[int]) -> Answer:
    """The answers of some clients to the global model of `state`, as one group."""
    [(_, answer)] = train_groups(fed, model, held, state, [clients])
    return answer


@pytest.mark.parametrize("defences", [(), (GaussianNoise(0.1),), (Clip(0.5), Sparsify(drop=0.5))])
def test_what_a_client_sends_is_what_an_attacker_observes(defences: tuple) -> None:
    held, model = holdings(), network()
    fed = federation(client=Client(local=LOCAL, scaling=SCALING, defences=defences))
    state = begin(fed, model, held.clients)
    answer = answers_of(fed, model, held, state, [2, 0, 1])
    for place, client in enumerate([2, 0, 1]):
        weights = {name: value[None] for name, value in state.weights.items()}
        seen = fed.client.observe(model, weights, held.batch([client]), client_seeds(fed, 0, [client]))
        sent = direction(seen.rounds[0], seen.shares)
        assert_close(take(answer.update, place), take(sent, 0), rtol=1e-9, atol=1e-11)


def test_defences_act_on_what_the_server_averages() -> None:
    held, model = holdings(), network()
    plain, clipped = (
        play_round(fed, model, held, begin(fed, model, 5))[0]
        for fed in (federation(), federation(client=Client(local=LOCAL, scaling=SCALING, defences=(Clip(1e-3),))))
    )
    away = {name: clipped.weights[name] - model.parameters[name] for name in model.parameters}
    assert norm(away) < 1.0001e-3
    assert norm({n: plain.weights[n] - model.parameters[n] for n in model.parameters}) > 1e-2


def test_a_strength_for_each_client() -> None:
    held, model = holdings(), network()
    bounds = torch.tensor([1e-1, 1e-2, 1e-3, 1e-4, 1e-5], dtype=torch.float64)
    fed = federation(client=Client(local=LOCAL, scaling=SCALING, defences=(Clip(bounds),)))
    answer = answers_of(fed, model, held, begin(fed, model, 5), [4, 1])
    assert_close(lift(norm)(answer.update), bounds[[4, 1]], rtol=1e-6, atol=0)


def test_a_defence_that_remembers_goes_on_from_round_to_round_for_each_client() -> None:
    """What compression holds back in one round leaves in a later one, also when the client pauses between."""
    held, model = holdings(), network()
    fed = federation(
        client=Client(local=LOCAL, scaling=SCALING, defences=(DeepCompression(drop=0.9),)),
        selection=Count(number=2),
    )
    state = begin(fed, model, held.clients)
    memory = {client: take(state.memory, client) for client in range(held.clients)}
    for _ in range(4):
        answered = who_answers(fed, state.rounds, held.clients)
        answer = answers_of(fed, model, held, state, answered)
        state, _ = play_round(fed, model, held, state)
        for place, client in enumerate(answered):
            memory[client] = take(answer.state, place)
        for client in range(held.clients):
            assert_close(take(state.memory, client), memory[client], rtol=1e-9, atol=1e-12)
    assert any(value.abs().sum() > 0 for value in state.memory[0].values())


def test_steps_are_as_wide_as_the_fullest_batch_of_any_client() -> None:
    keys = random.fold(random.key([0, 1]), "client")
    order = draw_orders(LocalTraining(epochs=2, batch_size=4, rate=0.1), torch.tensor([5, 6]), keys)
    steps = trimmed(order)
    assert order.shape == (2, 4, 4)
    assert [step.shape[1] for step in steps] == [4, 2, 4, 2]
    for number, step in enumerate(steps):
        assert torch.equal(step, order[:, number, : step.shape[1]])
        assert (order[:, number, step.shape[1] :] == -1).all()


# -- private parameters


def test_private_parameters_stay_with_their_client() -> None:
    model = replace(network(), private=frozenset({"head.weight", "head.bias"}))
    held, fed = holdings(), federation(selection=Count(number=2))
    state = begin(fed, model, held.clients)
    assert set(state.weights).isdisjoint(model.private)
    before = state.private["head.weight"]
    state, played = play_round(fed, model, held, state)
    moved = (state.private["head.weight"] != before).flatten(1).any(1)
    assert [client for client in range(5) if moved[client]] == list(played.answered)
    assert set(parameters_of(model, state)) == set(model.parameters)
    with pytest.raises(InputError, match="private parameters"):
        begin(federation(client=Client(), server=DistributedSGD()), model, 5)


def test_secret_heads_are_drawn_once_trained_at_home_and_never_averaged() -> None:
    model, held = network(), holdings()
    guard = Polarisation(alpha2=0.5, bits=3)
    fed = federation(client=Client(local=LOCAL, scaling=SCALING, on_model=guard), selection=Count(number=3))
    state = begin(fed, model, held.clients)
    assert set(state.weights) == set(model.parameters)
    secrets = list(state.private.values())
    assert all(not torch.equal(value[0], value[1]) for value in secrets)
    after, played = play_round(fed, model, held, state)
    for name, value in state.private.items():
        moved = (after.private[name] != value).flatten(1).any(1).tolist()
        expected = [False] * 5 if name == CODES else [client in played.answered for client in range(5)]
        assert moved == expected, name
    plain, _ = play_round(federation(selection=Count(number=3)), model, held, begin(federation(), model, 5))
    backbone = next(iter(model.parameters))
    assert not torch.allclose(plain.weights[backbone], after.weights[backbone], rtol=1e-6)


# -- saving


def test_a_state_that_was_saved_and_read_goes_on_to_the_same_bits() -> None:
    held, model = holdings(), to(network(norm=True), dtype=torch.float32)
    fed = federation(client=Client(local=LOCAL, defences=(DeepCompression(drop=0.5),)), selection=Everyone(replies=0.7))
    trained, state = in_train_mode(model), begin(fed, model, held.clients)
    for _ in range(2):
        state, _ = play_round(fed, trained, held, state)
    first = begin(fed, model, held.clients)
    again, about = unpack(pack(state, {"history": [1, 2]}), first, pack_private(state))
    assert about == {"history": [1, 2]}
    for _ in range(2):
        state, again = (play_round(fed, trained, held, s)[0] for s in (state, again))
    assert again.rounds == state.rounds == 4
    for one, other in (
        (state.weights, again.weights),
        (state.buffers, again.buffers),
        (state.memory[0], again.memory[0]),
    ):
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_two_files_of_different_rounds_make_no_state() -> None:
    held, fed = holdings(), federation(client=Client(local=LOCAL, on_model=Polarisation(bits=3)))
    first = begin(fed, network(), held.clients)
    later, _ = play_round(fed, network(), held, first)
    assert pack_private(begin(federation(), network(), held.clients)) is None
    with pytest.raises(InputError, match=r"round 1, .*round 0"):
        unpack(pack(later, {}), first, pack_private(first))
    with pytest.raises(InputError, match="private file is"):
        unpack(pack(later, {}), first)


def test_a_state_of_another_federation_is_refused() -> None:
    fed = federation()
    other = build("mlp", (6,), 4, {"hidden": (7,)})
    with pytest.raises(InputError, match="another federation"):
        unpack(pack(begin(fed, network(), 5), {}), begin(fed, other, 5))
    for bad in (b"", b"abc", pack(begin(fed, network(), 5), {})[:-7], b'\x08\0\0\0\0\0\0\0{"a": 1}'):
        with pytest.raises(InputError, match="readable state"):
            unpack(bad, begin(fed, network(), 5))


# -- accuracy


def test_training_helps_and_utility_is_counted_by_hand() -> None:
    data = dataset(200, test=100)
    held = deal(data, IID(clients=10), seed=3)
    model = network()
    fed = Federation(
        client=Client(local=LocalTraining(epochs=5, batch_size=4, rate=0.5)), selection=Share(share=0.5), seed=1
    )
    state = begin(fed, model, held.clients)
    first = measure_utility(model, state.weights, state.buffers, data)
    for _ in range(6):
        state, _ = play_round(fed, model, held, state)
    last = measure_utility(model, state.weights, state.buffers, data)
    assert last.accuracy.value > max(0.8, first.accuracy.value)
    assert last.loss < first.loss
    module = copy.deepcopy(model.apply.module).double()
    module.load_state_dict(state.weights)
    output = module(data.pictures("test", slice(None)).double())
    labels = data.labels("test", slice(None))
    assert last.correct == int((output.argmax(1) == labels).sum())
    assert last.loss == pytest.approx(F.cross_entropy(output, labels).item(), rel=1e-9)
    assert last.accuracy.low < last.accuracy.value < last.accuracy.high
    assert is_finite(state)
    assert not is_finite(replace(state, weights={"w": torch.tensor([1.0, float("nan")])}))


def test_utility_is_measured_without_dropout() -> None:
    layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4)).train()
    model = to(from_module(layers, input_shape=(6,)), dtype=torch.float64)
    used = in_eval_mode(model)
    x = torch.ones(3, 6, dtype=torch.float64)
    out = used.apply(used.parameters, {}, x, random.key(0))[0]
    assert_close(out, F.linear(x, used.parameters["1.weight"], used.parameters["1.bias"]))


# -- bad input


def test_the_same_seed_gives_the_same_federation_and_another_another() -> None:
    held, model = holdings(), network()
    made = {}
    for seed in (0, 0, 1):
        fed = federation(seed=seed, selection=Share(share=0.4))
        state = begin(fed, model, held.clients)
        for _ in range(2):
            state, _ = play_round(fed, model, held, state)
        made.setdefault(seed, []).append(torch.cat([v.flatten() for v in state.weights.values()]))
    assert torch.equal(*made[0])
    assert not torch.equal(made[0][0], made[1][0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: federation(server=DistributedSGD()), "fedsgd .*client.local"),
        (lambda: federation(client=Client()), "fedavg .*client.local"),
        (lambda: federation(client=Client(local=LOCAL, rounds=2)), "client.rounds at 1"),
        (lambda: federation(together=0), "Federation.together .*got 0"),
        (lambda: federation(seed=-1), r"Federation.seed .*got -1"),
        (lambda: begin(federation(selection=Count(number=9)), network(), 5), "5 clients .*got 9"),
        (
            lambda: begin(federation(client=Client(local=LOCAL, defences=(Clip(torch.ones(3)),))), network(), 5),
            r"defences\[0\].bound .*got \(3,\)",
        ),
        (
            lambda: Holdings(dataset(4), "train", (torch.tensor([0]), torch.tensor([], dtype=torch.long))),
            "at least one",
        ),
    ],
)
def test_what_cannot_work_is_told_in_one_line(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=said) as error:
        make()
    assert "\n" not in str(error.value)
