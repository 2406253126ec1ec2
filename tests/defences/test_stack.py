"""Defences in a row: the order given is the order applied, and what makes no sense together is refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.auditing.remedies import remedies_for, stacked
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, lift, norm
from leakscope.core.types import Observation, Round, Shares
from leakscope.defences import (
    DEFENCES,
    ChosenNoise,
    Clip,
    DeepCompression,
    Defence,
    Effect,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    Revealed,
    Sign,
    Sparsify,
    nonzero,
    tried,
)
from leakscope.defences.stack import begin, check_stack, protect, revealed, unrevealed
from small_parts import Affine

KEY = random.key(9)
MADE: dict[type, Callable[[], Defence]] = {type(make()): make for make in DEFENCES.values()}

# written out here a second time, by hand: (first, later)
REFUSED = {
    *itertools.product((Sparsify, DeepCompression, RandomMask, ChosenNoise), (GaussianNoise, LaplaceNoise, LowRank)),
    *itertools.product((Sign, Quantise), (GaussianNoise, LaplaceNoise, ChosenNoise, LowRank)),
    (Clip, Sign),
    (Sign, Clip),
    (Sign, Quantise),
    (Sign, Sparsify),
    (Sign, DeepCompression),
    (Quantise, Sign),
    (Sparsify, DeepCompression),
    (DeepCompression, Sparsify),
    *itertools.permutations((Sparsify, ChosenNoise)),
    *itertools.permutations((DeepCompression, ChosenNoise)),
    (RandomMask, ChosenNoise),
}
PAIRS = sorted(itertools.product(MADE, MADE), key=str)


def update() -> Tree:
    generator = torch.Generator().manual_seed(0)
    return {"w": torch.randn(6, 8, generator=generator), "b": torch.randn(6, generator=generator)}


def play(*defences: Defence) -> Tree:
    return protect(defences, update(), begin(defences, update()), KEY)[0]


# -- what is refused


@pytest.mark.parametrize(("first", "later"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
def test_every_pair_is_refused_by_name_or_works(first: type, later: type) -> None:
    pair = (MADE[first](), MADE[later]())
    if first is later:
        with pytest.raises(InputError, match=f"{first.__name__} is stacked twice"):
            check_stack(pair)
    elif (first, later) in REFUSED:
        with pytest.raises(InputError, match=f"^{first.__name__} before {later.__name__}: .*; (put|leave)") as caught:
            check_stack(pair)
        assert "\n" not in str(caught.value)
    else:
        check_stack(pair)
        made = play(*pair)
        assert {n: (v.shape, v.dtype) for n, v in made.items()} == {n: (v.shape, v.dtype) for n, v in update().items()}
        assert all(bool(value.isfinite().all()) for value in made.values())


def test_a_pair_is_refused_wherever_it_stands_and_also_with_another_strength() -> None:
    with pytest.raises(InputError, match="Sparsify before LaplaceNoise"):
        check_stack([Clip(), Sparsify(0.5), Quantise(), LaplaceNoise(0.1)])
    with pytest.raises(InputError, match=r"GaussianNoise .*twice"):
        check_stack([GaussianNoise(0.1), Clip(), GaussianNoise(0.2)])
    check_stack([LowRank(), Clip(), GaussianNoise(0.1), LaplaceNoise(0.1), Sparsify(0.5), RandomMask(), Quantise()])
    check_stack([])


def test_a_defence_of_ones_own_may_be_stacked_twice() -> None:
    check_stack([Affine(1, 2), Affine(3, 4)])


# -- a defence of one's own says all of it by the names of the contract


@dataclass(frozen=True)
class Dropped:
    """A defence of a user's own file: drop the second half of every tensor."""

    share: float = field(default=0.5, metadata=tried(0.75, 0.25))

    once: ClassVar[bool] = True
    leaves: ClassVar[frozenset[Effect]] = frozenset({Effect.SPARSE})
    not_after: ClassVar[Mapping[Effect, str]] = {Effect.SIGNS: "half of the signs is no half; put the signs last"}

    def protect_update(self, update: Tree, key: Tensor) -> Tree:
        return {name: self._cut(value.flatten()).reshape(value.shape) for name, value in update.items()}

    def reveal(self, sent: Tree) -> Revealed:
        return Revealed(mask=nonzero(sent), sigma=0.25)

    def _cut(self, flat: Tensor) -> Tensor:
        return flat * (torch.arange(len(flat)) < round(self.share * len(flat)))


