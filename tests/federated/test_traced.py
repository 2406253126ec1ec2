"""Traced rounds: the bits of the transformed ones, each kind of group with a graph of its own, and no graph where there can be none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.tree import Tree
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset
from leakscope.data.partition import IID
from leakscope.defences import DeepCompression, GaussianNoise
from leakscope.defences.on_model import Polarisation
from leakscope.federated import Everyone, Federation, Form, Holdings, State, begin, deal, play_round, traced
from leakscope.federated.decay import Decay
from leakscope.kernels import graph_cache
from leakscope.kernels.windows import Windowed
from leakscope.models import build, from_module
from leakscope.models.batch_norm import in_train_mode

SGD = LocalTraining(epochs=1, batch_size=2, rate=0.2)
ONE_STEP = LocalTraining(rate=0.2)
ADAM = LocalTraining(epochs=1, batch_size=2, rate=0.01, optimiser="adam")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Trace at the second group of a kind, forget all graphs before and after, and count what is traced."""
    monkeypatch.setattr(traced, "TRACE_AFTER", 1)
    real, made = traced._traced, []

    def counted(*args: object) -> object:
        made.append(1)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(traced, "_traced", counted)
    graph_cache.forget()
    yield made
    graph_cache.forget()


def pictures(clients: int, *, each: int = 4) -> Holdings:
    number = clients * each
    x = (255 * random.uniform(random.key(1), (number + 4, 1, 8, 8))).byte().numpy()
    y = (np.arange(number + 4) % 3).astype(np.int64)
    parts = {"x_train": x[:number], "y_train": y[:number], "x_test": x[number:], "y_test": y[number:]}
    return deal(Dataset(name="noise", kind="image", class_names=("a", "b", "c"), **parts), IID(clients=clients))


def network(name: str = "lenet_dlg", **settings: object) -> Model:
    return build(name, (1, 8, 8), 3, settings)


def normalised() -> Model:
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3)).eval()
    return in_train_mode(from_module(layers, input_shape=(1, 8, 8)))


def small() -> Model:
    return network("mlp", hidden=(4,))


def dropping() -> Model:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    return from_module(layers, input_shape=(1, 8, 8))


