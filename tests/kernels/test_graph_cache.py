from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import pytest
import torch
from tests.attacks.conftest import world
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.attacks.engine import form_choice, forms
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Problem
from leakscope.attacks.objectives import Match
from leakscope.attacks.priors import GUESS, Norm
from leakscope.attacks.recipes import dlg, matching
from leakscope.attacks.simulate import LocalSteps
from leakscope.attacks.view import View
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.model import Model
from leakscope.core.types import LocalTraining, make_batch
from leakscope.kernels import graph_cache as graphs
from leakscope.kernels.compiling import copy_before_writing
from leakscope.models import Uniform, build, draw_parameters

MODEL = build("mlp", (1, 4, 4), 3, {"hidden": [5], "activation": "tanh"})


@pytest.fixture(autouse=True)
def _empty() -> None:
    graphs._CACHE.clear()


def problem(seed: int, model: Model = MODEL, **pieces: object) -> Problem:
    seeds = [seed, seed + 1]
    keys = random.key(seeds)
    batch = make_batch(random.uniform(keys, (1, 1, 4, 4)), (keys % 3)[:, None], classes=3)
    client = Client()
    seen = client.observe(model, draw_parameters(model, Uniform(0.5), keys), batch, seeds)
    made, _ = matching(**pieces).prepare(model, seen, attacker_knowledge(model, client, batch), seeds, Execution())  # type: ignore[arg-type]
    return made


def evaluate(problem: Problem, model: Model = MODEL, *, form: str = "native", trace_after: int = 1) -> Tensor:
    evaluator = Evaluator(model, problem.unknowns, problem.facts, form, trace_after=trace_after)
    for _ in range(3):
        found = evaluator(problem.unknowns, torch.zeros(2, dtype=torch.int64))
    return torch.cat([found.gradient[GUESS].flatten(), found.total])


