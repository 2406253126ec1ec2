"""Recorded kernels: what a function fetches from the host is fetched once, and a recording gives the bits of its function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.core.types import LocalTraining
from leakscope.data import Dataset
from leakscope.data.partition import IID
from leakscope.defences import DeepCompression, GaussianNoise
from leakscope.defences.on_model import Polarisation
from leakscope.federated import (
    Everyone,
    Federation,
    Form,
    State,
    begin,
    deal,
    play_round,
    traced,
)
from leakscope.kernels import graph_cache
from leakscope.kernels import recordings as captured_module
from leakscope.kernels.recordings import Fetched, captured, recorded
from leakscope.models import build

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _noisy(weights: Tree, key: Tensor) -> Tree:
    drawn = random.normal(random.fold(key, 3), (4,))
    constant = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(drawn.device) + torch.as_tensor(2, device=drawn.device)
    return {name: value + drawn + constant for name, value in weights.items()}


def test_what_is_fetched_is_given_again_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_module, "crossed", lambda given, _: isinstance(given, int))  # as_tensor(2) alone
    arguments = {"w": torch.randn(3, 4)}, random.key([0, 1, 2])
    with Fetched() as first:
        plain = lift(_noisy)(*arguments)
    assert len(first.values) > 1
    assert sum(value is not None for value in first.values) == 1
    with Fetched(first.values) as second:
        again = lift(_noisy)(*arguments)
    assert torch.equal(plain["w"], again["w"])
    assert all(a is b for a, b in zip(first.values, second.values, strict=True))
    other = [None if value is None else value + 1 for value in first.values]
    with Fetched(other):  # it must not fetch anew
        assert_close(lift(_noisy)(*arguments)["w"], plain["w"] + 1)


@needs_cuda
def test_a_recording_gives_the_bits_of_the_function_for_new_arguments() -> None:
    one = {"w": torch.randn(3, 4, device="cuda")}, random.key([0, 1, 2], "cuda")
    replay = captured(lift(_noisy), one)
    for seed in (3, 9):
        new = {"w": torch.randn(3, 4, device="cuda")}, random.key([seed, seed + 1, seed + 2], "cuda")
        assert torch.equal(replay(*new)["w"], lift(_noisy)(*new)["w"])


@needs_cuda
@pytest.mark.parametrize(
    "pieces",
    [{"defences": (GaussianNoise(0.1), DeepCompression(drop=0.5))}, {"on_model": Polarisation(bits=8)}],
    ids=["defences", "private head"],
)
def test_a_recorded_round_has_the_bits_of_a_plain_one(pieces: dict[str, object]) -> None:
    x = (255 * random.uniform(random.key(1), (20, 1, 8, 8))).byte().numpy()
    y = (np.arange(20) % 3).astype(np.int64)
    parts = {"x_train": x[:16], "y_train": y[:16], "x_test": x[16:], "y_test": y[16:]}
    holdings = deal(Dataset(name="noise", kind="image", class_names=("a", "b", "c"), **parts), IID(clients=4))
    model = build("mlp", (1, 8, 8), 3, {"hidden": (4,)})
    client = Client(LocalTraining(epochs=2, batch_size=2, rate=0.2), **pieces)  # type: ignore[arg-type]
    federation = Federation(client=client, selection=Everyone(), together=2)

    def played(trace: bool) -> State:
        start = begin(federation, model, 4)
        state = begin(federation, model, 4, weights={name: value.cuda() for name, value in start.weights.items()})
        for _ in range(4):
            state = play_round(federation, model, holdings, state, form=Form(traced=trace))[0]
        return state

    graph_cache.forget()
    slow, fast = played(False), played(True)
    assert [staged.graph is not None for staged in graph_cache._CACHE.values()] == [True], "it must have been recorded"
    traced.forget()
    for name, value in slow.weights.items():
        assert torch.equal(value, fast.weights[name])


def test_a_card_that_is_half_full_makes_no_more_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(captured_module, "captured", lambda call, _: made.append(call) or call)
    for free, wanted in ((40, 0), (60, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 100))
        recording = recorded(lambda x: x, (torch.ones(2),))
        assert len(made) == wanted
        assert (recording is None) is (wanted == 0)


def test_what_a_device_forbids_leaves_the_function_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbids(*_: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured_module, "captured", forbids)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    assert recorded(lambda x: x, (torch.ones(2),)) is None