class Recurrent(nn.Module):
    """A GRU over the rows: vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.rows(x[:, 0])[0][:, -1])
        return made


def recurrent() -> Model:
    return from_module(Recurrent().eval(), input_shape=(1, 8, 8))


def played(
    federation: Federation, model: Model, holdings: Holdings, *, trace: bool, split: bool = False, rounds: int = 3
) -> State:
    state = begin(federation, model, holdings.clients)
    around = Windowed if model.name.startswith("lenet") else nullcontext
    for _ in range(rounds):
        state = play_round(federation, model, holdings, state, form=Form(around, split, trace))[0]
    return state


def everything(state: State) -> list[Tensor]:
    memory = [value for each in state.memory for value in each.values()]
    return [*state.weights.values(), *state.buffers.values(), *state.private.values(), *memory]


@pytest.mark.parametrize(
    ("client", "make", "split"),
    [
        (Client(SGD), network, False),
        pytest.param(Client(ADAM), network, True, marks=pytest.mark.slow),
        (Client(SGD), normalised, False),
        pytest.param(Client(SGD), dropping, True, marks=pytest.mark.slow),
        pytest.param(
            Client(SGD, defences=(GaussianNoise(0.1), DeepCompression(drop=0.5))), small, True, marks=pytest.mark.slow
        ),
        (Client(SGD, on_model=Polarisation(bits=8)), small, False),
    ],
    ids=["sgd", "adam, split", "batch norm", "dropout, split", "defences, split", "private head"],
)
def test_a_traced_round_has_the_bits_of_a_transformed_one(
    client: Client, make: Callable[[], Model], split: bool, at_once: list[int]
) -> None:
    model, holdings = make(), pictures(4)
    federation = Federation(client=client, selection=Everyone(), together=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        slow, fast = (played(federation, model, holdings, trace=trace, split=split) for trace in (False, True))
    finally:
        torch.set_num_threads(threads)
    assert len(at_once) == 1
    for a, b in zip(everything(slow), everything(fast), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_what_changes_the_arithmetic_gets_a_graph_of_its_own(at_once: list[int]) -> None:
    model, holdings = small(), pictures(2)
    first = Federation(client=Client(SGD), selection=Everyone(), together=2)
    other = Federation(client=Client(LocalTraining(epochs=1, batch_size=2, rate=0.1)), selection=Everyone(), together=2)
    for federation, given, wanted in ((first, model, 1), (other, model, 2), (first, small(), 3), (first, model, 3)):
        slow, fast = (played(federation, given, holdings, trace=trace) for trace in (False, True))
        assert len(at_once) == wanted
        assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))
    played(first, model, pictures(3), trace=True)  # a group of two and a group of one
    assert len(at_once) == 4


class Plain:
    """A defence whose text is its address."""

    def __init__(self, by: float) -> None:
        self.by = by

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        del key
        return {name: value * self.by for name, value in update.items()}


@dataclass(frozen=True, eq=False)
class Long:
    """A defence whose text leaves out most of what it holds."""

    by: np.ndarray

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        del key
        return {name: value * float(self.by[1000]) for name, value in update.items()}


@dataclass(frozen=True, eq=False)
class Moved:
    """A defence on pictures that holds a tensor, which no client takes as its own."""

    by: Tensor

    def protect_data(self, pictures: Tensor, key: Tensor) -> Tensor:
        del key
        return pictures + self.by

    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        return ()


def of_one_name(by: float) -> object:
    @dataclass(frozen=True)
    class Mine:
        def protect_update(self, update: Tree, key: Tensor) -> Tree:
            del key
            return {name: value * by for name, value in update.items()}

    return Mine()


def at_the_address_of(old: int, by: float) -> Plain:
    """Return a defence, where the address of another has come free there if it can be had."""
    held = []
    for _ in range(20_000):
        made = Plain(by)
        if id(made) == old:
            break
        held.append(made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda by: Client(ONE_STEP, defences=(of_one_name(by),)),
        lambda by: Client(ONE_STEP, defences=(Long(np.where(np.arange(3000) == 1000, by, 1.0)),)),
        lambda by: Client(ONE_STEP, on_data=Moved(torch.tensor(by))),
    ],
    ids=["classes of one name", "a long array", "a tensor on data"],
)
def test_pieces_of_the_same_text_have_graphs_of_their_own(make: Callable[[float], Client], at_once: list[int]) -> None:
    model, holdings = small(), pictures(2)
    for by, wanted in ((1.0, 1), (0.25, 2)):
        federation = Federation(client=make(by), selection=Everyone(), together=2)
        slow, fast = (played(federation, model, holdings, trace=trace) for trace in (False, True))
        assert len(at_once) == wanted
        assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))


@pytest.mark.slow
def test_a_defence_in_the_place_of_another_that_is_gone_has_a_graph_of_its_own() -> None:
    model, holdings = small(), pictures(2)

    def federation_of(defence: Plain) -> Federation:
        return Federation(client=Client(ONE_STEP, defences=(defence,)), selection=Everyone(), together=2)

    first = Plain(1.0)
    played(federation_of(first), model, holdings, trace=True)
    old = id(first)
    del first
    federation = federation_of(at_the_address_of(old, 0.25))
    slow, fast = (played(federation, model, holdings, trace=trace) for trace in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))


def test_a_rate_that_decays_again_and_again_is_not_traced(at_once: list[int]) -> None:
    model, holdings = small(), pictures(2)
    federation = Federation(client=Client(SGD), selection=Everyone(), together=2, decay=Decay(factor=0.9, every=1))
    slow, fast = (played(federation, model, holdings, trace=trace) for trace in (False, True))
    assert not at_once
    assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))


def test_long_local_training_is_not_traced(at_once: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "MOST_STEPS", 1)
    played(Federation(client=Client(SGD), selection=Everyone(), together=2), small(), pictures(2), trace=True)
    assert not at_once


def test_a_network_that_cannot_be_lifted_trains_without_a_graph(at_once: list[int]) -> None:
    model, holdings = recurrent(), pictures(2, each=2)
    federation = Federation(client=Client(SGD), selection=Everyone(), together=2)
    slow, fast = (played(federation, model, holdings, trace=trace, rounds=3) for trace in (False, True))
    assert len(at_once) == 1  # tried once, not in every round
    assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))


def test_whatever_stops_the_tracing_clients_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental import proxy_tensor

    def fails(*_: object) -> Callable[..., object]:
        raise AssertionError("as the tracer's own checks do")

    monkeypatch.setattr(proxy_tensor, "make_fx", fails)
    model, holdings = small(), pictures(2)
    federation = Federation(client=Client(ONE_STEP), selection=Everyone(), together=2)
    slow, fast = (played(federation, model, holdings, trace=trace) for trace in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(everything(slow), everything(fast), strict=True))


@pytest.mark.slow
def test_old_graphs_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "MOST", 2)
    for clients in (1, 2, 3):
        federation = Federation(client=Client(SGD), selection=Everyone(), together=clients)
        played(federation, small(), pictures(clients), trace=True, rounds=2)
    assert len(graph_cache._CACHE) == 2
