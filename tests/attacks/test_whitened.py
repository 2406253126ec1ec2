"""Noise of another level on each tensor: what the attacker who is told of the levels makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from leakscope.attacks.aware import aware, merge_rounds
from leakscope.attacks.defended import MOST, Whitened, noise_factors
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.objectives import Match
from leakscope.attacks.recipes import cpl
from leakscope.attacks.units import InNoiseUnits
from leakscope.attacks.view import Simulated, View
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.models import Uniform, build, draw_parameters

PLAIN = Knowledge((1, 8, 8), 10, 1)
SIMULATED = {"a": torch.tensor([3.0, -1.0, 2.0]), "b": torch.tensor([0.5, 0.25])}
OBSERVED = {"a": torch.tensor([2.0, -1.5, 2.5]), "b": torch.tensor([0.4, 0.5])}


def knowing(sigma: float, **each: float) -> Knowledge:
    levels = {name: torch.tensor(level) for name, level in each.items()}
    return replace(PLAIN, sigma=torch.tensor(sigma), sigma_each=levels)


def view(knowledge: Knowledge, observed: Tree = OBSERVED) -> Any:
    return View({}, Simulated(SIMULATED, torch.zeros(1), torch.zeros(1)), observed, None, knowledge, None)  # type: ignore[arg-type]


def test_differences_count_in_units_of_the_noise_of_their_tensor() -> None:
    sigma, each = 0.5, {"a": 0.8, "b": 0.1}
    slow = sum((sigma / each[n]) ** 2 * float((SIMULATED[n] - OBSERVED[n]).square().sum()) for n in each)
    assert float(Whitened()(view(knowing(sigma, **each)))) == pytest.approx(slow)
    weighed = Whitened(Match(weights=(("b", 2.0),)))(view(knowing(sigma, **each)))
    b = (sigma / each["b"]) ** 2 * float((SIMULATED["b"] - OBSERVED["b"]).square().sum())
    assert float(weighed) == pytest.approx(slow + 3 * b)


def test_equal_levels_change_no_bit() -> None:
    there = view(knowing(0.3, a=0.3, b=0.3))
    assert torch.equal(Whitened()(there), Match()(there))


def test_a_tensor_without_noise_counts_much_and_no_noise_at_all_changes_nothing() -> None:
    assert_close(noise_factors(knowing(0.5, a=1.0, b=0.0)), {"a": torch.tensor(0.5), "b": torch.tensor(MOST)})
    assert_close(noise_factors(knowing(0.0, a=0.0, b=0.0)), {"a": torch.tensor(1.0), "b": torch.tensor(1.0)})


def test_what_noise_explains_is_what_it_leaves_at_the_truth() -> None:
    levels = {"a": 0.9, "b": 0.02}
    clean = {name: torch.zeros(40_000, dtype=torch.float64) for name in levels}
    noise = {name: level * random.normal(random.key(len(name)), (40_000,)) for name, level in levels.items()}
    sigma = (sum(level**2 for level in levels.values()) / 2) ** 0.5
    seen = replace(view(knowing(sigma, **levels), noise), simulated=Simulated(clean, torch.zeros(1), torch.zeros(1)))
    match = InNoiseUnits(Whitened())
    assert float(match(seen) / match.explained(seen)) == pytest.approx(1, abs=0.02)


def test_levels_that_are_not_told_cannot_be_used() -> None:
    with pytest.raises(InputError, match=r"needs Knowledge\.sigma_each"):
        Whitened()(view(replace(PLAIN, sigma=torch.tensor(0.1))))
    with pytest.raises(InputError, match=r"needs Knowledge\.sigma:"):
        Whitened()(view(PLAIN))


# -- on real digits

TRIALS = 4
MODEL = build("lenet_cpl", (1, 8, 8), 10, {"width": 4})


def seen_by(client: Client) -> tuple[Observation, Knowledge, Knowledge]:
    """Return what the server saw, what one who does not know the defence is told, and one who does."""
    data, index, seeds = load("digits"), torch.arange(TRIALS), list(range(TRIALS))
    private = make_batch(data.pictures("test", index)[:, None], data.labels("test", index)[:, None], classes=10)
    weights = draw_parameters(MODEL, Uniform(0.5), random.key(seeds))
    seen, plain = client.observe(MODEL, weights, private, seeds), attacker_knowledge(MODEL, client, private)
    return seen, plain, knowledge_of_defences(plain, client, seen)


def errors(client: Client, iterations: int) -> tuple[float, float]:
    """Return the mean squared error of the pictures, of the attacker who does not know and of the one who does."""
    seen, plain, known = seen_by(client)
    truth = load("digits").pictures("test", torch.arange(TRIALS))[:, None]
    attack, made = cpl(iterations=iterations), []
    for own, knowledge in ((attack, plain), (aware(attack, known), known)):
        guess = own.run(MODEL, seen, knowledge, list(range(TRIALS)), Execution(form="native")).inputs
        made.append(float((guess.clamp(0, 1) - truth).square().mean()))
    return made[0], made[1]


@pytest.mark.slow
def test_who_is_told_of_unequal_levels_sees_more() -> None:
    blind, knows = errors(Client(defences=(GaussianNoise(0.1, each=True),)), 1)
    assert knows < 0.25 * blind


def test_trials_of_other_strengths_are_told_their_own_levels() -> None:
    strengths = [0.0, 0.1, 0.2, 0.4]
    _, _, known = seen_by(Client(defences=(GaussianNoise(torch.tensor(strengths), each=True),)))
    assert known.sigma is not None
    assert known.sigma_each is not None
    for trial, strength in enumerate(strengths):
        _, _, alone = seen_by(Client(defences=(GaussianNoise(strength, each=True),)))
        assert alone.sigma_each is not None
        for name, level in known.sigma_each.items():
            assert_close(level[trial], alone.sigma_each[name][trial])
    assert not bool(known.sigma[0])
    assert bool((known.sigma[1:] > 0).all())


def test_rounds_of_fresh_noise_leave_less_of_it_on_every_tensor() -> None:
    seen, _, known = seen_by(Client(defences=(GaussianNoise(0.1, each=True),), rounds=4))
    merged, quieter = merge_rounds(seen, known)
    assert len(merged.rounds) == 1
    assert known.sigma_each is not None
    assert quieter.sigma_each is not None
    assert known.sigma is not None
    assert_close(quieter.sigma, known.sigma / 2)
    assert_close(quieter.sigma_each, {name: level / 2 for name, level in known.sigma_each.items()})
