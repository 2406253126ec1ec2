"""Recorded ticks: what one tick captured serves all ticks of its kind, and a look more or less changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attacks.conftest import world

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine import tick as tick_module
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.state import Finished, Problem, State, Stop
from leakscope.attacks.engine.tick import Ticker
from leakscope.attacks.optimisers import SGD, Adagrad, Adam, lbfgs
from leakscope.attacks.recipes import cpl, dlg, ig, matching
from leakscope.attacks.surrogate import sme
from leakscope.core.tree import fill, flat_names, take, tensors
from leakscope.core.types import LocalTraining
from leakscope.kernels.recordings import NotRecordableError, update_in_place

LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.01)
CASES: dict[str, tuple[Matching, dict[str, Any]]] = {
    "adam": (ig(iterations=40), {}),
    "sgd": (matching(optimiser=SGD(0.1, momentum=0.9), iterations=40), {}),
    "adagrad": (matching(optimiser=Adagrad(0.1), iterations=40), {}),
    "l-bfgs": (cpl(iterations=6, threshold=1e-3), {}),
    "labels too": (dlg(iterations=3), {}),
    "patience": (matching(optimiser=Adam(0.1), iterations=60, patience=3), {}),
    "restarts": (ig(iterations=35, restarts=2), {}),
    "rests": (sme(iterations=35, alpha_every=4), {"samples": 2, "local": LOCAL}),
}


def recorded_by_hand(
    step: Callable[[State], None], state: State, constants: object, pool: object
) -> Callable[[], None]:
    """A stand-in for a CUDA recording: what ran at the capture runs again, with the Python values of that time."""
    del constants, pool
    places = fill(state, list(tensors(state)))

    def play() -> None:
        update_in_place(step, places)

    return play


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Ticker.__init__

    def init(self: Ticker, *args: Any, **settings: Any) -> None:
        plain(self, *args, **settings)
        self.record = settings["record"]
        self.numbers.on_device = self.record and self.numbers.width > 0

    monkeypatch.setattr(Ticker, "__init__", init)
    monkeypatch.setattr(tick_module, "record_update", recorded_by_hand)
    monkeypatch.setattr(lbfgs, "BLOCKS", {"cpu": 32, "cuda": 32})


def prepared(name: str) -> tuple[Any, Problem, Matching]:
    attack, settings = CASES[name]
    w = world(3, name="lenet_dlg", shape=(1, 12, 12), settings={"width": 2}, **settings)
    return w.model, attack.prepare(w.model, w.observation, w.knowledge, w.seeds)[0], attack


def differing(a: Finished, b: Finished) -> list[str]:
    left, right = flat_names(a), flat_names(b)
    return [name for name in left if not torch.equal(left[name].nan_to_num(7.7), right[name].nan_to_num(7.7))]


@pytest.mark.slow
@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", CASES)
def test_a_tick_recorded_once_serves_every_tick_of_its_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, problem, attack = prepared(name)
    plain = Engine(model, problem, attack.stop, "native", record=False).run()
    engine = Engine(model, problem, attack.stop, "native")
    assert differing(engine.run(), plain) == []
    assert engine.recorded
    monkeypatch.setattr(Engine, "_ahead", lambda self: 7)  # a trial that ends between two looks stays as it was
    assert differing(Engine(model, problem, attack.stop, "native").run(), plain) == []


@pytest.mark.slow
@pytest.mark.usefixtures("recording")
def test_what_cannot_be_recorded_runs_plainly_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotRecordableError("it looks at a number")

    model, problem, attack = prepared("adam")
    plain = Engine(model, problem, attack.stop, "native", record=False).run()
    monkeypatch.setattr(tick_module, "record_update", refuse)
    engine = Engine(model, problem, attack.stop, "native")
    with pytest.warns(UserWarning, match=r"recorded \(it looks at a number\)"):
        assert differing(engine.run(), plain) == []
    assert not engine.recorded


@pytest.mark.slow
def test_numbers_read_from_a_table_have_the_bits_of_those_computed() -> None:
    model, problem, attack = prepared("adam")
    plain = Engine(model, problem, attack.stop, "native", record=False).run()
    rates = [problem.optimiser.numbers(problem.rules["guess"], tick) for tick in range(3)]
    assert rates[0] == (pytest.approx(0.1), pytest.approx(0.001**0.5))
    assert len(set(rates)) == 3
    assert int(plain.iteration.max()) == 40


@pytest.mark.parametrize("form", ["loop", "parallel"])
def test_whole_vectors_need_no_copies_beside_them(form: str) -> None:
    """A lone trial has one lane, and the bits that it has among others."""
    w = world(3, name="mlp", shape=(1, 16, 16))
    problem, _ = ig(iterations=6).prepare(w.model, w.observation, w.knowledge, w.seeds)
    whole = Engine(w.model, problem, Stop(6), form)
    alone = Engine(w.model, take(problem, slice(1, 2)), Stop(6), form)
    assert (whole.width(3), alone.width(1)) == (3, 1)
    assert torch.equal(alone.run().unknowns["guess"][0], whole.run().unknowns["guess"][1])
    odd = world(3, name="mlp", shape=(1, 15, 15))
    narrow, _ = ig(iterations=6).prepare(odd.model, odd.observation, odd.knowledge, odd.seeds)
    assert Engine(odd.model, narrow, Stop(6), form).width(3) == 4
    quasi, _ = cpl().prepare(w.model, w.observation, w.knowledge, w.seeds)
    assert Engine(w.model, quasi, Stop(6), form).width(3) == 4
