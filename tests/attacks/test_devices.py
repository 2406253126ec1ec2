"""Everything an attack makes stands on its device, and one evaluation meets no tensor of another: shown without a GPU, on `meta`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.conftest import World, world

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.recipes import ATTACKS, cpl
from leakscope.attacks.starts import STARTS
from leakscope.core.tree import tensors, to
from leakscope.core.types import LocalTraining

META = Execution(device="meta")
ON_WEIGHTS = ("sme", "ig_update", "dlfa")


def evaluate(attack: Matching, w: World) -> None:
    problem, _ = attack.prepare(w.model, w.observation, w.knowledge, w.seeds, META)
    assert {t.device.type for t in tensors((problem.unknowns, problem.facts))} == {"meta"}
    model = replace(w.model, buffers=to(w.model.buffers, device="meta"))
    iteration = torch.zeros(len(w.seeds), dtype=torch.int64, device="meta")
    made = Evaluator(model, problem.unknowns, problem.facts, "native")(problem.unknowns, iteration)
    assert made.gradient["guess"].device.type == "meta"


@pytest.mark.parametrize("start", STARTS)
def test_a_start_stands_where_the_attack_runs(start: str) -> None:
    w = world(2, shape=(3, 32, 32), labels=True)
    evaluate(replace(cpl(), start=STARTS[start](), labels="known"), w)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_stays_on_its_device(name: str) -> None:
    attack = ATTACKS[name]()
    if not isinstance(attack, Matching):
        pytest.skip(f"{name} optimises nothing")
    local = LocalTraining(epochs=2, batch_size=1, rate=0.01) if name in ON_WEIGHTS else None
    w = world(2, name="lenet_cpl", shape=(3, 32, 32), samples=2, labels=True, local=local)
    evaluate(replace(attack, labels="known") if attack.labels != "joint" else attack, w)
