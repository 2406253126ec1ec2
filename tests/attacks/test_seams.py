"""Extensions go through the one loop: a learned alpha, a learned shift, a simulation of two steps with recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.conftest import World, world
from torch import Tensor

from leakscope.attacks.attack import Matching
from leakscope.attacks.distances import DISTANCES, cosine
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.loop import Engine
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import LBFGS, Adam, Rule
from leakscope.attacks.optimisers.rules import Interval, into_box
from leakscope.attacks.priors import BoxPenalty, LabelRegulariser, Norm, TotalVariation
from leakscope.attacks.recipes import cpl, dlg
from leakscope.attacks.simulate import LocalSteps, OneGradient, OnTheLine
from leakscope.attacks.starts import Insider, Normal
from leakscope.attacks.translate import ThroughMap
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.tree import Tree, rows, take
from leakscope.core.types import LocalTraining, Observation, make_batch
from leakscope.learning.local import draw_order
from leakscope.learning.warps import shift
from leakscope.models import MODELS

DOUBLE = Execution(dtype="float64", form="native")
SINGLE = Execution(form="native")


def alpha_at(value: float) -> object:
    return lambda key, knowledge: torch.tensor(value)


def on_the_line(start: float = 0.5, rate: float = 0.01, iterations: int = 40) -> Matching:
    return Matching(
        "line",
        simulate=OnTheLine(OneGradient()),
        objective=Match(cosine),
        priors=(TotalVariation(0.01, scale=0.5),),
        start=Normal(),
        optimiser=Adam(0.1),
        rules={"guess": Rule(project=into_box), "alpha": Rule(rate=rate, project=Interval(0.0, 1.0))},
        extras={"alpha": alpha_at(start)},  # type: ignore[dict-item]
        stop=Stop(iterations=iterations),
    )


LOCAL = LocalTraining(epochs=4, batch_size=2, rate=0.05)


def directional_error(w: World, how: Matching, names: list[str], step: float = 1e-6) -> float:
    """Return the worst relative gap between the gradient and central differences along random directions."""
    problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native")
    zero = torch.zeros(len(w.seeds), dtype=torch.int64)
    at = evaluate(problem.unknowns, zero)
    worst = 0.0
    for name in names:
        value = problem.unknowns[name]
        along = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(1))

        def moved(sign: float, name: str = name, value: Tensor = value, along: Tensor = along) -> Tensor:
            return evaluate({**problem.unknowns, name: value + sign * step * along}, zero).total

        slope = (moved(1) - moved(-1)) / (2 * step)
        claimed = rows(at.gradient[name] * along).sum(1)
        worst = max(worst, float(((slope - claimed).abs() / claimed.abs().clamp_min(1e-6)).max()))
    return worst


@pytest.mark.slow
def test_a_learned_alpha_moves_inside_its_interval_and_helps() -> None:
    w = world(3, name="cnn_mnist", samples=4, local=LOCAL, labels=True, a=0.05)
    free = on_the_line().run(w.model, w.observation, w.knowledge, w.seeds, SINGLE)
    stuck = on_the_line(start=0.0, rate=1e-9).run(w.model, w.observation, w.knowledge, w.seeds, SINGLE)
    assert (free.mismatch < stuck.mismatch).all()
    problem, _ = on_the_line().prepare(w.model, w.observation, w.knowledge, w.seeds)
    alpha = Engine(w.model, problem, Stop(iterations=40), "native").run().unknowns["alpha"]
    assert ((alpha > 0) & (alpha < 1)).all()
    assert (alpha != 0.5).all()


def test_the_gradient_of_alpha_agrees_with_finite_differences() -> None:
    w = world(2, name="mlp", samples=3, local=LOCAL, labels=True, dtype=torch.float64, settings={"activation": "tanh"})
    assert directional_error(w, on_the_line(start=0.3), ["alpha", "guess"]) < 1e-5


@pytest.mark.slow
def test_a_learned_shift_finds_the_offset_and_its_gradient_is_right() -> None:
    w = world(2, name="lenet_dlg", dtype=torch.float64)
    true = torch.tensor([[0.1, -0.05]], dtype=torch.float64)
    pictures = w.batch.inputs[:, 0]
    moved = torch.stack([shift(pictures[i : i + 1], true) for i in range(2)])
    observation = w.client.observe(w.model, w.weights, make_batch(moved, w.batch.labels, classes=10), w.seeds)
    how = Matching(
        "shift",
        simulate=ThroughMap(),
        objective=Match(cosine),
        start=Insider(w.batch.inputs),
        optimiser=Adam(0.01),
        rules={"guess": Rule(rate=1e-12), "shift": Rule(project=Interval(-0.4, 0.4))},
        extras={"shift": lambda key, knowledge: torch.full((1, 2), 0.01)},
        stop=Stop(iterations=40),
    )
    assert directional_error(replace(w, observation=observation), how, ["shift"]) < 1e-4
    problem, _ = how.prepare(w.model, observation, w.knowledge, w.seeds, DOUBLE)
    found = Engine(w.model, problem, how.stop, "native").run().unknowns["shift"]
    torch.testing.assert_close(found, true.expand(2, 1, 2), atol=0.02, rtol=0)


def two_steps(w: World, segment: int | None) -> Matching:
    return Matching(
        "steps",
        simulate=LocalSteps(segment=segment),
        start=Normal(),
        optimiser=LBFGS(),
        stop=Stop(iterations=15, threshold=1e-12),
    )


@pytest.mark.slow
def test_two_local_steps_are_simulated_with_recomputation_and_the_picture_comes_back() -> None:
    local = LocalTraining(epochs=2, rate=0.1)
    w = world(2, name="lenet_dlg", local=local, labels=True, dtype=torch.float64)
    plain = two_steps(w, None).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    again = two_steps(w, 1).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    torch.testing.assert_close(again.inputs, plain.inputs, rtol=1e-6, atol=1e-6)
    assert directional_error(w, two_steps(w, 1), ["guess"]) < 1e-5
    assert (plain.mismatch < 1e-2 * plain.trace[:, 0]).all()


def test_the_simulation_of_the_truth_with_the_true_order_matches_exactly() -> None:
    local = LocalTraining(epochs=2, batch_size=2, rate=0.1)
    w = world(2, name="mlp", samples=3, local=local, labels=True, dtype=torch.float64)
    keys = random.fold(random.key(w.seeds), "client")
    knowledge = replace(w.knowledge, order=draw_order(local, 3, keys))
    how = replace(two_steps(w, 1), start=Insider(w.batch.inputs))
    problem, _ = how.prepare(w.model, w.observation, knowledge, w.seeds, DOUBLE)
    made = Evaluator(w.model, problem.unknowns, problem.facts, "native")(problem.unknowns, torch.zeros(2).long())
    assert (made.mismatch < 1e-20).all()


def test_several_rounds_of_one_batch_are_averaged() -> None:
    w = world(2, name="lenet_dlg", dtype=torch.float64)
    other = {name: value + 0.1 for name, value in w.weights.items()}
    second = w.client.observe(w.model, other, w.batch, w.seeds)
    both = Observation((*w.observation.rounds, *second.rounds), w.observation.shares, w.observation.samples)

    def value(observation: Observation) -> Tensor:
        problem, _ = cpl().prepare(w.model, observation, w.knowledge, w.seeds, DOUBLE)
        return Evaluator(w.model, problem.unknowns, problem.facts, "native")(
            problem.unknowns, torch.zeros(2).long()
        ).mismatch

    torch.testing.assert_close(value(both), (value(w.observation) + value(second)) / 2)


SMALL: dict[str, tuple[tuple[int, ...], dict[str, object] | None]] = {
    "linear": ((1, 28, 28), None),
    "mlp": ((1, 28, 28), {"activation": "tanh"}),
    "lenet_dlg": ((3, 32, 32), None),
    "lenet_cpl": ((1, 28, 28), {"activation": "tanh", "pooling": "average"}),
    "dlnet": ((1, 28, 28), None),
    "resnet20": ((3, 32, 32), {"width": 4, "activation": "tanh"}),
    "resnet20_dlg": ((1, 28, 28), {"width": 2}),
    "resnet20_cpl": ((1, 28, 28), {"width": 2, "norm": "none"}),
    "cnn_mnist": ((1, 28, 28), None),
    "cnn_cifar": ((3, 32, 32), None),
    "convnet": ((1, 28, 28), {"width": 2, "activation": "tanh"}),
    "mlp_sme": ((1, 28, 28), {"hidden": (20, 20)}),
    "lenet_sme": ((1, 28, 28), None),
    "resnet8": ((1, 28, 28), {"width": 4, "hidden": 20, "activation": "tanh"}),
    "vit": ((1, 28, 28), {"width": 16, "depth": 2}),
    "alexnet": ((3, 8, 8), {"width": 4, "hidden": 10, "activation": "tanh"}),
    "vgg16": ((1, 8, 8), {"width": 4, "groups": 2, "hidden": 10, "activation": "tanh"}),
    "resnet18": ((3, 8, 8), {"width": 2, "stem": "small"}),
    "vit_b16": ((1, 8, 8), {"width": 12, "heads": 2, "depth": 2, "patch": 4}),
}


def test_every_registered_model_is_checked_below() -> None:
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("name", SMALL)
def test_matching_gradients_agree_with_finite_differences_for_every_model(name: str) -> None:
    shape, settings = SMALL[name]
    w = world(2, name=name, shape=shape, dtype=torch.float64, settings=settings, a=0.2)
    kinked = name in ("cnn_mnist", "cnn_cifar", "mlp_sme", "resnet18")  # relu: a short step, so that no kink is crossed
    assert directional_error(w, dlg(), ["guess", "label"], 1e-7 if kinked else 1e-5) < 1e-4


@pytest.mark.parametrize("name", DISTANCES)
def test_matching_gradients_agree_with_finite_differences_for_every_objective(name: str) -> None:
    w = world(2, name="lenet_dlg", dtype=torch.float64)
    priors = (TotalVariation(0.01, power=2), LabelRegulariser(0.1), Norm(0.1), BoxPenalty(0.3))
    how = replace(dlg(objective=Match(DISTANCES[name])), priors=priors)
    assert directional_error(w, how, ["guess", "label"], 1e-7) < 1e-4


@pytest.mark.slow
def test_a_sweep_over_prior_weights_is_one_batch() -> None:
    w = world(3)
    weights = torch.tensor([0.0, 0.1, 1.0])
    together = replace(cpl(iterations=2), priors=(TotalVariation(weights),)).run(
        w.model, w.observation, w.knowledge, w.seeds, SINGLE
    )
    for i, weight in enumerate(weights.tolist()):
        alone = replace(cpl(iterations=2), priors=(TotalVariation(torch.tensor([weight])),)).run(
            w.model, take(w.observation, torch.tensor([i])), w.knowledge, [w.seeds[i]], SINGLE
        )
        assert torch.equal(alone.inputs[0], together.inputs[i])


def test_extras_and_finish_reach_the_reconstruction() -> None:
    w = world(2)

    def darken(unknowns: Tree, knowledge: object) -> Tree:
        return {**unknowns, "guess": unknowns["guess"] * 0}

    made = replace(cpl(iterations=1), finish=darken).run(w.model, w.observation, w.knowledge, w.seeds, SINGLE)
    assert float(made.inputs.abs().max()) == 0


@pytest.mark.slow
def test_a_weight_update_of_one_step_with_a_known_rate_is_attacked_like_its_gradient() -> None:
    client = Client(local=LocalTraining(rate=0.01))
    w = world(2)
    observation = client.observe(w.model, w.weights, w.batch, w.seeds)
    made = cpl(iterations=15, threshold=1e-3).run(
        w.model, observation, attacker_knowledge(w.model, client, w.batch), w.seeds, SINGLE
    )
    assert made.labels.tolist() == w.batch.labels.tolist()
    assert (made.inputs - w.batch.inputs).square().mean() < 0.02
