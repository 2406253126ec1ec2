"""SME and IG on weight updates: against a plain torch loop, without knowing the local training, on all six networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.attacks.conftest import World, world
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.forms import Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.label_rules.counts import counts
from leakscope.attacks.recipes import ATTACKS, ig, ig_update, sme
from leakscope.attacks.simulate import ALPHA
from leakscope.attacks.starts import Insider
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import LocalTraining, Observation, make_batch
from leakscope.models import Torch, build, draw_parameters

DOUBLE = Execution(dtype="float64", form="native")
LOCAL = LocalTraining(epochs=5, batch_size=2, rate=0.05)
SCALING = Scaling((0.4,), (0.25,))


def small(name: str = "mlp", *, dtype: torch.dtype = torch.float64, local: LocalTraining = LOCAL) -> World:
    """Two clients of three random 8x8 pictures each, with a scaling, so that the box is not [0, 1]."""
    w = world(2, name=name, shape=(1, 8, 8), samples=3, local=local, labels=True, dtype=dtype, a=0.2)
    client = replace(w.client, scaling=SCALING)
    seen = client.observe(w.model, w.weights, w.batch, w.seeds)
    return replace(
        w, client=client, observation=seen, knowledge=attacker_knowledge(w.model, client, w.batch, labels=True)
    )


def ends(how: Matching, w: World, observation: Observation | None = None) -> Tree:
    """The unknowns of every trial at the end, in network space."""
    problem, _ = how.prepare(w.model, observation or w.observation, w.knowledge, w.seeds, DOUBLE)
    return run_problem(w.model, problem, how.stop, DOUBLE, "", how.most_evaluations()).unknowns


# -- against the obvious loop


def plain_loop(
    w: World, trial: int, x: Tensor, *, alpha: float, learn: bool, iterations: int, every: int = 1
) -> tuple[Tensor, float, float]:
    """SME as one writes it down: torch.autograd, two Adams, MultiStepLR; one client at a time; alpha moves `every` so often."""
    module = w.model.apply.module  # type: ignore[attr-defined]
    seen = w.observation.rounds[0]
    before = {n: v[trial] for n, v in seen.before.items()}
    after = {n: v[trial] for n, v in seen.sent.items()}
    target = torch.cat([(before[n] - after[n]).flatten() for n in before])
    labels = w.batch.labels[trial]
    low, high = (0 - 0.4) / 0.25, (1 - 0.4) / 0.25
    x = x.clamp(low, high).clone().requires_grad_()
    a = torch.tensor(alpha, dtype=x.dtype, requires_grad=True)
    adams = [torch.optim.Adam([x], lr=1.0), torch.optim.Adam([a], lr=1e-3 * every)]
    marks = [int(iterations // 2.667), int(iterations // 1.6), int(iterations // 1.142)]
    plans = [torch.optim.lr_scheduler.MultiStepLR(adam, marks, gamma=0.1) for adam in adams]

    def similarity() -> Tensor:
        surrogate = {n: (1 - a) * before[n] + a * after[n] for n in before}
        loss = F.cross_entropy(torch.func.functional_call(module, surrogate, (x,)), labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, surrogate.values(), create_graph=True)])
        return 1 - F.cosine_similarity(gradient, target, dim=0, eps=1e-30)

    for iteration in range(iterations):
        for adam in adams:
            adam.zero_grad()
        down, across = (x[..., 1:, :] - x[..., :-1, :]).abs().mean(), (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        (similarity() + 0.01 * (down + across) / 2).backward()
        for adam in adams[: 1 + (learn and iteration % every == 0)]:
            adam.step()
        for plan in plans[: 1 + learn]:
            plan.step()
        with torch.no_grad():
            x.clamp_(low, high)
            a.clamp_(0, 1)
    return x.detach(), float(a.detach()), float(similarity().detach())


@pytest.mark.parametrize(
    ("name", "alpha", "learn", "every"),
    [
        ("cnn_mnist", 0.5, True, 1),
        ("mlp", 0.9995, True, 1),
        ("mlp", 0.3, False, 1),
        ("cnn_mnist", 0.5, True, 3),
        ("mlp", 0.9995, True, 4),
    ],
)
def test_sme_is_the_plain_loop(name: str, alpha: float, learn: bool, every: int) -> None:
    w, iterations = small(name), 9
    how = sme(iterations=iterations, alpha=alpha, alpha_rate=1e-3 if learn else 0.0, alpha_every=every)
    problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    made = run_problem(w.model, problem, how.stop, DOUBLE, "", how.most_evaluations())
    for trial in range(2):
        x = random.normal(random.fold(random.fold(random.key(w.seeds[trial]), "start"), 0), (3, 1, 8, 8)).double()
        guess, a, mismatch = plain_loop(w, trial, x, alpha=alpha, learn=learn, iterations=iterations, every=every)
        assert_close(made.unknowns["guess"][trial], guess, rtol=1e-7, atol=1e-7)
        assert float(made.unknowns[ALPHA][trial]) == pytest.approx(a, abs=1e-9)
        assert float(made.mismatch[trial]) == pytest.approx(mismatch, rel=1e-7)


def test_ig_on_an_update_is_the_plain_loop_with_the_surrogate_at_the_weights_before() -> None:
    w, iterations = small(), 9
    made = ends(ig_update(iterations=iterations), w)
    for trial in range(2):
        x = random.normal(random.fold(random.fold(random.key(w.seeds[trial]), "start"), 0), (3, 1, 8, 8)).double()
        guess, _, _ = plain_loop(w, trial, x, alpha=0.0, learn=False, iterations=iterations)
        assert_close(made["guess"][trial], guess, rtol=1e-7, atol=1e-7)
    held = ends(sme(iterations=iterations, alpha=0.0, alpha_rate=0.0), w)
    assert_close(held["guess"], made["guess"], rtol=1e-9, atol=1e-9)
    assert held[ALPHA].tolist() == [0.0, 0.0]


# -- settings and what is told


def test_the_recipes_have_the_published_settings() -> None:
    how = sme()
    assert (how.stop.iterations, how.stop.threshold, how.optimiser.rate) == (1000, 0.0, 1.0)  # type: ignore[attr-defined]
    guess, alpha = how.rules["guess"], how.rules[ALPHA]
    assert guess.schedule.milestones == alpha.schedule.milestones == (374, 624, 875)  # type: ignore[union-attr]
    assert (guess.sign, guess.rate, alpha.rate) == (False, 1.0, 1e-3)
    prior = how.priors[0]
    assert (prior.weight, prior.scale, prior.power) == (0.01, 0.5, 1)  # type: ignore[attr-defined]
    transformer = sme(rate=0.1, decay=False)
    assert transformer.rules[ALPHA].rate * 0.1 == pytest.approx(1e-3)
    assert transformer.rules[ALPHA].schedule is None
    assert alpha.every == guess.every == 1
    assert sme(alpha_every=6).rules == {
        **how.rules,
        ALPHA: replace(alpha, rate=6e-3, every=6),
    }  # as far in six iterations


@pytest.mark.parametrize("name", ["sme", "ig_update", "ig"])
def test_neither_epochs_nor_batch_size_nor_rate_are_needed(name: str) -> None:
    w = small()
    how = {"sme": sme, "ig_update": ig_update, "ig": ig}[name](iterations=4)
    told_ = ends(how, w)
    blind = ends(how, replace(w, knowledge=replace(w.knowledge, local=None)))
    assert_close(blind["guess"], told_["guess"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["sme", "ig_update", "ig"])
def test_labels_that_were_not_told_are_read_off_the_update(name: str) -> None:
    w = small()
    blind = replace(w.knowledge, local=None, labels=None)
    how = {"sme": sme, "ig_update": ig_update, "ig": ig}[name](iterations=4)
    read = how.prepare(w.model, w.observation, blind, w.seeds, DOUBLE)[0].facts.knowledge.labels
    assert read is not None
    assert torch.equal(read, counts(w.model, w.observation, blind, random.key(w.seeds)))


def test_a_shared_gradient_is_refused_in_one_line() -> None:
    w = world(2, name="mlp", samples=2, labels=True)
    with pytest.raises(InputError, match="shared a gradient") as caught:
        sme().run(w.model, w.observation, w.knowledge, w.seeds)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 1.5},
        {"alpha": -0.1},
        {"alpha_rate": -1.0},
        {"alpha_every": 0},
        {"alpha_every": 2.5},
        {"tv": -1.0},
        {"rate": 0.0},
        {"iterations": 0},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises((InputError, ZeroDivisionError)) as caught:
        sme(**settings)  # type: ignore[arg-type]
    assert isinstance(caught.value, InputError)


def test_alpha_stays_in_its_interval_and_one_step_moves_it_by_its_rate() -> None:
    w = small()
    assert ends(sme(iterations=1, decay=False), w)[ALPHA].sub(0.5).abs().tolist() == pytest.approx([1e-3] * 2, rel=1e-4)
    wild = ends(sme(iterations=6, alpha_rate=10.0), w)[ALPHA]
    assert bool(((wild >= 0) & (wild <= 1)).all())


def test_the_truth_explains_the_update_better_on_the_line_than_at_its_beginning() -> None:
    """Eq. 2 against Eq. 5 at the true pictures: some point on the line has a smaller error than w0."""
    w = small(local=LocalTraining(epochs=20, rate=0.003))
    start = Insider(w.batch.inputs)
    at = []
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        how = sme(start=start, alpha=alpha, iterations=1, tv=0.0)
        problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
        at.append(run_problem(w.model, problem, how.stop, DOUBLE, "", 1.0).trace[:, 0])
    error = torch.stack(at)
    assert bool((error[1:4].amin(0) < error[[0, 4]].amin(0)).all())


def test_clients_of_unequal_size_are_attacked_together() -> None:
    w = small(dtype=torch.float32)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    batch = make_batch(w.batch.inputs, w.batch.labels, classes=10, mask=mask)
    seen = w.client.observe(w.model, w.weights, batch, w.seeds)
    knowledge = attacker_knowledge(w.model, w.client, batch, labels=True)
    made = sme(iterations=3).run(w.model, seen, knowledge, w.seeds, Execution(form="native"))
    alone = sme(iterations=3).run(w.model, w.observation, w.knowledge, w.seeds, Execution(form="native"))
    assert_close(made.inputs[0], alone.inputs[0])
    assert not torch.allclose(made.inputs[1], alone.inputs[1])


# -- networks

SIX: dict[str, tuple[tuple[int, int, int], dict[str, object], str]] = {
    "cnn_mnist": ((1, 12, 12), {}, "cross_entropy"),
    "cnn_cifar": ((3, 12, 12), {}, "cross_entropy"),
    "mlp_sme": ((1, 12, 12), {"hidden": (30, 20)}, "cross_entropy"),
    "lenet_sme": ((1, 12, 12), {}, "softmax_cross_entropy"),
    "resnet8": ((1, 12, 12), {"width": 3, "hidden": 10}, "cross_entropy"),
    "vit": ((1, 12, 12), {"width": 8, "depth": 2}, "cross_entropy"),
}


def played(
    name: str, local: LocalTraining, trials: int = 2, samples: int = 3
) -> tuple[Model, Observation, object, Tensor]:
    shape, settings, loss = SIX[name]
    model = build(name, shape, 5, settings)
    seeds = list(range(trials))
    inputs = random.uniform(random.key(1), (trials, samples, *shape))
    labels = torch.arange(trials * samples).reshape(trials, samples) % 5
    batch = make_batch(inputs, labels, classes=5)
    client = Client(local, loss=loss)
    weights = draw_parameters(model, Torch(), random.key(seeds))
    return (
        model,
        client.observe(model, weights, batch, seeds),
        attacker_knowledge(model, client, batch, labels=True, local=False),
        inputs,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("cnn_cifar", "vit", "resnet8"))) for name in SIX]
)
def test_all_six_networks_run_under_sme(name: str) -> None:
    model, seen, knowledge, inputs = played(name, LocalTraining(epochs=3, rate=0.4 if name == "lenet_sme" else 0.004))
    how = sme(rate=0.02, decay=False, tv=0.0, iterations=12)  # short steps: rate 1 crosses the whole box at once
    made = how.run(model, seen, knowledge, [0, 1], Execution(form="native"))
    assert made.inputs.shape == inputs.shape
    assert bool(made.inputs.isfinite().all())
    assert bool(((made.inputs >= -1e-5) & (made.inputs <= 1 + 1e-5)).all())
    assert bool((made.mismatch < made.trace[:, 0]).all())


def test_sme_and_its_baseline_can_be_named() -> None:
    assert {"sme", "ig_update", "dlfa"} <= set(ATTACKS)


# -- beyond the paper: clients with momentum or Adam


@pytest.mark.slow
@pytest.mark.parametrize(
    "local",
    [LocalTraining(epochs=20, rate=0.05), LocalTraining(epochs=20, rate=0.01, momentum=0.9)],
    ids=["sgd", "momentum"],
)
def test_sme_explains_updates_of_sgd_and_of_momentum_better_than_ig(local: LocalTraining) -> None:
    w = world(2, name="cnn_mnist", samples=3, local=local, labels=True, a=0.05)
    made = {
        name: how.run(w.model, w.observation, w.knowledge, w.seeds, Execution(form="loop"))
        for name, how in {"sme": sme(iterations=100), "ig": ig_update(iterations=100)}.items()
    }
    assert bool((made["sme"].mismatch < made["ig"].mismatch).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("local", "least", "most"),
    [
        (LocalTraining(epochs=20, rate=0.004), 0.0, 0.1),
        (LocalTraining(epochs=20, rate=0.0005, momentum=0.9), 0.0, 0.1),
        (LocalTraining(epochs=20, rate=1e-4, optimiser="adam"), 0.3, 1.0),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_even_the_truth_does_not_explain_an_update_by_adam(local: LocalTraining, least: float, most: float) -> None:
    """Momentum sums gradients, so some point on the line fits; Adam scales every coordinate by itself, and none does."""
    w = world(2, name="cnn_mnist", samples=3, local=local, labels=True)
    weights = draw_parameters(w.model, Torch(), random.key(w.seeds))
    seen = w.client.observe(w.model, weights, w.batch, w.seeds)
    best = torch.full((2,), 2.0)
    for alpha in (0.0, 0.25, 0.5, 0.75):
        how = sme(start=Insider(w.batch.inputs), alpha=alpha, iterations=1, tv=0.0)
        problem, _ = how.prepare(w.model, seen, w.knowledge, w.seeds)
        evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native")
        best = torch.minimum(best, evaluate(problem.unknowns, torch.zeros(2, dtype=torch.int64)).mismatch)
    assert bool(((best >= least) & (best <= most)).all())
