"""Every attack without an optimiser of its own looks at the clock often, and ends at once when the time is over."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.attacks.attack import Attack, Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.known_policy import KnownPolicy
from leakscope.attacks.null import PriorOnly
from leakscope.attacks.recipes import ATTACKS
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.types import Outcome, make_batch
from leakscope.data import load
from leakscope.models import Torch, build, draw_parameters, from_module

torch.set_num_threads(1)
SAMPLES, CLIENTS = 4, 2
MOST = 2000  # operations of torch between two looks at the clock; a step of least squares has about 600
SHORT: dict[str, dict[str, int]] = {
    "spear": {"draws": 256},
    "cpa": {"iterations": 10},
    "feature_inversion": {"iterations": 2},
}
LOOKS = {"spear": 200, "cpa": 60, "linear_system": 0}  # at least, in a whole run; of the others one for each client
ONE = ("linear_system",)  # for one sample
ITERATED = Matching, KnownPolicy, PriorOnly
EXACT = [name for name in ATTACKS if not isinstance(ATTACKS[name](**SHORT.get(name, {})), ITERATED)]


class Counted(TorchDispatchMode):
    """Counts operations, and notes their number at every look at the clock; the time is over from look `ends` on."""

    def __init__(self, ends: int | None = None) -> None:
        super().__init__()
        self.operations, self.ends = 0, ends
        self.looks: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))

    def over(self, evaluations: int) -> bool:
        self.looks.append(self.operations)
        return self.ends is not None and len(self.looks) >= self.ends

    @property
    def longest(self) -> int:
        """Return the most operations without a look."""
        marks = [0, *self.looks, self.operations]
        return max(after - before for before, after in itertools.pairwise(marks))


def network(name: str) -> Model:
    if name == "feature_inversion":
        torch.manual_seed(0)
        layers = (
            nn.Conv2d(1, 2, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 60),
            nn.ReLU(),
            nn.Linear(60, 10),
        )
        return from_module(nn.Sequential(*layers), input_shape=(1, 8, 8))
    return build("mlp", (1, 8, 8), 10, {"hidden": (60,), "activation": "tanh" if name == "cpa" else "relu"})


def played(name: str, clock: Counted) -> Any:
    """Run an attack on a batch of every client."""
    data, model, attack = load("digits"), network(name), ATTACKS[name](**SHORT.get(name, {}))
    samples = 1 if name in ONE else SAMPLES
    places = range(CLIENTS * samples)
    inputs = data.pictures("test", places).unflatten(0, (CLIENTS, samples))
    labels = torch.as_tensor(data.labels("test", places)).unflatten(0, (CLIENTS, samples))
    batch, client, seeds = make_batch(inputs, labels, classes=10), Client(), list(range(CLIENTS))
    seen = client.observe(model, draw_parameters(model, Torch(), random.key(seeds)), batch, seeds)
    knowledge = attacker_knowledge(model, client, batch)
    with clock:
        return run(attack, model, seen, knowledge, seeds, Execution(out_of_time=clock.over, form="native"))


def run(attack: Attack, *given: Any) -> Any:
    return attack.run(*given)


@pytest.mark.parametrize("name", EXACT)
def test_the_clock_is_looked_at_within_the_loops(name: str) -> None:
    clock = Counted()
    played(name, clock)
    assert clock.longest <= MOST
    assert len(clock.looks) >= LOOKS.get(name, CLIENTS)


@pytest.mark.parametrize("ends", [1, 5])
@pytest.mark.parametrize("name", EXACT)
def test_time_that_is_over_ends_every_client(name: str, ends: int) -> None:
    clock = Counted(ends)
    result = played(name, clock)
    assert clock.operations <= (clock.looks[ends - 1] if len(clock.looks) >= ends else 0) + 2 * MOST
    assert result.inputs.shape[:2] == (CLIENTS, 1 if name in ONE else SAMPLES)
    if LOOKS.get(name, 0) > 2 * CLIENTS * ends:  # it had more to do
        assert int(Outcome.PROVED) not in result.outcome.tolist()
