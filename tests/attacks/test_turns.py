"""Unknowns that rest in some iterations: nothing is differentiated in them there, and nothing else changes."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.attacks.conftest import World, world
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from leakscope.attacks.engine import forms
from leakscope.attacks.engine.forms import FORMS, Evaluation, Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.engine.state import Problem
from leakscope.attacks.optimisers import LBFGS, Rule
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import ig_update, sme
from leakscope.attacks.simulate import ALPHA
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, flat_names
from leakscope.core.types import LocalTraining, Reconstruction
from leakscope.kernels import graph_cache as graphs
from leakscope.sweep.merging import shape_of

NATIVE = Execution(form="native", chunk=4)  # whoever names both has planned: nothing is evaluated to measure
BOTH, ALONE = (GUESS, ALPHA), (GUESS,)


@pytest.fixture(autouse=True)
def _empty() -> None:
    graphs._CACHE.clear()


def small(trials: int = 2, *, name: str = "mlp", side: int = 8, dtype: torch.dtype = torch.float32) -> World:
    local = LocalTraining(epochs=3, rate=0.05)
    shape = (3 if name == "cnn_cifar" else 1, side, side)
    return world(trials, name=name, shape=shape, samples=2, local=local, labels=True, dtype=dtype, a=0.2)


def problem_of(w: World, *, dtype: str = "float32", every: int = 1) -> Problem:
    return sme(alpha_every=every).prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(dtype=dtype))[0]


def attacked(w: World, execution: Execution = NATIVE, *, every: int = 3, **settings: float) -> Reconstruction:
    how = sme(alpha_every=every, alpha_rate=0.01, rate=0.1, **settings)  # type: ignore[arg-type]
    return how.run(w.model, w.observation, w.knowledge, w.seeds, execution)


def same_bits(a: Reconstruction, b: Reconstruction) -> bool:
    other = flat_names(b)
    return all(torch.equal(torch.nan_to_num(x), torch.nan_to_num(other[n])) for n, x in flat_names(a).items())


def at(problem: Problem, alpha: float) -> Tree:
    return {**problem.unknowns, ALPHA: torch.full_like(problem.unknowns[ALPHA], alpha)}


# -- one evaluation


CASES = [(form, "mlp" if form in ("split", "parallel", "compiled") else "cnn_mnist") for form in FORMS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in ("compiled", "im2col", "channels_last")))
        for case in CASES
    ],
)
def test_the_gradient_of_some_unknowns_is_that_part_of_the_whole_one(form: str, name: str) -> None:
    """Traced or not, and wherever the unknown that rests has got to: it is an input, not a fixed number."""
    if form == "compiled" and shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    w = small(name=name, dtype=torch.float64)
    problem, zero = problem_of(w, dtype="float64"), torch.zeros(2, dtype=torch.int64)
    whole = Evaluator(w.model, problem.unknowns, problem.facts, "native")
    part = Evaluator(w.model, problem.unknowns, problem.facts, form, wanted=ALONE, trace_after=1)
    totals = []
    for alpha in (0.5, 0.1, 0.9, 0.9):
        found, expected = (evaluate(at(problem, alpha), zero) for evaluate in (part, whole))
        assert list(found.gradient) == list(ALONE)
        assert list(expected.gradient) == list(BOTH)
        assert_close(found.gradient[GUESS], expected.gradient[GUESS], rtol=1e-9, atol=1e-12)
        assert_close((found.total, found.mismatch), (expected.total, expected.mismatch), rtol=1e-9, atol=1e-12)
        totals.append(float(found.total[0]))
    assert len(set(totals)) == 3


def test_an_evaluation_in_all_unknowns_has_the_bits_of_one_that_names_them() -> None:
    w = small()
    problem, zero = problem_of(w), torch.zeros(2, dtype=torch.int64)
    plain, named = (
        Evaluator(w.model, problem.unknowns, problem.facts, "native", wanted=wanted)(problem.unknowns, zero)
        for wanted in (None, BOTH[::-1])
    )
    assert_close((plain.gradient, plain.total), (named.gradient, named.total), rtol=0, atol=0)


@pytest.mark.slow
def test_evaluations_that_differ_in_what_is_wanted_have_graphs_of_their_own() -> None:
    w = small()
    problem, zero = problem_of(w), torch.zeros(2, dtype=torch.int64)
    for wanted in (BOTH, ALONE, BOTH):
        evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native", wanted=wanted, trace_after=1)
        results = [evaluate(problem.unknowns, zero) for _ in range(3)]
        assert all(set(result.gradient) == set(wanted) for result in results)
    assert len(graphs._CACHE) == 2


def test_what_is_no_unknown_cannot_be_wanted() -> None:
    w = small()
    problem = problem_of(w)
    with pytest.raises(InputError, match=r"'beta'.*guess, alpha"):
        Evaluator(w.model, problem.unknowns, problem.facts, "native", wanted=("guess", "beta"))


@pytest.mark.slow
def test_a_cycle_of_six_with_one_move_of_alpha_costs_at_most_a_twentieth_more_than_ig() -> None:
    """By operations in products and convolutions: nine a layer where alpha moves, and IG's seven where it rests."""
    w = small(1, name="cnn_cifar", side=32)
    zero = torch.zeros(1, dtype=torch.int64)

    def operations(problem: Problem, wanted: tuple[str, ...]) -> int:
        evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native", wanted=wanted, trace_after=1)
        for _ in range(2):
            evaluate(problem.unknowns, zero)
        with FlopCounterMode(display=False) as counter:  # it can follow a traced evaluation alone
            evaluate(problem.unknowns, zero)
        return int(counter.get_total_flops())

    problem = problem_of(w, every=6)
    ig = operations(ig_update().prepare(w.model, w.observation, w.knowledge, w.seeds)[0], ALONE)
    moved, rested = operations(problem, BOTH), operations(problem, ALONE)
    assert rested == ig
    assert 1.25 * ig < moved < 1.3 * ig
    assert (moved + 5 * rested) / 6 <= 1.05 * ig