@pytest.mark.parametrize("form", ["native", "im2col", "parallel"])
def test_a_kept_graph_gives_other_chunks_the_bits_of_their_own(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [
        evaluate(problem(seed), form="native" if form == "parallel" else form, trace_after=10**9) for seed in (1, 5)
    ]
    first = evaluate(problem(1), form=form)
    monkeypatch.setattr(forms.Evaluator, "_traced", lambda *_: pytest.fail("traced again"))
    second = evaluate(problem(5), form=form)
    assert len(graphs._CACHE) == 1
    for kept, own in zip((first, second), plain, strict=True):
        torch.testing.assert_close(
            kept, own, rtol=1e-5 if form == "parallel" else 0, atol=1e-6 if form == "parallel" else 0
        )


@pytest.mark.slow
def test_other_pieces_shapes_and_networks_get_graphs_of_their_own() -> None:
    def times(factor: float) -> object:
        def objective(view: View) -> Tensor:
            return Match()(view) * factor

        return objective

    other = build("mlp", (1, 4, 4), 3, {"hidden": [5], "activation": "sigmoid"})
    problems = [
        problem(1),
        problem(1, objective=times(2.0)),
        problem(1, objective=times(3.0)),  # the same text but for the address
        problem(1, priors=(Norm(0.1),)),
        problem(1, priors=(Norm(0.2),)),
    ]
    plain = [evaluate(p, trace_after=10**9) for p in problems]
    kept = [evaluate(p) for p in problems]
    kept.append(evaluate(problem(1, model=other), other))
    assert len(graphs._CACHE) == len(kept)
    for found, own in zip(kept, plain, strict=False):
        assert torch.equal(found, own)
    assert torch.allclose(kept[1] * 1.5, kept[2])


@pytest.mark.slow
def test_strengths_for_each_trial_are_inputs_of_the_graph() -> None:
    evaluate(problem(1, priors=(Norm(torch.tensor([0.1, 0.2])),)))
    again = evaluate(problem(1, priors=(Norm(torch.tensor([0.5, 0.9])),)))
    assert len(graphs._CACHE) == 1
    graphs._CACHE.clear()
    assert torch.equal(again, evaluate(problem(1, priors=(Norm(torch.tensor([0.5, 0.9])),)), trace_after=10**9))


def priors_of_one_text() -> list[object]:
    """Two classes as a notebook leaves them that defines one twice: name, fields and text are the same."""

    def define(power: int) -> type:
        @dataclass(frozen=True)
        class Prior:
            weight: float

            def __call__(self, view: View) -> Tensor:
                return self.weight * view.unknowns[GUESS].abs().pow(power).sum()

        return Prior

    return [define(1)(0.1), define(2)(0.1)]


def test_a_class_defined_anew_is_another_piece() -> None:
    first, second = priors_of_one_text()
    assert repr(first) == repr(second)
    for prior in (first, second):
        made = problem(1, priors=(prior,))
        assert torch.equal(evaluate(made), evaluate(made, trace_after=10**9, form="im2col"))
    assert not torch.equal(evaluate(problem(1, priors=(first,))), evaluate(problem(1, priors=(second,))))


class Held:
    """A piece that is no dataclass and holds a setting, a tensor, and itself."""

    def __init__(self, weight: float) -> None:
        self.weight, self.scale, self.me = weight, torch.ones(()), self

    def __call__(self, view: View) -> Tensor:
        return self.weight * self.scale * view.unknowns[GUESS].square().sum()


def test_an_object_whose_attributes_change_gets_another_graph() -> None:
    piece, found = Held(0.1), []
    for change in ({}, {"weight": 0.7}, {"scale": torch.tensor(3.0)}):
        vars(piece).update(change)
        made = problem(1, priors=(piece,))
        found.append(evaluate(made))
        assert torch.equal(found[-1], evaluate(made, trace_after=10**9, form="im2col"))
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert torch.equal(evaluate(problem(1, priors=(piece,))), found[2])
    assert len([key for key in graphs._CACHE if key.purpose == "evaluation, native"]) == 3


@pytest.mark.slow
def test_a_method_of_an_object_whose_attributes_change_gets_another_graph() -> None:
    piece, found = Held(0.1), []
    method = piece.__call__
    for weight in (0.1, 0.7):
        piece.weight = weight
        made = problem(1, priors=(method,))
        found.append(evaluate(made))
        assert torch.equal(found[-1], evaluate(made, trace_after=10**9, form="im2col"))
    assert not torch.equal(*found)
    evaluate(problem(1, priors=(piece.__call__,)))  # the same method, though another object
    assert len([key for key in graphs._CACHE if key.purpose == "evaluation, native"]) == 2


def test_old_graphs_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    for weight in (0.1, 0.2, 0.3):
        evaluate(problem(1, priors=(Norm(weight),)))
    assert len(graphs._CACHE) == 2


def index_add_into_one_row(index: Tensor, source: Tensor) -> Tensor:
    return torch.zeros(1, 3).expand(2, 3).index_add(1, index, source)


def test_what_writes_into_a_row_of_all_lanes_gets_memory_of_its_own() -> None:
    index, source = torch.arange(3), torch.arange(6.0).reshape(2, 3)
    graph = make_fx(index_add_into_one_row)(index, source)
    copy_before_writing(graph)
    graph.recompile()
    assert torch.equal(graph(index, source), source)
    [adding] = [node for node in graph.graph.nodes if "index_add" in str(node.target)]
    assert "clone" in str(adding.args[0].target)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on CPU needs a C++ compiler")
def test_compiled_local_steps_have_the_gradient_of_native_ones() -> None:
    local = LocalTraining(epochs=1, batch_size=2, rate=0.1)
    w = world(2, name="mlp", shape=(1, 8, 8), samples=4, local=local, labels=True, dtype=torch.float64)
    attack = replace(dlg(), simulate=LocalSteps(), labels="known")
    made, _ = attack.prepare(w.model, w.observation, w.knowledge, w.seeds, Execution(dtype="float64"))
    zero = torch.zeros(2, dtype=torch.int64)
    native, compiled = (
        Evaluator(w.model, made.unknowns, made.facts, form)(made.unknowns, zero) for form in ("native", "compiled")
    )
    torch.testing.assert_close(compiled.gradient, native.gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(compiled.mismatch, native.mismatch, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("simulated", "expected"), [(False, "compiled"), (True, "im2col")])
def test_a_simulated_training_is_recorded_on_cuda_and_never_compiled(
    simulated: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, bool]] = []

    def rate(_: Model, __: Problem, form: str, *, traced: bool = False, **___: object) -> float:
        measured.append((form, traced))
        return 1.0 + (form == "im2col") * (1 + traced)

    monkeypatch.setattr(form_choice, "measure_form", rate)
    made = problem(1)
    pieces = replace(made.facts.components, simulate=LocalSteps()) if simulated else made.facts.components
    made = replace(made, facts=replace(made.facts, components=pieces))
    best, _ = form_choice.choose_form(MODEL, made, torch.device("cuda"), 1e6)
    assert best == expected
    assert ("im2col", True) in measured
