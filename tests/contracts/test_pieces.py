"""One table per kind of attack piece: shape, dtype, repeatability, input untouched, lifted equal to one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.distances import DISTANCES
from leakscope.attacks.labels import LABEL_RULES
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS, PRIORS
from leakscope.attacks.simulate import ALPHA, LABEL, SHIFT, SIMULATORS, LocalSteps, OneGradient, OnTheLine, Shifted
from leakscope.attacks.starts import STARTS, Insider
from leakscope.attacks.view import Clock, Simulated, Simulator, View
from leakscope.clients import Client, told
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.registry import summary
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift, take, tensors, to
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.models import Torch, build, draw_parameters

torch.set_num_threads(1)
TRIALS, SAMPLES, CLASSES = 3, 2, 4
SHAPE = (3, 8, 8)
SEEDS = [5, 6, 7]
KEYS = random.key(SEEDS)
SCALING = Scaling((0.4, 0.5, 0.6), (0.2, 0.3, 0.5))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def network(dtype: torch.dtype) -> Model:
    return to(build("lenet_dlg", SHAPE, CLASSES, {"width": 2}), dtype=dtype)


def played(
    dtype: torch.dtype = torch.float32, samples: int = SAMPLES, local: LocalTraining | None = None
) -> tuple[Model, Observation, Knowledge, Batch]:
    model = network(dtype)
    inputs = torch.rand((TRIALS, samples, *SHAPE), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (TRIALS, samples), generator=torch.Generator().manual_seed(0))
    batch = make_batch(inputs.to(dtype), labels, classes=CLASSES)
    client = Client(local, scaling=SCALING)
    weights = to(draw_parameters(model, Torch(), KEYS), dtype=dtype)
    return model, client.observe(model, weights, batch, SEEDS), told(model, client, batch, labels=True), batch


def same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    """Compare every tensor of two values, dtypes too."""
    assert_close(list(tensors(one)), list(tensors(other)), rtol=tolerance, atol=tolerance)


def untouched(f: Callable[..., Any], *arguments: Any) -> Any:
    """Return `f(*arguments)` after checking that it left its arguments alone and gives the same again."""
    kept = copy.deepcopy(list(tensors(arguments)))
    generator = torch.get_rng_state()
    made = f(*arguments)
    same(list(tensors(arguments)), kept)
    same(f(*arguments), made)
    assert torch.equal(torch.get_rng_state(), generator), "a piece must not touch the global generator"
    return made


# -- starts

START_CASES: dict[str, Callable[[], Any]] = {
    **STARTS,
    "insider": lambda: Insider(draw(9, TRIALS, SAMPLES, *SHAPE).sigmoid()),
}


@pytest.mark.parametrize("name", sorted(START_CASES))
def test_a_start_gives_every_trial_its_guess(name: str) -> None:
    start, knowledge = START_CASES[name](), Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING)
    many = untouched(lift(lambda s, k: s(k, knowledge)), start, KEYS)
    assert many.shape == (TRIALS, SAMPLES, *SHAPE)
    assert many.dtype == torch.float32
    assert many.isfinite().all()
    for i in range(TRIALS):
        same(many[i], take(start, i)(KEYS[i], knowledge))


@pytest.mark.parametrize("name", ["normal", "uniform", "patterned", "patterned4"])
def test_a_random_start_differs_from_trial_to_trial_and_from_sample_to_sample(name: str) -> None:
    many = lift(lambda k: STARTS[name]()(k, Knowledge(SHAPE, CLASSES, SAMPLES)))(KEYS)
    flat = many.flatten(0, 1).flatten(1)
    assert torch.unique(flat, dim=0).shape[0] == TRIALS * SAMPLES


@pytest.mark.parametrize("name", sorted(set(STARTS) - {"normal"}))
def test_a_start_in_picture_space_lies_in_the_valid_box(name: str) -> None:
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING)
    made = STARTS[name]()(KEYS[0], knowledge)
    assert_close(SCALING.clamp(made, 3), made, rtol=1e-6, atol=1e-6)


# -- distances


@DTYPES
@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_a_distance_is_one_number_per_trial(name: str, dtype: torch.dtype) -> None:
    a = {"w": draw(0, TRIALS, 3, 2, dtype=dtype), "b": draw(1, TRIALS, 4, dtype=dtype)}
    b = {"w": draw(2, TRIALS, 3, 2, dtype=dtype), "b": draw(3, TRIALS, 4, dtype=dtype)}
    many = untouched(lift(DISTANCES[name]), a, b)
    assert many.shape == (TRIALS,)
    assert many.dtype == dtype
    for i in range(TRIALS):
        same(many[i], DISTANCES[name](take(a, i), take(b, i)), 1e-6)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_a_distance_does_not_care_for_the_order_of_names(name: str) -> None:
    a, b = ({"w": draw(s, 3, 2), "b": draw(s + 1, 4)} for s in (0, 5))
    turned = {n: b[n] for n in reversed(b)}
    same(DISTANCES[name](a, turned), DISTANCES[name](a, b), 1e-6)


# -- priors


@DTYPES
@pytest.mark.parametrize("weight", [0.5, torch.tensor([0.0, 0.5, 2.0])])
@pytest.mark.parametrize("name", sorted(PRIORS))
def test_a_prior_is_one_penalty_per_trial(name: str, weight: float | Tensor, dtype: torch.dtype) -> None:
    prior = to(PRIORS[name](weight), dtype=dtype)
    knowledge = Knowledge(SHAPE, CLASSES, SAMPLES, scaling=SCALING)
    guess, output = 3 * draw(0, TRIALS, SAMPLES, *SHAPE, dtype=dtype), draw(1, TRIALS, SAMPLES, CLASSES, dtype=dtype)

    def penalty(prior: Any, guess: Tensor, output: Tensor, key: Tensor) -> Tensor:
        made = Simulated({}, output, torch.zeros_like(output))
        return prior(View({GUESS: guess}, made, {}, None, knowledge, Clock(torch.tensor(0), key)))

    many = untouched(lift(penalty), prior, guess, output, KEYS)
    assert many.shape == (TRIALS,)
    assert many.dtype == dtype
    assert (many >= 0).all()
    for i in range(TRIALS):
        same(many[i], penalty(take(prior, i), guess[i], output[i], KEYS[i]), 1e-5)


# -- label rules


@DTYPES
@pytest.mark.parametrize("local", [None, LocalTraining(epochs=2, rate=0.05)], ids=["gradient", "weights"])
@pytest.mark.parametrize("name", sorted(LABEL_RULES))
def test_a_label_rule_names_a_class_for_every_sample(
    name: str, local: LocalTraining | None, dtype: torch.dtype
) -> None:
    model, seen, knowledge, _ = played(dtype, 1 if name in ("idlg", "cpl") else 4, local)
    rule = LABEL_RULES[name]
    many = untouched(lambda s, k, keys: rule(model, s, k, keys), seen, knowledge, KEYS)
    assert many.shape == (TRIALS, knowledge.samples)
    assert many.dtype == torch.int64
    assert ((many >= 0) & (many < CLASSES)).all()
    for i in range(TRIALS):
        one = slice(i, i + 1)
        same(rule(model, *take((seen, knowledge, KEYS), one)), many[one])


@pytest.mark.parametrize("name", sorted(set(LABEL_RULES) - {"known"}))
def test_a_label_rule_reads_and_is_not_told(name: str) -> None:
    model, seen, knowledge, batch = played(samples=1)
    wrong = replace(knowledge, labels=(batch.labels + 1) % CLASSES)
    same(LABEL_RULES[name](model, seen, wrong, KEYS), batch.labels)


# -- simulators

SIMULATOR_CASES: dict[str, Callable[[], Simulator]] = {
    "one_gradient": OneGradient,
    "on_the_line": lambda: OnTheLine(OneGradient()),
    "shifted": lambda: Shifted(OneGradient()),
    "local_steps": LocalSteps,
    "local_steps, recomputed": lambda: LocalSteps(segment=2),
    "on_the_line of shifted": lambda: OnTheLine(Shifted(OneGradient())),
    "shifted of local_steps": lambda: Shifted(LocalSteps()),
}


def test_every_registered_simulator_has_a_case() -> None:
    assert set(SIMULATORS) <= set(SIMULATOR_CASES)
    assert all(isinstance(SIMULATOR_CASES[name](), SIMULATORS[name]) for name in SIMULATORS)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@DTYPES
@pytest.mark.parametrize("joint", [False, True], ids=["known labels", "joint labels"])
@pytest.mark.parametrize("name", sorted(SIMULATOR_CASES))
def test_a_simulator_gives_every_trial_an_update_like_the_one_it_saw(
    name: str, joint: bool, dtype: torch.dtype
) -> None:
    model, seen, knowledge, _ = played(dtype, local=LocalTraining(epochs=2, batch_size=1, rate=0.05))
    simulate, first = SIMULATOR_CASES[name](), seen.rounds[0]
    unknowns = {
        GUESS: draw(0, TRIALS, SAMPLES, *SHAPE, dtype=dtype),
        ALPHA: draw(1, TRIALS, dtype=dtype).sigmoid(),
        SHIFT: 0.1 * draw(2, TRIALS, SAMPLES, 2, dtype=dtype),
    }
    if joint:
        unknowns[LABEL], knowledge = draw(3, TRIALS, SAMPLES, CLASSES, dtype=dtype), replace(knowledge, labels=None)
    clock = Clock(torch.tensor([0, 3, 9]), KEYS)
    many = untouched(lift(lambda u, r, k, c: simulate(model, u, r, k, c)), unknowns, first, knowledge, clock)
    assert {n: (v.shape, v.dtype) for n, v in many.update.items()} == {
        n: (v.shape, dtype) for n, v in first.sent.items()
    }
    assert many.output.shape == many.targets.shape == (TRIALS, SAMPLES, CLASSES)
    assert_close(many.targets.sum(-1), torch.ones(TRIALS, SAMPLES, dtype=dtype))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for i in range(TRIALS):
        same(simulate(model, *take((unknowns, first, knowledge, clock), i)), take(many, i), tolerance)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", sorted(SIMULATOR_CASES))
def test_a_simulator_has_a_finite_derivative_in_every_unknown_it_reads(name: str) -> None:
    model, seen, knowledge, _ = played(torch.float64, local=LocalTraining(epochs=2, batch_size=1, rate=0.05))
    simulate = SIMULATOR_CASES[name]()
    unknowns = {
        GUESS: draw(0, TRIALS, SAMPLES, *SHAPE, dtype=torch.float64),
        LABEL: draw(3, TRIALS, SAMPLES, CLASSES, dtype=torch.float64),
        ALPHA: draw(1, TRIALS, dtype=torch.float64).sigmoid(),
        SHIFT: 0.1 * draw(2, TRIALS, SAMPLES, 2, dtype=torch.float64),
    }

    def mismatch(unknowns: Any, seen: Any, knowledge: Knowledge, key: Tensor) -> Tensor:
        clock = Clock(torch.tensor(0), key)
        made = simulate(model, unknowns, seen, knowledge, clock)
        return Match()(View(unknowns, made, seen.sent, seen, knowledge, clock))

    slope = lift(torch.func.grad(mismatch))(unknowns, seen.rounds[0], knowledge, KEYS)
    assert all(bool(value.isfinite().all()) for value in slope.values())
    reads = {GUESS, LABEL} | ({ALPHA} if "line" in name else set()) | ({SHIFT} if "shifted" in name else set())
    for unknown, value in slope.items():
        assert bool((value.reshape(TRIALS, -1).abs().amax(1) > 0).all()) is (unknown in reads)


# -- all


@pytest.mark.parametrize("table", [DISTANCES, PRIORS, LABEL_RULES, SIMULATORS])
def test_every_piece_says_in_one_line_what_it_is(table: dict[str, Any]) -> None:
    assert all(len(summary(piece)) > 10 for piece in table.values())
