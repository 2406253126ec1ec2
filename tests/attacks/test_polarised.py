"""The attackers of a Secret Polarization Network: what each would find at the truth, and that the engine runs them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.optimisers import Adam
from leakscope.attacks.polarised import DummyPolarised, HeadGradient, spn_aware, spn_head, spn_unaware
from leakscope.attacks.priors import GUESS
from leakscope.attacks.recipes import ATTACKS, dlg
from leakscope.attacks.starts import Patterned
from leakscope.attacks.view import Clock, View
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import Tree, lift
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation
from leakscope.defences.on_model import Polarisation
from leakscope.learning.polarisation import BIAS, CODES, WEIGHT
from leakscope.scenario import scenario_of
from leakscope.store import Run
from leakscope.sweep import run_scenario
from leakscope.sweep.driver import unfold
from leakscope.sweep.engines import serial
from leakscope.sweep.plan import group_trials
from polarised_client import BITS, SEEDS, evaluations, mismatch, private_data

SPN = Polarisation(0.5, bits=BITS, spread=0.3)
NATIVE = Execution(form="native", dtype="float64")
LARGE = 20.0  # tanh of it is 1


def world(
    samples: int = 1, guard: Polarisation | None = SPN, local: LocalTraining | None = None
) -> tuple[Model, Observation, Knowledge, Batch, Tree]:
    """Return network, observation, knowledge, private batch and, as unknowns, the truth: guess, head and codes."""
    model, weights, batch = private_data(samples)
    client = Client(local, on_model=guard)
    seen = client.observe(model, weights, batch, SEEDS)
    truth = {GUESS: batch.inputs}
    if guard is not None:
        secret = guard.draw(guard.polarise(model), random.fold(random.key(SEEDS), "client"))
        truth |= secret | {CODES: LARGE * secret[CODES]}
    return model, seen, attacker_knowledge(model, client, batch, labels=True), batch, truth


@pytest.mark.parametrize("samples", [1, 3])
def test_at_the_truth_who_knows_finds_no_mismatch_and_who_does_not_finds_one(samples: int) -> None:
    model, seen, knowledge, _, truth = world(samples)
    assert_close(mismatch(spn_aware(bits=BITS, alpha2=0.5), model, seen, knowledge, truth), torch.zeros(3).double())
    assert_close(mismatch(spn_head(), model, seen, knowledge, truth), torch.zeros(3).double())
    assert (mismatch(spn_unaware(), model, seen, knowledge, truth) > 1e-6).all()


def test_without_the_defence_the_unaware_finds_no_mismatch() -> None:
    model, seen, knowledge, _, truth = world(guard=None)
    assert_close(mismatch(spn_unaware(), model, seen, knowledge, truth), torch.zeros(3).double())


def test_a_wrong_weight_is_made_up_for_by_the_length_of_the_head() -> None:
    """Where no bit has its margin, head times 1/c and weight times c give the same gradient of the public part."""
    guard = Polarisation(0.5, margin=1e6, bits=BITS)
    model, seen, knowledge, _, truth = world(guard=guard)
    believes = spn_aware(bits=BITS, alpha2=0.05, margin=1e6)
    stretched = truth | {WEIGHT: 10 * truth[WEIGHT], BIAS: 10 * truth[BIAS]}
    assert_close(mismatch(believes, model, seen, knowledge, stretched), torch.zeros(3).double(), rtol=0, atol=1e-12)
    assert (mismatch(believes, model, seen, knowledge, truth) > 1e-6).all()


@pytest.mark.parametrize("alpha1", [0.0, 0.5, 2.0])
def test_the_head_attack_compares_the_public_head_alone(alpha1: float) -> None:
    """Nothing but the last layer counts: any other part of the update may be anything."""
    guard = Polarisation(3.0, alpha1, bits=BITS)
    model, seen, knowledge, _, truth = world(guard=guard)
    made = lift(lambda u, r, k, key: HeadGradient(alpha1)(model, u, r, k, Clock(torch.tensor(0), key)))(
        truth, seen.rounds[0], knowledge, random.key(SEEDS)
    )
    assert set(made.update) == {"head.weight", "head.bias"}
    assert_close(made.update, {n: seen.rounds[0].sent[n] for n in made.update})


def test_every_unknown_of_the_aware_attacker_has_a_slope() -> None:
    model, seen, knowledge, _, truth = world()
    attack = spn_aware(bits=BITS, alpha2=0.5)
    problem, _ = attack.prepare(model, seen, knowledge, SEEDS, NATIVE)
    assert {n: v.shape for n, v in problem.unknowns.items()} == {n: v.shape for n, v in truth.items()}

    def one(unknowns: Tree, seen: Any, knowledge: Knowledge, key: Tensor) -> Tensor:
        made = attack.simulate(model, unknowns, seen, knowledge, Clock(torch.tensor(0), key))
        return attack.objective(View(unknowns, made, seen.sent, seen, knowledge, Clock(torch.tensor(0), key)))

    slope = lift(torch.func.grad(one))(problem.unknowns, seen.rounds[0], knowledge, random.key(SEEDS))
    assert all(bool(value.isfinite().all()) for value in slope.values())
    for name in (GUESS, WEIGHT, CODES):  # the bias moves bits over the margin and has no slope between
        assert (slope[name].flatten(1).abs().amax(1) > 0).all()


def test_the_slope_in_the_head_is_that_of_finite_differences() -> None:
    model, seen, knowledge, _, truth = world()
    attack = spn_aware(bits=BITS, alpha2=0.5)
    guess = truth | {WEIGHT: truth[WEIGHT] * 0.9, CODES: truth[CODES] * 0.02}

    def value(unknowns: Tree) -> Tensor:
        return mismatch(attack, model, seen, knowledge, unknowns).sum()

    slope = torch.func.grad(value)(guess)
    step = 1e-6
    for name in (WEIGHT, CODES, GUESS):
        turn = torch.randn(guess[name].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ahead, behind = (value({**guess, name: guess[name] + s * step * turn}) for s in (1, -1))
        assert_close((ahead - behind) / (2 * step), (slope[name] * turn).sum(), rtol=1e-4, atol=1e-8)


def test_the_unaware_attacker_is_dlg_from_a_patterned_start() -> None:
    model, seen, knowledge, _, _ = world()
    one = spn_unaware(iterations=1).run(model, seen, knowledge, SEEDS, NATIVE)
    other = dlg(start=Patterned(), iterations=1).run(model, seen, knowledge, SEEDS, NATIVE)
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("local", [None, LocalTraining(epochs=1, rate=0.1)])
@pytest.mark.parametrize("name", ["spn_aware", "spn_head", "spn_unaware"])
def test_every_attacker_runs_through_the_engine_and_gets_closer(name: str, local: LocalTraining | None) -> None:
    model, seen, knowledge, batch, _ = world(samples=2, local=local)
    settings = {"bits": BITS, "alpha2": 0.5} if name == "spn_aware" else {}
    attack = ATTACKS[name](iterations=8, threshold=0.0, optimiser=Adam(0.003), **settings)
    made = attack.run(model, seen, knowledge, SEEDS, NATIVE)
    assert made.inputs.shape == batch.inputs.shape
    assert (made.trace[:, 8] < made.trace[:, 0]).all()


def test_labels_are_read_off_the_public_head_however_strong_the_defence() -> None:
    model, seen, _, batch, _ = world(guard=Polarisation(100.0, bits=BITS))
    blind = attacker_knowledge(model, Client(), batch)
    made = spn_head(iterations=1).run(model, seen, blind, SEEDS, NATIVE)
    assert torch.equal(made.labels, batch.labels)


def test_a_strength_for_each_trial_is_what_each_gets_alone() -> None:
    model, seen, knowledge, _, truth = world()
    swept = lift(lambda s, u, r, k, key: s(model, u, r, k, Clock(torch.tensor(0), key)))(
        DummyPolarised(alpha2=torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)),
        truth,
        seen.rounds[0],
        knowledge,
        random.key(SEEDS),
    )
    for i, strength in enumerate((0.0, 0.5, 2.0)):
        alone = lift(
            lambda u, r, k, key, s=strength: DummyPolarised(alpha2=s)(model, u, r, k, Clock(torch.tensor(0), key))
        )(truth, seen.rounds[0], knowledge, random.key(SEEDS))
        assert_close({n: v[i] for n, v in swept.update.items()}, {n: v[i] for n, v in alone.update.items()})


def test_a_file_can_say_them() -> None:
    scenario = scenario_of(
        {
            "data": "digits",
            "model": "dlnet",
            "client": {"on_model": {"bits": 32}},
            "knowledge": {"defence": False},
            "attacks": [
                "spn_unaware",
                {"name": "spn_aware", "bits": 32, "alpha2": 0.1},
                {"name": "spn_head", "tv": 0.001},
            ],
        }
    )
    assert [cell.settings["attack"]["name"] for cell in scenario.cells()] == ["spn_unaware", "spn_aware", "spn_head"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spn_aware(bits=0), r"spn_aware\(bits=...\) .*got 0"),
        (lambda: spn_aware(bits=1.5), "whole number .*got 1.5"),  # type: ignore[arg-type]
        (lambda: spn_aware(alpha2="x"), r"spn_aware\(alpha2=...\) .*got 'x'"),  # type: ignore[arg-type]
        (lambda: spn_aware(spread="x"), r"spn_aware\(spread=...\) .*got 'x'"),  # type: ignore[arg-type]
        (lambda: spn_head(tv=[1]), r"spn_head\(tv=...\) .*got \[1\]"),  # type: ignore[arg-type]
        (lambda: spn_aware(alpha2=math.nan), "got 1.0, nan, 1.0"),
        (lambda: spn_aware(alpha1=math.inf), "got inf, 0.1, 1.0"),
        (lambda: spn_aware(margin=math.nan), "got 1.0, 0.1, nan"),
        (lambda: spn_aware(spread=-1.0), r"spn_aware\(spread=...\) .*got -1.0"),
        (lambda: spn_head(alpha1=math.nan), "got nan, 0.0"),
        (lambda: spn_head(tv=math.inf), "got 1.0, inf"),
        (lambda: spn_aware(alpha2=-1.0), "alpha1 and alpha2 "),
        (lambda: spn_aware(margin=0.5), "margin .*least 1"),
        (lambda: spn_head(alpha1=0.0), "alpha1 above 0"),
        (lambda: spn_head(tv=-1.0), "tv .*least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.slow
def test_a_sweep_over_weights_is_one_batch_and_gives_what_each_gives_alone(tmp_path: Path) -> None:
    found = []
    for chunk in (2, 1):
        scenario = scenario_of(
            {
                "data": "digits",
                "model": {"name": "lenet_dlg", "width": 2},
                "client": {"on_model": {"bits": 8}},
                "knowledge": {"defence": False},
                "attack": {"name": "spn_aware", "bits": 8, "iterations": 1, "threshold": 0.0},
                "trials": 1,
                "baselines": [],
                "precision": {"form": "native", "chunk": chunk, "dtype": "float64"},
                "zip": {"client.on_model.alpha2": [0.125, 0.5], "attack.alpha2": [0.125, 0.5]},
            }
        )
        whole = unfold(scenario)
        assert len(group_trials(whole, whole.trials)) == 1
        done = run_scenario(scenario, tmp_path / str(chunk), engine=serial, measure=False)
        assert done.landed == 2
        run = Run.open(tmp_path / str(chunk))
        order = {cell.id: number for number, cell in enumerate(run.cells())}
        records = sorted(run.records(), key=lambda record: (order[record.cell], record.number))
        found.append(torch.stack([run.tensors(record.trial)["inputs"] for record in records]))
    assert_close(found[0], found[1], rtol=0, atol=1e-4)  # clients compute in float32, whatever the attack does
    assert (found[0][0] - found[0][1]).abs().amax() > 1e-2  # the same clients at another weight


@pytest.mark.parametrize("name", ["spn_aware", "spn_head"])
def test_every_form_of_evaluation_gives_the_same_slopes(name: str) -> None:
    model, seen, knowledge, _, _ = world()
    attack = ATTACKS[name](**({"bits": BITS, "alpha2": 0.5} if name == "spn_aware" else {}))
    native, *others = evaluations(attack, model, seen, knowledge)
    for other in others:
        assert_close(other.gradient, native.gradient, rtol=1e-8, atol=1e-10)
        assert_close(other.mismatch, native.mismatch, rtol=1e-8, atol=1e-10)
