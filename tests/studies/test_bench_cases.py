"""The loop that the benchmark times attacks the same problem as the engine."""

from __future__ import annotations

import torch

from leakscope.attacks.engine.forms import Evaluator
from leakscope.studies.bench_cases import CASES, loop_attack, set_up

torch.set_num_threads(1)


def test_the_loop_attacks_the_weights_and_pictures_of_the_engines_trial() -> None:
    setup = set_up(CASES["lenet"], "cpu", 2)
    problem, zero = setup.problem, torch.zeros(2, dtype=torch.int64)
    evaluate = Evaluator(setup.model, problem.unknowns, problem.facts, "native")
    before = evaluate(problem.unknowns, zero).mismatch
    guesses = torch.stack([loop_attack(setup, i, "cpu", 2, True) for i in range(2)])
    after = evaluate({**problem.unknowns, "guess": guesses}, zero).mismatch
    assert bool((after < 0.3 * before).all()), (before, after)