def test_a_defence_of_ones_own_is_ordered_by_what_it_says() -> None:
    with pytest.raises(InputError, match=f"Sign before Dropped: {Dropped.not_after[Effect.SIGNS]}"):
        check_stack([Sign(), Dropped()])
    with pytest.raises(InputError, match="Dropped before GaussianNoise"):
        check_stack([Dropped(), GaussianNoise(0.1)])
    with pytest.raises(InputError, match=r"Dropped .*twice"):
        check_stack([Dropped(0.2), Dropped(0.3)])
    check_stack([GaussianNoise(0.1), Dropped(), Sign()])


def test_a_defence_of_ones_own_is_told_by_what_it_reveals() -> None:
    stack = (GaussianNoise(0.6), Dropped(0.5), Clip(0.8))
    sent = {name: value[None] for name, value in play(*stack).items()}
    facts: Any = revealed(stack, sent)
    assert_close(facts["mask"], {name: (value != 0).float() for name, value in sent.items()})
    assert_close(facts["sigma"], torch.tensor([0.65]))
    assert_close(facts["bound"], torch.tensor([0.8]))
    assert float(facts["mask"]["w"].mean()) == 0.5


def test_a_defence_of_ones_own_is_tried_at_the_strengths_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEFENCES, "dropped", Dropped)
    sent = {name: value[None] for name, value in update().items()}
    seen = Observation((Round(sent, {}, sent),), Shares.GRADIENT, torch.ones(1))
    world: Any = SimpleNamespace(
        observation=seen, batch=SimpleNamespace(trials=1), model=SimpleNamespace(norms=()), client=Client()
    )
    tries = [(words, defence) for name, words, defence in remedies_for(world) if name == "dropped"]
    assert tries == [("share 0.75", Dropped(0.75)), ("share 0.25", Dropped(0.25))]
    assert stacked((Sign(),), Dropped()) == (Dropped(), Sign())  # put before the signs, as its rule asks


# -- what is applied


@dataclass(frozen=True)
class Counting:
    """A defence that remembers how often it was asked, and adds that."""

    def begin(self, update: Tree) -> Tree:
        return {"asked": torch.zeros(())}

    def protect_and_remember(self, update: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree]:
        asked = state["asked"] + 1
        return {name: value + asked for name, value in update.items()}, {"asked": asked}


def test_defences_apply_in_the_order_given() -> None:
    assert_close(play(Affine(2, 0), Affine(1, 5))["b"], 2 * update()["b"] + 5)
    assert_close(play(Affine(1, 5), Affine(2, 0))["b"], 2 * (update()["b"] + 5))
    assert_close(
        play(Sparsify(0.5), Clip(0.1)), Clip(0.1).protect_update(Sparsify(0.5).protect_update(update(), KEY), KEY)
    )
    assert float(norm(play(Clip(0.1), GaussianNoise(1.0)))) > 1
    assert float(norm(play(GaussianNoise(1.0), Clip(0.1)))) <= 0.1 * 1.00001
    assert_close(play(), update(), rtol=0, atol=0)


def test_every_place_in_the_stack_draws_from_its_own_key() -> None:
    first = play(GaussianNoise(1.0))["w"] - update()["w"]
    second = play(Affine(1, 0), GaussianNoise(1.0))["w"] - update()["w"]
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.6
    expected = GaussianNoise(1.0).protect_update(update(), random.fold(random.fold(KEY, "defence"), 1))
    assert_close(play(Affine(1, 0), GaussianNoise(1.0)), expected, rtol=0, atol=0)


def test_states_come_back_in_their_places() -> None:
    stack = (Clip(1e9), Counting(), Affine(10, 0), Counting())
    state, sent = begin(stack, update()), []
    assert [set(own) for own in state] == [set(), {"asked"}, set(), {"asked"}]
    for number in range(1, 4):
        sent, state = protect(stack, update(), state, KEY)
        assert_close(sent["b"], 10 * (update()["b"] + number) + number)
        assert [own["asked"].item() for own in state if own] == [number, number]


