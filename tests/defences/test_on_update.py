"""One table for every defence on the update: what holds whichever it is, what is refused, and how files name it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.registry import summary
from leakscope.core.tree import Tree, lift, take, tensors
from leakscope.defences import (
    DEFENCES,
    ChosenNoise,
    Clip,
    DeepCompression,
    Defence,
    GaussianNoise,
    LaplaceNoise,
    LowRank,
    Quantise,
    RandomMask,
    RememberingDefence,
    Sign,
    Sparsify,
    UpdateDefence,
)
from leakscope.scenario.components import KINDS
from leakscope.scenario.schema import check_cell

TRIALS = 3
KEYS = random.key([1, 2, 3])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
NAN = float("nan")

CASES: dict[str, Callable[[], Defence]] = {
    "gaussian_noise": lambda: GaussianNoise(0.3),
    "laplace_noise": lambda: LaplaceNoise(0.3),
    "laplace_noise, scale": lambda: LaplaceNoise(scale=0.2),
    "clip": lambda: Clip(0.7),
    "clip, each": lambda: Clip(0.7, each=True),
    "sparsify": lambda: Sparsify(0.6),
    "sparsify, each": lambda: Sparsify(share=0.4, each=True),
    "deep_compression": lambda: DeepCompression(0.8),
    "deep_compression, momentum": lambda: DeepCompression(share=0.2, momentum=0.9),
    "random_mask": lambda: RandomMask(0.4),
    "chosen_noise": lambda: ChosenNoise(0.3, 0.4),
    "chosen_noise, all": lambda: ChosenNoise(0.3, 1.0),
    "sign": Sign,
    "quantise": lambda: Quantise(3),
    "quantise, nearest": lambda: Quantise(3, stochastic=False),
    "low_rank": lambda: LowRank(1),
}
CHOSEN = {"chosen_noise", "chosen_noise, all"}
DRAWS = {"gaussian_noise", "laplace_noise", "laplace_noise, scale", "random_mask", "quantise", *CHOSEN}
STRENGTHS: dict[str, tuple[Callable[[Any], Defence], list[float]]] = {
    "GaussianNoise.sigma": (GaussianNoise, [0.0, 0.1, 5.0]),
    "LaplaceNoise.sigma": (LaplaceNoise, [0.0, 0.1, 5.0]),
    "LaplaceNoise.scale": (lambda s: LaplaceNoise(scale=s), [0.0, 0.1, 5.0]),
    "Clip.bound": (Clip, [1e-3, 0.9, 1e9]),
    "Clip.bound, each": (lambda s: Clip(s, each=True), [1e-3, 0.9, 1e9]),
    "Sparsify.drop": (Sparsify, [0.0, 0.5, 0.9]),
    "Sparsify.drop, each": (lambda s: Sparsify(s, each=True), [0.0, 0.5, 0.9]),
    "Sparsify.share": (lambda s: Sparsify(share=s), [1.0, 0.5, 0.1]),
    "DeepCompression.drop": (DeepCompression, [0.0, 0.5, 0.9]),
    "DeepCompression.share": (lambda s: DeepCompression(share=s), [1.0, 0.5, 0.1]),
    "RandomMask.share": (RandomMask, [1.0, 0.5, 0.1]),
    "ChosenNoise.sigma": (ChosenNoise, [0.0, 0.1, 5.0]),
    "ChosenNoise.share": (lambda s: ChosenNoise(0.1, s), [1.0, 0.5, 0.1]),
}
each_defence = pytest.mark.parametrize("name", sorted(CASES))


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def update(*leading: int, dtype: torch.dtype = torch.float32) -> Tree:
    shapes = {"conv": (4, 3, 2, 2), "dense": (5, 7), "bias": (5,), "temperature": (), "one": (1,), "still": (2, 2)}
    made = {name: draw(i, *leading, *shape, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    return made | {"still": torch.zeros(*leading, 2, 2, dtype=dtype)}


def play(defence: Defence, given: Tree, key: Tensor, rounds: int = 2) -> list[Tree]:
    """Return what is sent in each of two rounds of the same update: the second shows what was remembered."""
    if not isinstance(defence, RememberingDefence):
        return [defence.protect_update(given, random.fold(key, i)) for i in range(rounds)]
    state, sent = defence.begin(given), []
    for i in range(rounds):
        made, state = defence.protect_and_remember(given, state, random.fold(key, i))
        sent.append(made)
    return sent


def same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    assert_close(list(tensors(one)), list(tensors(other)), rtol=tolerance, atol=tolerance)


# -- what holds for every defence


def test_every_registered_defence_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(DEFENCES)
    for name, make in CASES.items():
        assert type(make()) is DEFENCES[name.partition(",")[0]]


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_every_defence_is_of_one_of_the_two_kinds_frozen_and_says_what_it_does(name: str) -> None:
    made = DEFENCES[name]()
    assert isinstance(made, UpdateDefence) is not isinstance(made, RememberingDefence)
    assert len(summary(DEFENCES[name])) > 10
    with pytest.raises((AttributeError, TypeError)):
        made.strength = 1  # type: ignore[union-attr]
    assert hash(made) == hash(DEFENCES[name]())


@DTYPES
@each_defence
def test_names_shapes_and_dtypes_stay_and_the_input_is_left_alone(name: str, dtype: torch.dtype) -> None:
    given = update(dtype=dtype)
    kept, generator = copy.deepcopy(given), torch.get_rng_state()
    for made in play(CASES[name](), given, KEYS[0]):
        assert [(n, v.shape, v.dtype) for n, v in made.items()] == [(n, v.shape, v.dtype) for n, v in given.items()]
        assert all(bool(value.isfinite().all()) for value in made.values())
    same(given, kept)
    assert torch.equal(torch.get_rng_state(), generator), "a defence must not touch the global generator"


@each_defence
def test_every_defence_changes_something(name: str) -> None:
    made = play(CASES[name](), update(), KEYS[0])[0]
    assert any(not torch.equal(made[n], value) for n, value in update().items())


@each_defence
def test_the_same_key_gives_the_same_and_another_key_another_only_where_something_is_drawn(name: str) -> None:
    first = play(CASES[name](), update(), KEYS[0])
    same(play(CASES[name](), update(), KEYS[0]), first)
    other = play(CASES[name](), update(), KEYS[1])
    for n in ("conv", "dense"):
        assert torch.equal(first[0][n], other[0][n]) is (name not in DRAWS)
    assert torch.equal(first[0]["dense"], first[1]["dense"]) is (name not in DRAWS and "deep" not in name)


@pytest.mark.parametrize("name", sorted(DRAWS - {"chosen_noise"}))  # equal tensors have equal choices
def test_tensors_of_the_same_shape_draw_apart(name: str) -> None:
    value = draw(0, 400).abs() + 0.5
    made = play(CASES[name](), {"a": value, "b": value}, KEYS[0])[0]
    changed = torch.stack([made["a"] - value, made["b"] - value])
    assert abs(torch.corrcoef(changed / value)[0, 1]) < 0.25


@DTYPES
@each_defence
def test_many_trials_at_once_are_the_same_trials_one_by_one(name: str, dtype: torch.dtype) -> None:
    given, defence = update(TRIALS, dtype=dtype), CASES[name]()
    many = lift(lambda u, k: tuple(play(defence, u, k)))(given, KEYS)
    for i in range(TRIALS):
        same(take(many, i), play(defence, take(given, i), KEYS[i]), 1e-5 if dtype == torch.float32 else 1e-10)


@DTYPES
@pytest.mark.parametrize("strength_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("field", sorted(STRENGTHS))
def test_a_strength_for_each_trial_equals_separate_runs(
    field: str, strength_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    make, strengths = STRENGTHS[field]
    given = update(TRIALS, dtype=dtype)
    many = lift(lambda d, u, k: tuple(play(d, u, k)))(make(torch.tensor(strengths, dtype=strength_dtype)), given, KEYS)
    made = {(n, v.dtype) for sent in many for n, v in sent.items()}
    assert made == {(n, dtype) for n in given}, "the dtype of the update, whatever that of the strength"
    for i in range(TRIALS):
        alone = play(make(strengths[i]), take(given, i), KEYS[i])
        same(take(many, i), alone, 1e-6)  # a strength in float32 is itself rounded


@pytest.mark.parametrize("name", sorted(set(DEFENCES) - {"gaussian_noise", "laplace_noise"}))
def test_zeros_stay_zeros_where_no_noise_is_added(name: str) -> None:
    given = {n: torch.zeros_like(v) for n, v in update().items()}
    same(play(DEFENCES[name](), given, KEYS[0]), [given, given])


# -- what is refused

REFUSED: list[tuple[str, Callable[[], object], str]] = [
    *[("GaussianNoise.sigma", lambda s=s: GaussianNoise(s), str(s)) for s in (-0.1, NAN, float("inf"))],
    *[("LaplaceNoise.sigma", lambda s=s: LaplaceNoise(s), str(s)) for s in (-0.1, NAN, float("inf"))],
    *[("LaplaceNoise.scale", lambda s=s: LaplaceNoise(scale=s), str(s)) for s in (-0.1, NAN, float("inf"))],
    *[("Clip.bound", lambda s=s: Clip(s), str(s)) for s in (0.0, -1.0, NAN, float("inf"))],
    *[("Sparsify.drop", lambda s=s: Sparsify(s), str(s)) for s in (-0.1, 1.0, 1.5, NAN)],
    *[("Sparsify.share", lambda s=s: Sparsify(share=s), str(s)) for s in (-0.1, 0.0, 1.5, NAN)],
    *[("DeepCompression.drop", lambda s=s: DeepCompression(s), str(s)) for s in (-0.1, 1.0, 1.5, NAN)],
    *[("DeepCompression.share", lambda s=s: DeepCompression(share=s), str(s)) for s in (-0.1, 0.0, 1.5, NAN)],
    *[("DeepCompression.momentum", lambda s=s: DeepCompression(momentum=s), str(s)) for s in (-0.1, 1.0, NAN)],
    *[("RandomMask.share", lambda s=s: RandomMask(s), str(s)) for s in (-0.1, 0.0, 1.5, NAN)],
    *[("ChosenNoise.sigma", lambda s=s: ChosenNoise(s), str(s)) for s in (-0.1, NAN, float("inf"))],
    *[("ChosenNoise.share", lambda s=s: ChosenNoise(0.1, s), str(s)) for s in (-0.1, 0.0, 1.5, NAN)],
    *[("Quantise.bits", lambda s=s: Quantise(s), str(s)) for s in (0, -1, 25, 2.5, NAN)],
    *[("LowRank.rank", lambda s=s: LowRank(s), str(s)) for s in (0, -1, 1.5, NAN)],
]


@pytest.mark.parametrize(("field", "make", "value"), REFUSED, ids=[f"{f}={v}" for f, _, v in REFUSED])
def test_a_strength_out_of_range_is_one_line_with_field_and_value(
    field: str, make: Callable[[], object], value: str
) -> None:
    with pytest.raises(InputError) as caught:
        make()
    said = str(caught.value)
    assert said.startswith(f"{field} must be ")
    assert said.endswith(f"got {value}")
    assert "\n" not in said


@pytest.mark.parametrize("field", sorted(f for f in STRENGTHS if "each" not in f))
@pytest.mark.parametrize("bad", [-1.0, NAN])
def test_one_bad_trial_among_good_ones_is_refused(field: str, bad: float) -> None:
    make, strengths = STRENGTHS[field]
    with pytest.raises(InputError, match=field.replace(".", r"\.") + " must be"):
        make(torch.tensor([*strengths[:2], bad]))


@pytest.mark.parametrize("name", ["Sparsify", "DeepCompression"])
def test_drop_and_share_together_are_refused(name: str) -> None:
    make = {"Sparsify": Sparsify, "DeepCompression": DeepCompression}[name]
    for drop in (0.5, 0.99, torch.tensor([0.5, 0.9])):
        with pytest.raises(InputError, match=f"{name} .*drop .*share"):
            make(drop=drop, share=0.5)


def test_sigma_and_scale_together_are_refused() -> None:
    with pytest.raises(InputError, match=r"LaplaceNoise .*sigma .*scale"):
        LaplaceNoise(sigma=0.1, scale=0.1)


# -- in scenario files

CELL: dict[str, Any] = {"data": "fashion_mnist", "model": "lenet_cpl", "attack": "cpl", "trials": 2, "baselines": []}


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_a_file_can_name_every_defence(name: str) -> None:
    for said in (name, {"name": name}):
        settings, problems = check_cell({**CELL, "defences": [said]})
        assert problems == []
        assert settings is not None
        assert KINDS["defences"].build(settings["defences"][0]) == DEFENCES[name]()


@each_defence
def test_a_file_can_say_every_setting_of_a_defence(name: str) -> None:
    made = CASES[name]()
    settings, problems = check_cell({**CELL, "defences": [KINDS["defences"].describe(made)]})
    assert problems == []
    assert settings is not None
    assert KINDS["defences"].build(settings["defences"][0]) == made


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"name": "gaussian_noise", "sigma": -1.0}, "sigma"),
        ({"name": "laplace_noise", "scale": -1.0}, "scale"),
        ({"name": "clip", "bound": 0}, "bound"),
        ({"name": "sparsify", "drop": 1.0}, "drop"),
        ({"name": "sparsify", "share": 0}, "share"),
        ({"name": "deep_compression", "drop": 1.0}, "drop"),
        ({"name": "random_mask", "share": 2}, "share"),
        ({"name": "chosen_noise", "sigma": -1.0}, "sigma"),
        ({"name": "chosen_noise", "share": 0}, "share"),
        ({"name": "quantise", "bits": 0}, "bits"),
        ({"name": "quantise", "bits": 2.5}, "bits"),
        ({"name": "low_rank", "rank": 0}, "rank"),
        ({"name": "sign", "bits": 1}, "bits"),
    ],
)
def test_a_bad_setting_in_a_file_is_one_problem_at_its_field(said: dict[str, Any], field: str) -> None:
    settings, problems = check_cell({**CELL, "defences": ["clip" if said["name"] != "clip" else "sign", said]})
    assert settings is None
    assert [problem.path for problem in problems] == [("defences", 1, field)]
