"""The server's rules by hand, and the means of what clients send."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.federated.decay import Decay
from leakscope.federated.servers import (
    SERVERS,
    Averaging,
    Deltas,
    DistributedSGD,
    RoundRobin,
    Server,
    add_weighted,
    average_buffers,
    name_of,
)

BEFORE = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
UPDATES = {"w": torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)}
COUNTS = torch.tensor([1, 3])


def stepped(server: Server, decay: float = 1.0) -> Tree:
    mean = add_weighted(None, server.weigh(COUNTS), server.read(BEFORE, UPDATES))
    return server.step(BEFORE, mean, decay)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (DistributedSGD(rate=0.1), [1 - 0.1 * 0.25, 2 - 0.1 * 3]),
        (Averaging(), [0.25 * 0 + 0.75 * 1, 0.25 * 2 + 0.75 * -2]),
        (Deltas(), [0.75, -1.0]),
        (Deltas(rate=0.5), [1 - 0.5 * 0.25, 2 - 0.5 * 3]),
        (Deltas(equal=True), [0.5, 0.0]),
    ],
)
def test_each_rule_by_hand(server: Server, expected: list[float]) -> None:
    assert_close(stepped(server)["w"], torch.tensor(expected, dtype=torch.float64))


def test_the_decay_of_a_round_is_the_rate_of_distributed_sgd_alone() -> None:
    assert_close(stepped(DistributedSGD(rate=0.2), 0.5), stepped(DistributedSGD(rate=0.1)))
    for server in (Averaging(), Deltas(), RoundRobin()):
        assert_close(stepped(server, 0.5), stepped(server))


@settings(deadline=None, max_examples=40)
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), cut=st.integers(0, 6), seed=st.integers(0, 99))
def test_the_weighted_mean_does_not_depend_on_how_clients_were_grouped(counts: list[int], cut: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(len(counts), 3, generator=generator)
    shares = Averaging().weigh(torch.tensor(counts))
    total = add_weighted(None, shares[:cut], {"w": values[:cut]})
    total = add_weighted(total, shares[cut:], {"w": values[cut:]})
    slow = sum(n * v.double() for n, v in zip(counts, values, strict=True)) / sum(counts)
    assert_close(total["w"], slow, rtol=1e-12, atol=1e-12)
    assert_close(shares.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_buffers_are_averaged_and_counters_take_the_largest() -> None:
    before = {"mean": torch.zeros(2), "tracked": torch.tensor(4), "fixed": torch.tensor([float("inf"), 1.0])}
    shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
    after = {
        "mean": torch.tensor([[4.0, 0.0], [0.0, 4.0]]),
        "tracked": torch.tensor([9, 6]),
        "fixed": before["fixed"].expand(2, 2),
    }
    made = average_buffers(before, [(shares[:1], {n: v[:1] for n, v in after.items()}),
                                    (shares[1:], {n: v[1:] for n, v in after.items()})])  # fmt: skip
    assert_close(made["mean"], torch.tensor([1.0, 3.0]))
    assert made["tracked"] == 9
    assert made["fixed"] is before["fixed"]


@pytest.mark.parametrize("name", ["fedsgd", "deltas", "round_robin"])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_positive_and_finite(name: str, rate: float) -> None:
    with pytest.raises(InputError, match=rf"^{name}\.rate .*\(0, inf\)"):
        SERVERS[name](rate=rate)


def test_a_server_goes_by_the_name_that_files_give_it() -> None:
    assert [name_of(make()) for make in SERVERS.values()] == list(SERVERS)


def test_only_round_robin_goes_one_by_one() -> None:
    assert [name for name, make in SERVERS.items() if make.in_turn] == ["round_robin"]


# -- decay


def test_spn_halves_its_rate_at_rounds_100_and_200() -> None:
    decay = Decay(factor=0.5, at=(100, 200))
    assert [decay.after(t) for t in (0, 99, 100, 199, 200, 300)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_every_so_many_rounds() -> None:
    assert [Decay(factor=0.1, every=2).after(t) for t in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert {Decay().after(t) for t in range(5)} == {1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"factor": 0.0, "every": 1}, r"Decay.factor .*\(0, 1\]"),
        ({"factor": 1.5, "every": 1}, r"Decay.factor .*\(0, 1\]"),
        ({"factor": 0.5, "at": (0,)}, "Decay.at .*1 on"),
        ({"factor": 0.5, "every": 0}, "Decay.every .*least 1"),
        ({"factor": 0.5, "every": 1, "at": (2,)}, "`at` or `every`"),
        ({"factor": 0.5}, "never applies"),
    ],
)
def test_a_decay_that_makes_no_sense_is_refused(given: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Decay(**given)
