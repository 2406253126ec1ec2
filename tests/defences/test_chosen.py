"""PPDL's order: chosen by the update as it was, noise on what is sent, nothing elsewhere, and what one who knows is told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.attacks.aware import aware
from leakscope.attacks.defended import Sent
from leakscope.attacks.objectives import find_link
from leakscope.attacks.recipes import cpl
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.tree import Tree, lift
from leakscope.core.types import Knowledge, Observation, make_batch
from leakscope.defences import ChosenNoise, GaussianNoise, Sparsify
from leakscope.models import Uniform, build, draw_parameters
from leakscope.sweep.merging import merge, shape_of

KEY = random.key(5)


def update(seed: int, size: float = 1.0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (6, 8), "bias": (6,)}
    return {name: size * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**20), share=st.floats(0.02, 1.0), sigma=st.floats(0.0, 100.0))
def test_the_choice_is_that_of_the_update_alone_and_the_noise_lands_on_it(
    seed: int, share: float, sigma: float
) -> None:
    plain = update(seed)
    made = ChosenNoise(sigma, share).protect_update(plain, KEY)
    chosen = Sparsify(share=share).protect_update(plain, KEY)
    noisy = GaussianNoise(sigma).protect_update(plain, KEY)
    for name, value in made.items():
        assert_close(value, torch.where(chosen[name] != 0, noisy[name], 0.0), rtol=0, atol=0)


def test_without_noise_it_is_the_choice_alone_and_with_everything_sent_the_noise_alone() -> None:
    plain = update(0)
    assert_close(ChosenNoise(0.0, 0.3).protect_update(plain, KEY), Sparsify(share=0.3).protect_update(plain, KEY))
    assert_close(ChosenNoise(0.3, 1.0).protect_update(plain, KEY), GaussianNoise(0.3).protect_update(plain, KEY))


def test_noise_before_the_choice_chooses_the_noise() -> None:
    """The reason for a defence of its own: in a stack, loud noise decides what is sent."""
    plain = update(0)
    largest = Sparsify(share=0.3).protect_update(plain, KEY)["weight"] != 0
    stacked = Sparsify(share=0.3).protect_update(GaussianNoise(100.0).protect_update(plain, KEY), KEY)["weight"] != 0
    chosen = ChosenNoise(100.0, 0.3).protect_update(plain, KEY)["weight"] != 0
    assert torch.equal(chosen, largest)
    assert (stacked != largest).double().mean() > 0.2


def seen_by(client: Client) -> tuple[Observation, Knowledge]:
    model = build("lenet_dlg", (1, 8, 8), 4, {"width": 2})
    weights = draw_parameters(model, Uniform(0.3), random.key(range(3)))
    inputs = torch.rand(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = make_batch(inputs, torch.tensor([[0], [1], [2]]), classes=4)
    seen = client.observe(model, weights, batch, range(3))
    return seen, knowledge_of_defences(attacker_knowledge(model, client, batch), client, seen)


def test_one_who_knows_is_told_what_was_sent_and_how_much_noise_there_is() -> None:
    sigma = torch.tensor([0.0, 0.1, 2.0])
    seen, knowledge = seen_by(Client(defences=(ChosenNoise(sigma, 0.3),)))
    assert knowledge.sigma is not None
    assert knowledge.mask is not None
    assert_close(knowledge.sigma, sigma)
    assert not knowledge.largest  # what was sent had noise, so its smallest bounds nothing
    for name, sent in seen.rounds[0].sent.items():
        assert torch.equal(knowledge.mask[name] != 0, sent != 0)
    count = sum(float(mask[0].sum()) for mask in knowledge.mask.values())
    assert count == pytest.approx(0.3 * sum(mask[0].numel() for mask in knowledge.mask.values()), abs=1)
    attack = aware(cpl(), knowledge)
    assert find_link(attack.objective, Sent) is not None
    assert attack.stop.threshold == 1.0  # in units of what the noise explains


def test_strengths_of_a_sweep_are_one_batch() -> None:
    quiet, loud = ChosenNoise(0.1, 0.05), ChosenNoise(0.5, 0.3)
    assert shape_of(quiet) == shape_of(loud)
    merged = merge([quiet, loud], [1, 2])
    assert_close(merged.sigma, torch.tensor([0.1, 0.5, 0.5]), check_dtype=False)
    assert_close(merged.share, torch.tensor([0.05, 0.3, 0.3]), check_dtype=False)


def test_many_trials_at_their_own_strengths_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: RuntimeError) -> bool:
        raise AssertionError(f"fell back to one trial after the other: {error}")

    monkeypatch.setattr("leakscope.core.tree.beyond_vmap", refuse)
    strengths = ChosenNoise(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]))
    update = {"w": torch.tensor([[1.0, -3.0], [1.0, -3.0]])}
    sent = lift(lambda one, tree, key: one.protect_update(tree, key))(strengths, update, random.key([0, 1]))
    assert sent["w"][0].tolist() == [0.0, -3.0]
    assert (sent["w"][1] != update["w"][1]).all()
