"""DLFA told of a defence: its mismatch is 0 at the truth, where that of the one who does not know is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.conftest import World, world

from leakscope.attacks.aware import aware
from leakscope.attacks.dlfa import COPIES, LayerMatch, dlfa
from leakscope.attacks.engine.forms import evaluate_one
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.priors import GUESS
from leakscope.clients import attacker_knowledge
from leakscope.clients.client import client_keys, knowledge_of_defences
from leakscope.core.errors import InputError
from leakscope.core.tree import take
from leakscope.core.types import Knowledge, LocalTraining
from leakscope.defences import Clip, Defence, Quantise, RandomMask, Sign, Sparsify
from leakscope.learning.local import draw_order

LOCAL = LocalTraining(epochs=2, batch_size=2, rate=0.05, shuffle=False)
DOUBLE = Execution(dtype="float64", form="native")


def guarded(*defences: Defence) -> tuple[World, Knowledge]:
    """Return clients with defences, and what an attacker who knows all of it is told."""
    w = world(
        2, name="mlp", shape=(1, 6, 6), samples=3, local=LOCAL, labels=True, dtype=torch.float64,
        settings={"hidden": (8, 7), "activation": "tanh"},
    )  # fmt: skip
    client = replace(w.client, defences=defences)
    seen = client.observe(w.model, w.weights, w.batch, w.seeds)
    plain = attacker_knowledge(w.model, client, w.batch, labels=True)
    return replace(w, client=client, observation=seen, knowledge=plain), knowledge_of_defences(plain, client, seen)


def at_truth(w: World, knowledge: Knowledge, *, knows: bool) -> list[float]:
    """Return the mismatch of every trial where all copies are the true pictures, in the client's order."""
    attack = aware(dlfa(), knowledge) if knows else dlfa()
    problem, _ = attack.prepare(w.model, w.observation, knowledge, w.seeds, DOUBLE)
    found = []
    for trial in range(len(w.seeds)):
        facts = take(problem.facts, trial)
        order = draw_order(LOCAL, 3, client_keys(w.seeds)[trial], torch.ones(3, dtype=torch.bool))
        facts = replace(facts, knowledge=replace(facts.knowledge, order=order))
        unknowns = {GUESS: w.batch.inputs[trial], COPIES: w.batch.inputs[trial][None]}
        _, _, mismatch = evaluate_one(w.model, unknowns, facts, torch.zeros((), dtype=torch.int64))
        found.append(float(mismatch))
    return found


@pytest.mark.parametrize(
    "defences",
    [(Sparsify(0.9),), (RandomMask(0.2),), (Clip(0.01),), (Quantise(4),), (Sparsify(0.5), Clip(0.01))],
    ids=lambda each: "+".join(type(one).__name__ for one in each),
)
def test_the_truth_explains_a_defended_update_only_for_the_one_who_knows(defences: tuple[Defence, ...]) -> None:
    w, knowledge = guarded(*defences)
    assert max(at_truth(w, knowledge, knows=True)) < 1e-12
    assert min(at_truth(w, w.knowledge, knows=False)) > 1e-6


def test_without_a_defence_dlfa_stays_as_it_is() -> None:
    w, knowledge = guarded()
    assert max(at_truth(w, knowledge, knows=False)) < 1e-12
    made = aware(dlfa(), knowledge, simulate=True)
    assert made.objective == dlfa().objective == LayerMatch((1.0, 2.0), 400)
    assert made.simulate == dlfa().simulate


def test_signs_are_refused_in_one_line() -> None:
    _, knowledge = guarded(Sign())
    with pytest.raises(InputError, match=r"signs .*sme"):
        aware(dlfa(), knowledge)


def test_it_runs_from_end_to_end() -> None:
    w, knowledge = guarded(Clip(0.01), RandomMask(0.5))
    made = aware(dlfa(iterations=3), knowledge).run(w.model, w.observation, knowledge, w.seeds, DOUBLE)
    assert made.inputs.shape == w.batch.inputs.shape
    assert bool(made.mismatch.isfinite().all())
