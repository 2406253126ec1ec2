"""The attacker who learns the pull of a private loss: exact at the truth for any secret, and stronger than who does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.aware import aware
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.optimisers import Adam
from leakscope.attacks.polarised import spn_aware, spn_head, spn_unaware
from leakscope.attacks.priors import GUESS
from leakscope.attacks.pulled import PULL, UNIT, Pulled, learn_pull, spn_pull
from leakscope.attacks.recipes import cpl
from leakscope.attacks.simulate import LocalSteps
from leakscope.attacks.translate import ThroughMap
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, to
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import load
from leakscope.defences.on_model import Polarisation
from leakscope.learning.polarisation import BIAS, CODES, WEIGHT
from leakscope.metrics import rmse_relative
from leakscope.models import Uniform, build, draw_parameters
from leakscope.scenario import scenario_of
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.engines import serial
from polarised_client import BITS, CLASSES, SEEDS, evaluations, mismatch, private_data

NATIVE = Execution(form="native", dtype="float64")


def world(samples: int, guard: Polarisation) -> tuple[Model, Client, Observation, Knowledge, Batch, Tree]:
    """Return network, client, observation, knowledge, private batch, and guess and pull at the truth."""
    model, weights, batch = private_data(samples)
    client = Client(on_model=guard)
    seen = client.observe(model, weights, batch, SEEDS)
    secret = guard.draw(guard.polarise(model), random.fold(random.key(SEEDS), "client"))
    pulls = torch.stack(
        [true_pull(model, {n: w[i] for n, w in weights.items()}, take_(secret, i), batch, i, guard) for i in range(3)]
    )
    return (
        model,
        client,
        seen,
        attacker_knowledge(model, client, batch, labels=True),
        batch,
        {GUESS: batch.inputs, PULL: pulls / UNIT},
    )


def take_(tree: Tree, i: int) -> Tree:
    return {name: value[i] for name, value in tree.items()}


def true_pull(model: Model, weights: Tree, secret: Tree, batch: Batch, i: int, guard: Polarisation) -> Tensor:
    """Return -a2 sum over bits short of the margin of t_k V_k, written out for every example."""
    wide = guard.polarise(model).apply({**weights, **secret}, {}, batch.inputs[i], random.key(0))[0]
    rows = []
    for v, y in zip(wide[:, CLASSES:], batch.labels[i], strict=True):
        t = secret[CODES][y]
        short = [k for k in range(BITS) if guard.margin - v[k] * t[k] > 0]
        rows.append(-guard.alpha2 * sum((t[k] * secret[WEIGHT][k] for k in short), torch.zeros_like(secret[WEIGHT][0])))
    return torch.stack(rows)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("guard", [Polarisation(0.5, bits=BITS, spread=0.3), Polarisation(2.0, 0.5, 1.7, BITS, 0.6)])
def test_at_the_true_pull_nothing_is_left_whatever_the_secrets(samples: int, guard: Polarisation) -> None:
    model, _, seen, knowledge, _, truth = world(samples, guard)
    attack = spn_pull(alpha1=float(guard.public_weight))
    assert_close(mismatch(attack, model, seen, knowledge, truth), torch.zeros(3).double(), rtol=0, atol=1e-18)
    nothing = {**truth, PULL: torch.zeros_like(truth[PULL])}
    assert (mismatch(attack, model, seen, knowledge, nothing) > 1e-6).all()


def test_without_a_pull_it_is_the_plain_gradient() -> None:
    model, _, seen, knowledge, _, truth = world(2, Polarisation(0.5, bits=BITS))
    nothing = {**truth, PULL: torch.zeros_like(truth[PULL])}
    plain = mismatch(spn_unaware(), model, seen, knowledge, {GUESS: truth[GUESS]})
    assert_close(mismatch(spn_pull(), model, seen, knowledge, nothing), plain)


def test_every_form_of_evaluation_gives_the_same_slopes_and_both_unknowns_have_one() -> None:
    model, _, seen, knowledge, _, _ = world(2, Polarisation(0.5, bits=BITS))
    native, *others = evaluations(spn_pull(), model, seen, knowledge)
    for other in others:
        assert_close(other.gradient, native.gradient, rtol=1e-8, atol=1e-10)
    assert all((slope.flatten(1).abs().amax(1) > 0).all() for slope in native.gradient.values())


def test_it_runs_through_the_engine_and_gets_closer() -> None:
    model, _, seen, knowledge, batch, _ = world(2, Polarisation(0.5, bits=BITS))
    made = spn_pull(iterations=8, threshold=0.0, optimiser=Adam(0.003)).run(model, seen, knowledge, SEEDS, NATIVE)
    assert made.inputs.shape == batch.inputs.shape
    assert (made.trace[:, 8] < made.trace[:, 0]).all()


def test_who_is_told_of_the_defence_learns_the_pull_whatever_the_attack() -> None:
    """`aware` and Knowledge: bits, weights and margin are told, codes and head are not."""
    strengths = torch.tensor([0.125, 0.5, 2.0], dtype=torch.float64)
    guard = Polarisation(0.5, bits=BITS)
    model, _, seen, knowledge, _, truth = world(1, guard)
    informed = knowledge_of_defences(knowledge, Client(on_model=replace(guard, alpha2=strengths)), seen)
    assert informed.private_head is not None
    assert set(informed.private_head) == {"bits", "alpha1", "alpha2", "margin"}
    assert_close(informed.private_head["alpha2"].double(), strengths)
    attack = aware(cpl(), to(informed, dtype=torch.float64))
    assert_close(mismatch(attack, model, seen, informed, truth), torch.zeros(3).double(), rtol=0, atol=1e-18)
    assert aware(cpl(), knowledge) == cpl()
    for reckons in (spn_head(), spn_aware(bits=BITS), spn_pull()):
        assert learn_pull(reckons, informed) is reckons
    wrapped = learn_pull(replace(cpl(), simulate=ThroughMap()), informed)
    assert isinstance(wrapped.simulate.inner, Pulled)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"LocalSteps .*OneGradient"):
        learn_pull(replace(cpl(), simulate=LocalSteps()), informed)


def test_no_secret_is_among_the_facts() -> None:
    facts = Polarisation(0.5, bits=BITS).facts(torch.zeros(3))
    assert not {WEIGHT, BIAS, CODES} & set(facts)
    assert all(value.shape == (3,) for value in facts.values())


def test_a_scenario_tells_the_attacker_of_the_private_head(tmp_path: Path) -> None:
    scenario = scenario_of(
        {
            "data": "digits",
            "model": {"name": "lenet_dlg", "width": 2},
            "client": {"on_model": {"bits": 8, "alpha2": 0.5}},
            "attack": {"name": "cpl", "iterations": 1, "threshold": 0.0},
            "trials": 1,
            "baselines": [],
            "precision": {"form": "native", "chunk": 1},
            "grid": {"knowledge.defence": [False, True]},
        }
    )
    run_scenario(scenario, tmp_path / "r", engine=serial, measure=False)
    one, other = Run.open(tmp_path / "r").records()
    assert one.mismatch != other.mismatch


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"alpha1": -1.0}, {"unit": 0.0}, {"alpha1": float("nan")}, {"unit": float("inf")}):
        with pytest.raises(InputError, match=r"spn_pull .*alpha1"):
            spn_pull(**settings)


@pytest.mark.slow
def test_who_knows_gets_the_picture_that_who_does_not_know_misses() -> None:
    """Real pictures, the paper's network and weights, a2 = 0.1 (a ratio of about 1.5): n = 3, so far apart or nothing."""
    data, seeds = load("fashion_mnist"), [0, 1, 2]
    batch = make_batch(data.pictures("test", range(3))[:, None], data.labels("test", range(3))[:, None], classes=10)
    model = build("dlnet", (1, 28, 28), 10)
    client = Client(on_model=Polarisation(0.1, spread=0.3))
    weights = draw_parameters(model, Uniform(0.3), random.key(seeds))
    seen, knowledge = client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch)
    error = {}
    for attack in (spn_unaware(iterations=20), spn_pull(iterations=20)):
        made = attack.run(model, seen, knowledge, seeds, Execution(form="native"))
        error[attack.name] = float(rmse_relative(batch.inputs, made.inputs.clamp(0, 1)).mean())
    assert error["spn_pull"] < 0.5 * error["spn_unaware"]
