from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import sme
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.types import LocalTraining, make_batch
from leakscope.kernels import graph_cache as graphs
from leakscope.kernels.compiling import FEW, LEAST, LONG, cut_long_sums, parts_of_sum
from leakscope.models import Torch, build, draw_parameters


@pytest.fixture(autouse=True)
def _no_graph_of_another_test() -> None:
    graphs._CACHE.clear()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def products(graph: GraphModule) -> list[tuple[int, ...]]:
    nodes = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    return [tuple(node.args[0].meta["val"].shape) for node in nodes if "val" in node.args[0].meta]


@pytest.mark.parametrize("left_turned", [False, True])
@pytest.mark.parametrize("right_turned", [False, True])
def test_a_product_in_pieces_is_the_product(left_turned: bool, right_turned: bool) -> None:
    left = draw(3, 8192, 5).transpose(1, 2) if left_turned else draw(3, 5, 8192)
    right = draw(3, 7, 8192, seed=1).transpose(1, 2) if right_turned else draw(3, 8192, 7, seed=1)
    graph = make_fx(torch.bmm)(left, right)
    assert cut_long_sums(graph) == 1
    torch.testing.assert_close(graph(left, right), torch.bmm(left, right), rtol=1e-10, atol=1e-10)
    assert "8192" not in graph.code.replace("[3, 5, 8, 1024]", "")  # no sum is as long as before
    assert "[24, 5, 1024]" in graph.code
    assert "[24, 1024, 7]" in graph.code


@pytest.mark.parametrize("shape", [(5, LONG - 1, 7), (2, 8191, 2), (1, LEAST, 1)])
def test_short_and_prime_sums_stay_whole(shape: tuple[int, int, int]) -> None:
    rows, terms, columns = shape
    left, right = draw(2, rows, terms), draw(2, terms, columns, seed=1)
    graph = make_fx(torch.bmm)(left, right)
    assert cut_long_sums(graph) == 0
    assert torch.equal(graph(left, right), torch.bmm(left, right))


def test_pieces_are_equal_and_long_enough_and_many_results_need_none() -> None:
    for terms in range(LONG, LONG + 300):
        number = parts_of_sum(64, terms, 27)
        assert terms % number == 0
        assert number == 1 or terms // number >= LEAST
    assert parts_of_sum(1, LONG, FEW) > 1
    assert parts_of_sum(1, LONG, FEW + 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("trials", [1, 3])
def test_a_compiled_evaluation_has_short_sums_and_the_gradient_of_the_plain_one(
    trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[GraphModule] = []

    def keep(graph: GraphModule, **_: object) -> GraphModule:
        compiled.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", keep)
    model, seeds = build("cnn_mnist", (1, 28, 28), 10, {}), list(range(trials))
    x = random.uniform(random.key(seeds), (6, 1, 28, 28)).double()  # sums over 6 x 28 x 28 = 4,704 places
    batch = make_batch(x, torch.arange(6).repeat(trials, 1), classes=10)
    client = Client(LocalTraining(epochs=2, rate=0.1))
    first = {n: w.double() for n, w in draw_parameters(model, Torch(), random.key(seeds)).items()}
    seen = client.observe(model, first, batch, seeds)
    knowledge = attacker_knowledge(model, client, batch, labels=True)
    problem, _ = sme().prepare(model, seen, knowledge, seeds, Execution(dtype="float64"))
    found = {}
    for form in ("native", "compiled"):
        evaluator = Evaluator(model, problem.unknowns, problem.facts, form)
        found[form] = evaluator(problem.unknowns, torch.zeros(trials, dtype=torch.int64))
    [graph] = compiled
    assert "1176" in graph.code  # 4,704 terms in 4 pieces, whatever the number of trials
    assert all(shape[-1] < LONG for shape in products(graph))
    for name in (GUESS, "alpha"):
        torch.testing.assert_close(
            found["compiled"].gradient[name], found["native"].gradient[name], rtol=1e-8, atol=1e-10
        )
