"""Adam, Adagrad and SGD for many trials at once, step by step beside torch.optim; rules, schedules, projections."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.optimisers import SGD, Adagrad, Adam, Exponential, Optimiser, Rule, Steps
from leakscope.attacks.optimisers.rules import Interval, Moment, column, into_box, moving
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree, take
from leakscope.core.types import Knowledge

torch.set_num_threads(1)
TRIALS, STEPS = 4, 12
KNOWLEDGE = Knowledge((2,), 3, 3)
Make = Callable[[list[Tensor], float], torch.optim.Optimizer]
PAIRS: dict[str, tuple[Callable[[float | Tensor], Optimiser], Make]] = {
    "adam": (Adam, lambda p, lr: torch.optim.Adam(p, lr=lr)),
    "adam with other betas": (
        lambda rate: Adam(rate, betas=(0.5, 0.9), epsilon=1e-3),
        lambda p, lr: torch.optim.Adam(p, lr=lr, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adagrad": (Adagrad, lambda p, lr: torch.optim.Adagrad(p, lr=lr)),
    "sgd": (SGD, lambda p, lr: torch.optim.SGD(p, lr=lr)),
    "momentum": (lambda rate: SGD(rate, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CURVE = draw(0, TRIALS, 3, 2).square() + 0.1
CENTRE = draw(1, TRIALS, 3, 2)
START = {"guess": draw(2, TRIALS, 3, 2), "alpha": draw(3, TRIALS)}


def value_of(unknowns: Tree, trial: int) -> Tensor:
    """Return a quadratic of its own for each trial, in which the two unknowns are coupled."""
    apart = unknowns["guess"] - CENTRE[trial]
    return (CURVE[trial] * apart.square()).sum() / 2 + (unknowns["alpha"] - 0.3 * apart.sum()).square()


def gradient_of(unknowns: Tree) -> tuple[Tree, Tensor]:
    each = [torch.func.grad_and_value(value_of)(take(unknowns, i), i) for i in range(TRIALS)]
    return {n: torch.stack([g[n] for g, _ in each]) for n in unknowns}, torch.stack([v for _, v in each])


def follow(optimiser: Optimiser, rules: Mapping[str, Rule], steps: int = STEPS) -> list[Tree]:
    """Return the unknowns of all trials after every step, driven as the engine drives: who rests has no gradient."""
    optimiser.check(rules)
    unknowns = START
    state = optimiser.begin(unknowns)
    iteration = torch.zeros(TRIALS, dtype=torch.int64)
    found = []
    for tick in range(steps):
        gradient, value = gradient_of(unknowns)
        gradient = {name: gradient[name] for name in moving(unknowns, rules, tick)}
        ended, gained = optimiser.settle(state, Moment(gradient, value, iteration, tick))
        iteration = iteration + ended
        assert gained is None
        unknowns, stuck = optimiser.move(unknowns, state, Moment(gradient, value, iteration, tick), rules, KNOWLEDGE)
        assert stuck is None
        found.append(unknowns)
    return found


def torch_follow(
    make: Make,
    trial: int,
    rates: Mapping[str, float],
    *,
    sign: bool = False,
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
    project: Callable[[str, Tensor], Tensor] | None = None,
    every: Mapping[str, int] | None = None,
) -> list[Tree]:
    """Return one trial's unknowns after every step of torch's own optimisers, one for each unknown; `every` skips steps."""
    leaves = {n: v[trial].clone().requires_grad_() for n, v in START.items()}
    optimisers = [make([leaf], rates[n]) for n, leaf in leaves.items()]
    schedulers = [schedule(o) for o in optimisers] if schedule else []
    found = []
    for step in range(STEPS):
        for optimiser in optimisers:
            optimiser.zero_grad()
        value_of(leaves, trial).backward()
        for leaf in leaves.values():
            if sign:
                leaf.grad.sign_()
        turns = [o for n, o in zip(leaves, optimisers, strict=True) if step % (every or {}).get(n, 1) == 0]
        for piece in (*turns, *schedulers):
            piece.step()
        if project:
            with torch.no_grad():
                for n, leaf in leaves.items():
                    leaf.copy_(project(n, leaf))
        found.append({n: leaf.detach().clone() for n, leaf in leaves.items()})
    return found


def agree(ours: list[Tree], trial: int, expected: list[Tree]) -> None:
    assert len(ours) == len(expected) == STEPS
    for made, want in zip(ours, expected, strict=True):
        assert_close(take(made, trial), want, rtol=1e-10, atol=1e-10)


PLAIN = {"guess": Rule(), "alpha": Rule()}
BOTH = {"guess": 0.1, "alpha": 0.1}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_every_trial_takes_the_steps_of_torch_optim(name: str) -> None:
    ours, make = PAIRS[name]
    found = follow(ours(0.1), PLAIN)
    for trial in range(TRIALS):
        agree(found, trial, torch_follow(make, trial, BOTH))


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_the_sign_rule_feeds_the_sign_of_the_gradient(name: str) -> None:
    ours, make = PAIRS[name]
    found = follow(ours(0.1), {"guess": Rule(sign=True), "alpha": Rule(sign=True)})
    for trial in range(TRIALS):
        agree(found, trial, torch_follow(make, trial, BOTH, sign=True))


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_each_unknown_has_its_own_rate_and_each_trial_too(name: str) -> None:
    ours, make = PAIRS[name]
    per_trial = torch.tensor([0.1, 0.2, 0.05, 0.01], dtype=torch.float64)
    own = torch.tensor([1.0, 0.5, 3.0, 2.0], dtype=torch.float64)
    found = follow(ours(per_trial), {"guess": Rule(rate=own), "alpha": Rule(rate=0.1)})
    for trial in range(TRIALS):
        rate = float(per_trial[trial])
        agree(found, trial, torch_follow(make, trial, {"guess": rate * float(own[trial]), "alpha": rate * 0.1}))


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_steps_is_torchs_multi_step_schedule(name: str) -> None:
    ours, make = PAIRS[name]
    rule = Rule(schedule=Steps((3, 5, 5, 9), factor=0.3))
    found = follow(ours(0.1), {"guess": rule, "alpha": rule})
    for trial in range(TRIALS):
        expected = torch_follow(
            make, trial, BOTH, schedule=lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 5, 5, 9], gamma=0.3)
        )
        agree(found, trial, expected)


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_exponential_is_torchs_step_schedule(name: str) -> None:
    ours, make = PAIRS[name]
    rule = Rule(schedule=Exponential(0.995, every=4))
    found = follow(ours(0.1), {"guess": rule, "alpha": rule})
    expected = torch_follow(make, 1, BOTH, schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 4, gamma=0.995))
    agree(found, 1, expected)


def test_a_schedule_of_one_unknown_leaves_the_other_alone() -> None:
    make = PAIRS["adam"][1]
    found = follow(Adam(0.1), {"guess": Rule(rate=1e-30, schedule=Steps((2,))), "alpha": Rule()})
    fixed = torch_follow(make, 0, {"guess": 1e-30, "alpha": 0.1})
    agree([{"alpha": f["alpha"], "guess": START["guess"]} for f in found], 0, fixed)


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_an_unknown_that_rests_takes_torchs_steps_in_its_turns_alone(name: str, every: int) -> None:
    ours, make = PAIRS[name]
    schedule = Steps((3, 5, 9), factor=0.3)
    found = follow(ours(0.1), {"guess": Rule(schedule=schedule), "alpha": Rule(schedule=schedule, every=every)})
    for trial in range(TRIALS):
        expected = torch_follow(
            make,
            trial,
            BOTH,
            schedule=lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 5, 9], gamma=0.3),
            every={"alpha": every},
        )
        agree(found, trial, expected)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_an_unknown_that_rests_keeps_its_bits_and_the_others_go_on(name: str) -> None:
    rules = {"guess": Rule(), "alpha": Rule(every=3, project=lambda value, _: value * 0.5)}  # nor is it projected
    way = [START, *follow(PAIRS[name][0](0.1), rules)]
    for tick, (before, after) in enumerate(itertools.pairwise(way)):
        assert torch.equal(before["alpha"], after["alpha"]) == (tick % 3 > 0)
        assert not torch.equal(before["guess"], after["guess"])


def test_unknowns_that_never_rest_have_the_bits_of_the_formula() -> None:
    unknowns, first, second = START, *({n: torch.zeros_like(v) for n, v in START.items()} for _ in range(2))
    for number, made in enumerate(follow(Adam(0.1), {"guess": Rule(), "alpha": Rule(rate=0.3, every=1)}), start=1):
        gradient, _ = gradient_of(unknowns)
        first = {n: m.lerp(gradient[n], 1 - 0.9) for n, m in first.items()}
        second = {n: (m * 0.999).addcmul(gradient[n], gradient[n], value=1 - 0.999) for n, m in second.items()}
        steps = {n: first[n] / ((m.sqrt() / (1 - 0.999**number) ** 0.5) + 1e-8) for n, m in second.items()}
        rates = {n: 0.1 * rate / (1 - 0.9**number) for n, rate in {"guess": 1.0, "alpha": 0.3}.items()}
        unknowns = {n: v - rates[n] * steps[n] for n, v in unknowns.items()}
        assert_close(made, unknowns, rtol=0, atol=0)


@given(every=st.integers(1, 9), iterations=st.integers(0, 40))
def test_an_unknown_has_one_turn_in_every_so_many_iterations_beginning_with_the_first(
    every: int, iterations: int
) -> None:
    rules = {"guess": Rule(), "alpha": Rule(every=every)}
    turns = [moving(["guess", "alpha"], rules, iteration) for iteration in range(iterations)]
    assert all("guess" in turn for turn in turns)
    assert [i for i, turn in enumerate(turns) if "alpha" in turn] == list(range(0, iterations, every))


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_a_rule_that_moves_never_or_in_between_is_refused(every: float) -> None:
    with pytest.raises(InputError, match=rf"Rule\.every .*got {every}"):
        Rule(every=every)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_iterations_in_which_all_rest_are_refused(name: str) -> None:
    optimiser = PAIRS[name][0](0.1)
    optimiser.check({"guess": Rule(every=2), "alpha": Rule()})
    with pytest.raises(InputError, match=r"every .*guess 2, alpha 3"):
        optimiser.check({"guess": Rule(every=2), "alpha": Rule(every=3)})


def test_schedules_count_the_iterations_of_each_trial() -> None:
    assert_close(
        Steps((3, 5), 0.5)(torch.tensor([0, 2, 3, 4, 5, 9])),
        torch.tensor([1, 1, 0.5, 0.5, 0.25, 0.25]),
        check_dtype=False,
    )
    assert_close(Exponential(0.5, 2)(torch.tensor([0, 1, 2, 5])), torch.tensor([1, 1, 0.5, 0.25]), check_dtype=False)
    assert_close(Steps(())(torch.tensor([0, 7])).expand(2), torch.ones(2), check_dtype=False)


@pytest.mark.parametrize("schedule", [Steps((1,), 0.1), Exponential(0.1, 1)])
def test_schedules_are_exact_in_double_precision(schedule: Callable[[Tensor], Tensor]) -> None:
    """0.1 in single precision is 1.5e-9 too large, which a float64 run must not inherit."""
    assert abs(float(schedule(torch.tensor([1]))[0]) - 0.1) < 1e-15


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_projection_comes_after_every_step(name: str) -> None:
    ours, make = PAIRS[name]
    scaling = Scaling((0.4,), (0.5,))
    low, high = (0 - 0.4) / 0.5, (1 - 0.4) / 0.5
    knowledge = Knowledge((2,), 3, 3, scaling=scaling)
    rules = {"guess": Rule(project=into_box), "alpha": Rule(project=Interval(0.0, 0.2))}
    unknowns, found = START, []
    optimiser = ours(0.3)
    state, zero = optimiser.begin(unknowns), torch.zeros(TRIALS, dtype=torch.int64)
    for tick in range(STEPS):
        gradient, value = gradient_of(unknowns)
        unknowns, _ = optimiser.move(unknowns, state, Moment(gradient, value, zero + tick, tick), rules, knowledge)
        found.append(unknowns)
    for trial in range(TRIALS):
        agree(
            found,
            trial,
            torch_follow(
                make,
                trial,
                {"guess": 0.3, "alpha": 0.3},
                project=lambda n, v: v.clamp(low, high) if n == "guess" else v.clamp(0.0, 0.2),
            ),
        )


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_unknowns_and_gradients_given_are_left_alone(name: str) -> None:
    optimiser = PAIRS[name][0](0.1)
    start, gradient = ({n: v.clone() for n, v in tree.items()} for tree in (START, gradient_of(START)[0]))
    kept = [{n: v.clone() for n, v in tree.items()} for tree in (start, gradient)]
    moment = Moment(gradient, torch.zeros(TRIALS), torch.zeros(TRIALS, dtype=torch.int64), 0)
    moved, _ = optimiser.move(start, optimiser.begin(start), moment, PLAIN, KNOWLEDGE)
    assert_close([start, gradient], kept, rtol=0, atol=0)
    assert (moved["guess"] != start["guess"]).all()


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_trial_that_is_not_finite_touches_no_neighbour(name: str) -> None:
    optimiser = PAIRS[name][0](0.1)
    gradient, value = gradient_of(START)
    spoiled = {n: g.clone() for n, g in gradient.items()}
    spoiled["guess"][2] = float("nan")
    zero = torch.zeros(TRIALS, dtype=torch.int64)
    good, bad = (
        optimiser.move(START, optimiser.begin(START), Moment(g, value, zero, 0), PLAIN, KNOWLEDGE)[0]
        for g in (gradient, spoiled)
    )
    others = torch.tensor([0, 1, 3])
    assert_close(take(bad, others), take(good, others), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_every_evaluation_after_the_first_ends_an_iteration(name: str) -> None:
    optimiser = PAIRS[name][0](0.1)
    gradient, value = gradient_of(START)
    zero = torch.zeros(TRIALS, dtype=torch.int64)
    ends = [optimiser.settle({}, Moment(gradient, value, zero, tick))[0] for tick in range(3)]
    assert [end.tolist() for end in ends] == [[False] * TRIALS, [True] * TRIALS, [True] * TRIALS]


def test_the_dtype_of_an_unknown_is_kept_whatever_the_rates_are_given_in() -> None:
    unknowns = {"guess": draw(0, TRIALS, 2).float()}
    moment = Moment(unknowns, torch.zeros(TRIALS), torch.zeros(TRIALS, dtype=torch.int64), 0)
    rates = torch.full((TRIALS,), 0.1, dtype=torch.float64)
    for optimiser in (Adam(rates), Adagrad(rates), SGD(rates)):
        rules = {"guess": Rule(rate=rates, schedule=Steps((1,)))}
        moved, _ = optimiser.move(unknowns, optimiser.begin(unknowns), moment, rules, KNOWLEDGE)
        assert moved["guess"].dtype == torch.float32


def test_a_column_broadcasts_one_number_per_trial() -> None:
    assert column(2.0, draw(0, 3, 2)) == 2.0
    wide = column(torch.tensor([1.0, 2.0, 3.0]), draw(0, 3, 2, 2))
    assert wide.shape == (3, 1, 1)
    assert wide.dtype == torch.float64


@pytest.mark.parametrize("make", [Adam, Adagrad, SGD])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), torch.tensor([0.1, 0.0])])
def test_a_rate_that_is_not_positive_is_refused(make: Callable[..., Optimiser], rate: float | Tensor) -> None:
    with pytest.raises(InputError, match=rf"{make.__name__}\.rate"):
        make(rate)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_outside_its_range_is_refused_as_the_users_mistake(momentum: float) -> None:
    with pytest.raises(InputError, match=r"SGD\.momentum"):
        SGD(0.1, momentum=momentum)