# -- the run


def test_alpha_moves_in_its_turns_and_the_guess_in_all() -> None:
    w = small()
    double = Execution(form="native", dtype="float64")
    way = []
    for iterations in range(1, 6):
        how = sme(iterations=iterations, decay=False, alpha_every=3)
        problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, double)
        way.append(run_problem(w.model, problem, how.stop, double, "", how.most_evaluations()).unknowns)
    for iteration, (before, after) in enumerate(itertools.pairwise(way), start=1):
        assert torch.equal(before[ALPHA], after[ALPHA]) == (iteration % 3 > 0)
        assert not torch.equal(before[GUESS], after[GUESS])
    assert way[0][ALPHA].sub(0.5).abs().tolist() == pytest.approx([3e-3] * 2, rel=1e-4)


def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What every evaluation from now on differentiates in."""
    turns: list[tuple[str, ...]] = []
    call = Evaluator.__call__

    def seen(self: Evaluator, unknowns: Tree, iteration: Tensor) -> Evaluation:
        turns.append(self.wanted)
        return call(self, unknowns, iteration)

    monkeypatch.setattr(Evaluator, "__call__", seen)
    return turns


def test_no_gradient_is_computed_for_an_unknown_that_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    w = small()
    turns = turns_of(monkeypatch)
    attacked(w, iterations=7)
    assert turns == [BOTH if iteration % 3 == 0 else ALONE for iteration in range(8)]
    turns.clear()
    attacked(w, every=1, iterations=3)
    assert turns == [BOTH] * 4


@pytest.mark.slow
@pytest.mark.parametrize("form", ["loop", "parallel"])
def test_trials_that_end_early_change_neither_the_turns_nor_the_bits_of_the_others(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, execution = small(4), Execution(form=form, chunk=4)
    kept = []
    monkeypatch.setattr(forms, "keep_graph", lambda *told: (kept.append(told[0]), graphs.keep_graph(*told)))
    whole = attacked(w, execution, iterations=14)
    threshold = float(whole.trace[:, 4:11].amin(1).median())
    turns = turns_of(monkeypatch)
    compacted = attacked(w, execution, iterations=14, threshold=threshold)
    assert len(kept) == (2 if form == "parallel" else 0), "one graph a turn, for all widths"
    assert len(set(compacted.iterations.tolist())) > 1, "trials end at different times, so lanes were retired"
    assert turns == [BOTH if iteration % 3 == 0 else ALONE for iteration in range(15)]
    monkeypatch.setattr(Engine, "_should_compact", lambda self, state: False)
    assert same_bits(compacted, attacked(w, execution, iterations=14, threshold=threshold))


@pytest.mark.parametrize("ticks", [4, 6])
def test_a_run_cut_anywhere_in_a_cycle_goes_on_to_the_same_bits(
    ticks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = small()
    whole = attacked(w, Execution(form="native", chunk=2, directory=tmp_path / "whole"), iterations=9)
    cut = Execution(form="native", chunk=2, directory=tmp_path / "cut", save_every=0.0)

    def stop(self: Engine, state: object, *, force: bool = False, note: str = "") -> None:
        if self.tick == ticks:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_report", stop)
        with pytest.raises(KeyboardInterrupt):
            attacked(w, cut, iterations=9)
    turns = turns_of(monkeypatch)
    assert same_bits(attacked(w, cut, iterations=9), whole)
    assert turns == [BOTH if iteration % 3 == 0 else ALONE for iteration in range(ticks, 10)]


# -- refusals, and who may share a batch


def test_an_optimiser_with_many_evaluations_an_iteration_refuses_unknowns_that_rest() -> None:
    w = small()
    how = sme(alpha_every=2, decay=False, iterations=3)
    with pytest.raises(InputError, match=r"every .*got 2 .*'alpha'"):
        replace(how, optimiser=LBFGS()).run(w.model, w.observation, w.knowledge, w.seeds, NATIVE)
    still = {**how.rules, GUESS: Rule(every=4)}
    with pytest.raises(InputError, match=r"every .*guess 4, alpha 2"):
        replace(how, rules=still).run(w.model, w.observation, w.knowledge, w.seeds, NATIVE)


def test_attacks_whose_unknowns_rest_at_other_times_do_not_share_a_batch() -> None:
    assert shape_of(sme(alpha_rate=0.1)) == shape_of(sme(alpha_rate=0.2))
    assert shape_of(sme(alpha_every=2)) != shape_of(sme(alpha_every=3))
