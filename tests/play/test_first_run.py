"""The first call of a user is quick: it loads little and plans no longer than it attacks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.attacks.engine import form_choice
from leakscope.core.differentiate import gradient_and_aux
from leakscope.core.tree import Tree
from leakscope.data import load

FIRST = """
import json, sys
import leakscope
before = sorted(sys.modules)
import torch
from torch import nn
digits = leakscope.load("digits")
network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 10))
seen = leakscope.peek(network, digits.pictures("test", [0]), digits.labels("test", [0]), iterations=2, noise=False)
assert repr(seen)
print(json.dumps([before, sorted(sys.modules)]))
"""
NOTHING = ("torch", "numpy", "scipy", "rich")  # nothing that `import leakscope` may load
SLOW = (  # half a second and more each, and rooms that one picture does not need
    *("torch._dynamo", "torch._inductor", "sympy", "scipy.stats", "pydantic", "yaml", "sqlite3", "jinja2", "rich"),
    *("leakscope.report", "leakscope.scenario", "leakscope.sweep", "leakscope.store"),
)


@pytest.mark.slow
def test_one_picture_loads_nothing_slow() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], check=True, capture_output=True, text=True, timeout=120)
    before, after = json.loads(done.stdout)
    assert set(NOTHING).isdisjoint(before)
    assert set(SLOW).isdisjoint(after)


def peeked(monkeypatch: pytest.MonkeyPatch, rate: float) -> list[str]:
    """Return the forms that are timed before a picture is attacked, if one evaluation is said to run at a rate."""
    timed: list[str] = []

    def measured(model: object, problem: object, form: str, **_: object) -> float:
        timed.append(form)
        return rate

    monkeypatch.setattr(form_choice, "measure_form", measured)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 10))
    digits = load("digits")
    leakscope.peek(network, digits.pictures("test", [0]), torch.as_tensor(digits.labels("test", [0])), noise=False)
    return timed


@pytest.mark.parametrize(("threads", "timed"), [(1, []), (2, ["loop", "loop"])])
def test_before_a_short_attack_no_other_form_is_timed(
    threads: int, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread leaves nothing to choose; of two, the module's own kernels are timed with each number."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert peeked(monkeypatch, 1e6) == timed
    finally:
        torch.set_num_threads(before)


def curved(point: Tree) -> tuple[Tensor, Tensor]:
    return (point["a"].sin() * point["b"].exp()).sum(), 2 * point["a"]


def slope(f: Callable[[Tree], tuple[Tensor, Tensor]]) -> Callable[[Tree], tuple[Tensor, Tensor]]:
    """Return the squared length of the gradient, to be differentiated again."""
    return lambda point: (
        sum((g.square().sum() for g in gradient_and_aux(f, point)[0].values()), torch.zeros(())),
        point["a"],
    )


@pytest.mark.parametrize("f", [curved, slope(curved), lambda point: (torch.ones(()), point["a"])])
def test_gradients_without_the_compiler_have_the_same_bits(
    f: Callable[[Tree], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {name: torch.randn(4, 3, generator=torch.Generator().manual_seed(n)) for n, name in enumerate("abc")}
    expected = torch.func.vmap(torch.func.grad(f, has_aux=True))(at)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    gradient, aux = torch.func.vmap(lambda point: gradient_and_aux(f, point))(at)
    assert torch.equal(aux, expected[1])
    assert all(torch.equal(gradient[name], expected[0][name]) for name in at)  # `c` is not used: zeros
