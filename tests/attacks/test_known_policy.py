"""The attacker who knows the policy: at the truth it explains the update, it finds the draws, its gradients are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from leakscope.attacks.aware import aware
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.known_policy import KnownPolicy, ig_policy, learn_policy, mixture, ways
from leakscope.attacks.recipes import ig
from leakscope.attacks.starts import Insider
from leakscope.attacks.translate import ig_shift
from leakscope.clients import Client, attacker_knowledge, knowledge_of_defences
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import rows
from leakscope.core.types import Batch, Knowledge, Observation, make_batch
from leakscope.data import load
from leakscope.defences.on_data import Transform, parse_policies
from leakscope.kernels.hoisting import Hoisted
from leakscope.models import Uniform, build, draw_parameters

NATIVE, DOUBLE = Execution(form="native"), Execution(dtype="float64", form="native")
SEEDS = [1, 2, 3]
MODEL = build("lenet_dlg", (1, 28, 28), 10, {"width": 3})


def world(policy: str, samples: int = 1) -> tuple[Batch, Batch, Observation, Knowledge]:
    data, number = load("fashion_mnist"), 3 * samples
    pictures = data.pictures("test", range(number)).reshape(3, samples, 1, 28, 28)
    batch = make_batch(pictures, data.labels("test", range(number)).reshape(3, samples), classes=10)
    client = Client(scaling=Scaling((0.3,), (0.35,)), on_data=Transform(policy))
    seen = client.observe(MODEL, draw_parameters(MODEL, Uniform(0.4), random.key(SEEDS)), batch, SEEDS)
    knowledge = knowledge_of_defences(attacker_knowledge(MODEL, client, batch, labels=True), client, seen)
    return batch, client.transformed(batch, SEEDS), seen, knowledge


def still(batch: Batch) -> KnownPolicy:
    """Return an attack that begins at the truth and stays there, so that only the draws are left to find."""
    return ig_policy(start=Insider(batch.inputs), rate=1e-9, tv=0.0, iterations=1)


@pytest.mark.parametrize("policy", ["3-1-7", "43-18-18", "3-1-7+43-18-18", "12-10-31", "2-0-14", "45-11-9"])
def test_from_the_truth_it_finds_what_was_drawn(policy: str) -> None:
    batch, moved, seen, knowledge = world(policy)
    made = still(batch).run(MODEL, seen, knowledge, SEEDS, NATIVE)
    assert made.seen is not None
    assert made.trials == 3
    assert (made.mismatch < 1e-2).all()
    gap = (made.seen - moved.inputs).abs() * 255
    assert (gap <= 4).float().mean() > 0.98


def parse_facts(policy: str) -> tuple[tuple[tuple[str, float], ...], ...]:
    return tuple(tuple((op.kind, op.magnitude) for op in each.operations) for each in parse_policies(policy))


@pytest.mark.parametrize(
    ("policy", "samples", "number"),
    [("3-1-7", 1, 8), ("3-1-7+43-18-18", 1, 16), ("0-28-39", 1, 1), ("3", 2, 4), ("3-1-7", 2, 64), ("3-1-7", 3, None)],
)
def test_every_way_the_draws_can_fall_is_tried_once(policy: str, samples: int, number: int | None) -> None:
    made = ways(parse_facts(policy), samples)
    if number is None:
        assert made is None
        return
    assert made is not None
    signs, weights = made
    assert signs.shape == (number, samples, 3)
    assert weights.sum(-1).eq(1).all()
    flat = torch.cat([signs.flatten(1), weights.flatten(1)], dim=1)
    assert len(torch.unique(flat, dim=0)) == number


def test_a_mixture_with_all_weight_on_one_policy_is_that_policy() -> None:
    batch, _, _, _ = world("0")
    x, facts = batch.inputs[:, 0], parse_facts("3-1-7+43-18-18")
    signs = torch.tensor([[1.0, -1.0, 1.0]] * 3)
    for number in range(2):
        weights = torch.zeros(3, 2)
        weights[:, number] = 1
        alone = mixture(x, facts[number : number + 1], signs, torch.ones(3, 1))
        assert torch.equal(mixture(x, facts, signs, weights), alone)


def test_learned_draws_have_right_gradients_and_stay_in_their_interval() -> None:
    batch, _, seen, knowledge = world("3-1-7+43-18-18", samples=3)
    how = learn_policy(ig(start=Insider(batch.inputs), iterations=4), knowledge)
    problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS, DOUBLE)
    evaluate = Evaluator(MODEL, problem.unknowns, problem.facts, "native")
    generator = torch.Generator().manual_seed(0)
    noise = {n: torch.rand(v.shape, generator=generator, dtype=v.dtype) for n, v in problem.unknowns.items()}
    here = {n: v + 0.1 * noise[n] for n, v in problem.unknowns.items()}
    here["guess"] = problem.unknowns["guess"].clamp(-0.5, 1.0) + 0.05 * noise["guess"]
    at = evaluate(here, torch.zeros(3).long())
    for name in ("signs", "choice", "guess"):
        along = torch.randn(here[name].shape, generator=generator, dtype=torch.float64)

        def value(step: float, name: str = name, along: Tensor = along) -> Tensor:
            return evaluate({**here, name: here[name] + step * along}, torch.zeros(3).long()).total

        slope = (value(1e-7) - value(-1e-7)) / 2e-7
        torch.testing.assert_close(slope, rows(at.gradient[name] * along).sum(1), rtol=2e-4, atol=1e-7)
    ended = Engine(MODEL, problem, how.stop, "native").run().unknowns
    assert (ended["signs"].abs() <= 1).all()
    assert (ended["signs"] != 0).any()


def test_many_pictures_a_client_fall_back_to_learned_draws() -> None:
    batch, _, seen, knowledge = world("3-1-7", samples=3)
    made = ig_policy(iterations=2).run(MODEL, seen, knowledge, SEEDS, NATIVE)
    slow = learn_policy(ig_policy(iterations=2).base, knowledge).run(MODEL, seen, knowledge, SEEDS, NATIVE)
    assert torch.equal(made.inputs, slow.inputs)
    assert made.seen is not None
    assert made.seen.shape == batch.inputs.shape


def test_the_aware_attack_looks_through_the_policy_and_the_enhanced_one_stays() -> None:
    _, _, _, knowledge = world("3-1-7")
    assert "signs" in aware(ig(), knowledge).extras
    assert aware(ig_shift(), knowledge) == ig_shift()
    assert aware(ig(), replace(knowledge, policies=None)) == ig()


def test_without_the_policy_it_is_refused_and_with_none_it_is_the_plain_attack() -> None:
    _, _, seen, knowledge = world("none")
    with pytest.raises(InputError, match=r"needs Knowledge\.policies"):
        ig_policy().run(MODEL, seen, replace(knowledge, policies=None), SEEDS)
    with pytest.raises(InputError, match="one round"):
        ig_policy().run(MODEL, replace(seen, rounds=seen.rounds * 2), knowledge, SEEDS)
    assert knowledge.policies == ()
    made, plain = (a(iterations=2).run(MODEL, seen, knowledge, SEEDS, NATIVE) for a in (ig_policy, ig))
    assert torch.equal(made.inputs, plain.inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "form"),
    [
        ("3-1-7", "im2col"),
        *((policy, "native") for policy in ("43-18-18", "2-9-12", "11-37-10", "31-15-0")),
    ],
)
def test_the_way_through_a_policy_can_be_traced(policy: str, form: str) -> None:
    batch, _, seen, knowledge = world(policy)
    for how in (learn_policy(ig(start=Insider(batch.inputs)), knowledge), ig_shift(start=Insider(batch.inputs))):
        problem, _ = how.prepare(MODEL, seen, knowledge, SEEDS, DOUBLE)
        evaluate = Evaluator(MODEL, problem.unknowns, problem.facts, form, trace_after=1)
        zero = torch.zeros(3).long()
        first, second = evaluate(problem.unknowns, zero), evaluate(problem.unknowns, zero)
        assert isinstance(evaluate._call, torch.fx.GraphModule | Hoisted)
        for name, value in first.gradient.items():
            torch.testing.assert_close(second.gradient[name], value)