def test_a_state_of_another_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        protect((Clip(), Sparsify()), update(), ({},), KEY)


# -- what is revealed


def test_nothing_is_revealed_of_a_stack_without_facts() -> None:
    sent = {name: value[None] for name, value in update().items()}
    assert revealed([], sent) == {}
    assert revealed([LowRank()], sent) == {}
    assert revealed([Affine(1, 2)], sent) == {}


WIDE = {"w": (2, 200, 50), "b": (2, 4000)}


def with_noise(*defences: Defence) -> tuple[Tree, Tree]:
    """Return what two trials send, and the true level of the noise on every tensor: its root mean square over the sent."""
    sizes = {"w": 3.0, "b": 0.02}
    given = {name: sizes[name] * random.normal(random.key(5), shape, torch.float64) for name, shape in WIDE.items()}
    keys = random.key([1, 2])
    sent = lift(lambda update, key: protect(defences, update, begin(defences, update), key)[0])(given, keys)
    left = {name: (sent[name] - given[name])[sent[name] != 0].square().mean().sqrt() for name in sent}
    return sent, left


@pytest.mark.parametrize(
    "defences",
    [
        (GaussianNoise(0.5, each=True),),
        (LaplaceNoise(scale=0.5, each=True),),
        (GaussianNoise(0.5, each=True), LaplaceNoise(0.3, each=True)),
        (GaussianNoise(0.5, each=True), LaplaceNoise(0.01)),
        (GaussianNoise(0.01), LaplaceNoise(0.4, each=True)),
        (GaussianNoise(0.5, each=True), RandomMask(0.5)),
    ],
    ids=lambda defences: ", ".join(map(str, defences)),
)
def test_the_noise_of_each_tensor_is_read_off_what_was_sent(defences: tuple[Defence, ...]) -> None:
    sent, level = with_noise(*defences)
    facts: Any = revealed(defences, sent)
    for name, true in level.items():
        assert_close(facts["sigma_each"][name], true.expand(2), rtol=0.06, atol=0)
    numbers = {name: (value != 0).flatten(1).sum(1) for name, value in sent.items()}
    energy = sum(numbers[name] * facts["sigma_each"][name].square() for name in sent)
    assert_close(facts["sigma"].square() * sum(numbers.values()), energy)


def test_noise_of_one_level_is_told_as_one() -> None:
    facts: Any = revealed([GaussianNoise(0.3), LaplaceNoise(0.4)], {"w": torch.ones(2, 5)})
    assert set(facts) == {"sigma"}
    assert_close(facts["sigma"], torch.full((2,), 0.5))


def test_nothing_sent_has_no_noise() -> None:
    facts: Any = revealed([GaussianNoise(0.3, each=True)], {"w": torch.zeros(2, 5)})
    assert_close(facts, {"sigma": torch.zeros(2), "sigma_each": {"w": torch.zeros(2)}})


class Misspoken:
    """A user's defence whose `reveal` returns a plain dict."""

    def protect_update(self, update: Tree, seed: Tensor) -> Tree:
        del seed
        return update

    def reveal(self, sent: Tree) -> dict[str, float]:
        del sent
        return {"bound": 1.0}


def test_what_a_defence_reveals_must_be_a_revealed() -> None:
    with pytest.raises(InputError, match="Revealed"):
        revealed((Misspoken(),), {"weight": torch.ones(2, 3)})  # type: ignore[arg-type]


class Failing:
    """A user's defence whose `reveal` needs a tensor that the update may lack."""

    def protect_update(self, update: Tree, seed: Tensor) -> Tree:
        del seed
        return update

    def reveal(self, sent: Tree) -> Revealed:
        return Revealed(bound=sent["head.weight"].norm())


def test_a_reveal_that_fails_on_what_was_sent_is_an_error_and_not_taken_for_known() -> None:
    sent, head = {"weight": torch.ones(2, 3)}, {"head.weight": torch.ones(2, 3)}
    for ask in (revealed, unrevealed):
        with pytest.raises(InputError, match=r"Failing\.reveal.*head\.weight"):
            ask((Failing(),), sent)
    assert unrevealed((Failing(),), head) == []
    assert unrevealed((Failing(),)) == [], (
        "a small update shows nothing: the clients' own is asked when they are played"
    )
