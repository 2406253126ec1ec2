"""Law 7 in small, on real MNIST; and the slow comparison of whole runs with torch's own L-BFGS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.attacks.conftest import world
from tests.attacks.test_lbfgs import as_function

from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import cpl
from leakscope.attacks.starts import Normal
from leakscope.core.tree import take
from leakscope.core.types import Outcome
from leakscope.data import load
from leakscope.metrics import wilson


def mnist(directory: Path, number: int) -> torch.Tensor:
    return load("mnist", directory).pictures("test", range(number))


@pytest.mark.slow
@pytest.mark.real_data
def test_patterned_converges_on_mnist_faster_than_random(data_directory: Path) -> None:
    w = world(24, pictures=mnist(data_directory, 24))
    patterned = cpl(iterations=40).run(w.model, w.observation, w.knowledge, w.seeds, Execution(form="native"))
    random = cpl(start=Normal(), iterations=40).run(
        w.model, w.observation, w.knowledge, w.seeds, Execution(form="native")
    )
    converged = patterned.outcome == Outcome.CONVERGED
    assert int(converged.sum()) >= 23
    assert float(patterned.iterations[converged].double().mean()) <= 12
    assert patterned.labels.tolist() == w.batch.labels.tolist()
    both = converged & (random.outcome == Outcome.CONVERGED)
    assert float(random.iterations[both].double().mean()) >= 1.2 * float(patterned.iterations[both].double().mean())


@pytest.mark.slow
@pytest.mark.real_data
def test_whole_runs_agree_with_torchs_lbfgs_in_success_rate_and_median_steps(data_directory: Path) -> None:
    trials, steps, threshold = 36, 30, 1e-4
    torch.set_num_threads(2)
    w = world(trials, pictures=mnist(data_directory, trials))
    ours = cpl(iterations=steps).run(w.model, w.observation, w.knowledge, w.seeds, Execution(form="native"))
    problem, _ = cpl().prepare(w.model, w.observation, w.knowledge, w.seeds)
    torch.set_num_threads(1)
    taken: list[int | None] = []
    for i in range(trials):
        one = take(problem, torch.tensor([i]))
        function = as_function(Evaluator(w.model, one.unknowns, one.facts, "native"))
        x = one.unknowns["guess"][0].clone().requires_grad_()
        optimiser = torch.optim.LBFGS([x], lr=1, max_iter=20, history_size=100)
        taken.append(None)
        for step in range(steps + 1):
            values: list[float] = []

            def closure(function=function, x=x, optimiser=optimiser, values=values):  # type: ignore[no-untyped-def]
                optimiser.zero_grad()
                value = function(x)
                value.backward()
                values.append(float(value.detach()))
                return value

            optimiser.step(closure)
            if values[0] < threshold:
                taken[-1] = step
                break
    converged = ours.outcome == Outcome.CONVERGED
    our_rate, their_rate = float(converged.double().mean()), sum(t is not None for t in taken) / trials
    low, high = wilson(their_rate, trials)
    assert low <= our_rate <= high
    low, high = wilson(our_rate, trials)
    assert low <= their_rate <= high
    their_median = float(torch.tensor([t for t in taken if t is not None]).double().median())
    our_median = float(ours.iterations[converged].double().median())
    assert abs(our_median - their_median) <= 1
