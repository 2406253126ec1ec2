"""Batched L-BFGS follows torch.optim.LBFGS without line search (law 1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.attacks.conftest import world
from torch import Tensor

from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.optimisers import LBFGS, Rule
from leakscope.attacks.optimisers.rules import Moment
from leakscope.attacks.recipes import cpl
from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.core.types import Knowledge

NOTHING = Knowledge((1,), 2, 1)
RULES = {"x": Rule()}
F = Callable[[Tensor], Tensor]


def torch_steps(
    f: F, start: Tensor, steps: int, **settings: float
) -> tuple[list[Tensor], list[tuple[Tensor, float, Tensor]]]:
    """Return x after every step() of torch's own, and every evaluation (x, value, gradient) it made."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([x], **{"lr": 1.0, "max_iter": 20, "history_size": 100, **settings})
    log: list[tuple[Tensor, float, Tensor]] = []

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = f(x)
        value.backward()
        log.append((x.detach().clone(), float(value.detach()), x.grad.clone()))
        return value

    after = []
    for _ in range(steps):
        optimiser.step(closure)
        after.append(x.detach().clone())
    return after, log


def our_steps(functions: list[F], start: Tensor, steps: int, optimiser: LBFGS) -> list[list[Tensor]]:
    """Return, trial by trial, x after every iteration; trials end on their own."""
    T = len(start)
    state = optimiser.begin({"x": start})
    x, iteration = {"x": start.clone()}, torch.zeros(T, dtype=torch.int64)
    after: list[list[Tensor]] = [[] for _ in range(T)]
    gone = torch.zeros(T, dtype=torch.bool)
    for tick in range(steps * optimiser.inner + 1):
        values, gradients = [], []
        for i, f in enumerate(functions):
            leaf = x["x"][i].clone().requires_grad_()
            value = f(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
            values.append(value.detach())
            gradients.append(gradient)
        moment = Moment({"x": torch.stack(gradients)}, torch.stack(values), iteration, tick)
        ended, vanished = optimiser.settle(state, moment)
        for i in range(T):
            if bool(ended[i]) and not bool(gone[i]):
                after[i].append(x["x"][i].clone())
        gone |= vanished
        new, stuck = optimiser.move(x, state, moment, RULES, NOTHING)
        x = {"x": torch.where((gone | stuck)[:, None], x["x"], new["x"])}
        gone |= stuck
    for i in range(T):
        after[i] += [x["x"][i].clone()] * (steps - len(after[i]))
    return [a[:steps] for a in after]


def quadratic(seed: int, size: int = 12) -> F:
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=g, dtype=torch.float64)
    matrix = root @ root.T / size + 0.05 * torch.eye(size, dtype=torch.float64)
    centre = torch.randn(size, generator=g, dtype=torch.float64)
    return lambda x: 0.5 * (x - centre) @ matrix @ (x - centre)


def rosenbrock(x: Tensor) -> Tensor:
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def assert_same_path(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a - b).norm() <= 1e-6 * b.norm().clamp_min(1e-3), f"step {step}: {a} against {b}"


def test_quadratics_of_different_shape_and_stopping_time_follow_torch() -> None:
    functions = [quadratic(seed) for seed in range(5)]
    start = torch.stack([torch.randn(12, dtype=torch.float64) * 10.0**-i for i in range(5)])
    ours = our_steps(functions, start, 30, LBFGS(inner=4))
    for i, f in enumerate(functions):
        theirs, _ = torch_steps(f, start[i], 30, max_iter=4)
        assert_same_path(ours[i], theirs)


def test_a_short_history_that_wraps_follows_torch() -> None:
    functions = [quadratic(seed, 20) for seed in range(3)]
    start = torch.randn(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = our_steps(functions, start, 12, LBFGS(inner=3, history=5, rate=0.7))
    for i, f in enumerate(functions):
        theirs, _ = torch_steps(f, start[i], 12, max_iter=3, history_size=5, lr=0.7)
        assert_same_path(ours[i], theirs)


def test_rosenbrock_with_skipped_pairs_follows_torch() -> None:
    # from (0.5, 1.5) at rate 1 torch skips pairs whose curvature is not positive: histories then differ in length
    start = torch.tensor([[-0.3, 0.4], [0.5, 1.5], [0.9, 0.8], [1.0, 1.0]], dtype=torch.float64)
    ours = our_steps([rosenbrock] * 4, start, 30, LBFGS(inner=2))
    for i in range(4):
        theirs, _ = torch_steps(rosenbrock, start[i], 30, max_iter=2)
        assert_same_path(ours[i], theirs)


def as_function(evaluate: Evaluator) -> F:
    """Return the engine's evaluation of one trial as something torch.optim can differentiate."""
    zero = torch.zeros(1, dtype=torch.int64)

    class Value(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            made = evaluate({"guess": x[None]}, zero)
            ctx.save_for_backward(made.gradient["guess"][0])
            return made.total[0]

        @staticmethod
        def backward(ctx, out):  # type: ignore[no-untyped-def]
            return out * ctx.saved_tensors[0]

    return Value.apply


@pytest.mark.slow
def test_every_inner_iteration_of_a_lenet_attack_agrees_with_torch_from_the_same_state() -> None:
    w = world(2, name="lenet_dlg", dtype=torch.float64)
    problem, _ = cpl().prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(dtype="float64"))
    for i in range(2):
        one = take(problem, torch.tensor([i]))
        evaluate = Evaluator(w.model, one.unknowns, one.facts, "native")
        zero = torch.zeros(1, dtype=torch.int64)

        _, log = torch_steps(as_function(evaluate), one.unknowns["guess"][0], 6)
        optimiser = LBFGS()
        state = optimiser.begin({"x": log[0][0][None]})
        for tick, ((x, value, gradient), (following, _, _)) in enumerate(itertools.pairwise(log)):
            moment = Moment({"x": gradient[None]}, torch.tensor([value], dtype=x.dtype), zero, tick)
            optimiser.settle(state, moment)
            new, _ = optimiser.move({"x": x[None]}, state, moment, RULES, NOTHING)
            error = (new["x"][0] - following).norm() / following.norm()
            assert error < 1e-8, f"tick {tick}: {float(error)}"
            state["step"] = (following - x).reshape(1, -1)


def test_sign_rules_and_schedules_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"LBFGS .*sign"):
        LBFGS().check({"guess": Rule(sign=True)})
    with pytest.raises(InputError, match=r"every .*got 2 .*'alpha'"):
        LBFGS().check({"guess": Rule(), "alpha": Rule(every=2)})


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"inner": 0}, {"history": 0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="LBFGS"):
        LBFGS(**settings)  # type: ignore[arg-type]


def test_a_rate_per_trial_equals_separate_runs() -> None:
    f = quadratic(4)
    start = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    together = our_steps([f, f], start, 6, LBFGS(inner=3, rate=torch.tensor([1.0, 0.3], dtype=torch.float64)))
    for i, rate in enumerate((1.0, 0.3)):
        alone = our_steps([f], start[i : i + 1], 6, LBFGS(inner=3, rate=rate))
        assert_same_path(together[i], alone[0])
