"""DLFA: against a plain torch loop that trains, compares and steps; its priors against double loops; its memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.conftest import World, world
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.attack import Matching
from leakscope.attacks.dlfa import (
    COPIES,
    EpochCopies,
    EveryCopy,
    LayerMatch,
    OrderInvariant,
    OutOfRange,
    average_copies,
    dlfa,
)
from leakscope.attacks.engine.forms import Evaluation, Evaluator
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.runner import run_problem
from leakscope.attacks.label_rules.counts import counts
from leakscope.attacks.priors import GUESS, TotalVariation
from leakscope.attacks.simulate import LocalSteps
from leakscope.attacks.starts import Insider
from leakscope.attacks.view import Clock, Simulated, View
from leakscope.clients import attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import Tree
from leakscope.core.types import Knowledge, LocalTraining, make_batch
from leakscope.kernels.memory import peak_bytes
from leakscope.learning.local import draw_order

DOUBLE = Execution(dtype="float64", form="native")
LOCAL = LocalTraining(epochs=3, batch_size=2, rate=0.05)
SCALING = Scaling((0.4,), (0.25,))
SHAPE = (1, 6, 6)
N = 3


def small(local: LocalTraining = LOCAL, *, trials: int = 2, hidden: tuple[int, ...] = (8, 7, 6)) -> World:
    settings_ = {"hidden": hidden, "activation": "tanh"}
    w = world(
        trials, name="mlp", shape=SHAPE, samples=N, local=local, labels=True, dtype=torch.float64, settings=settings_
    )
    client = replace(w.client, scaling=SCALING)
    seen = client.observe(w.model, w.weights, w.batch, w.seeds)
    return replace(
        w, client=client, observation=seen, knowledge=attacker_knowledge(w.model, client, w.batch, labels=True)
    )


def view_of(guess: Tensor, copies: Tensor, epochs: int) -> View:
    local = LocalTraining(epochs=epochs, batch_size=2, rate=0.1)
    knowledge = Knowledge(tuple(guess.shape[1:]), 4, guess.shape[0], local=local, scaling=SCALING)
    clock = Clock(torch.tensor(0), random.key(3))
    return View({GUESS: guess, COPIES: copies}, Simulated({}, guess, guess), {}, None, knowledge, clock)  # type: ignore[arg-type]


# -- against the obvious loop


def plain_loop(w: World, trial: int, copies: Tensor, iterations: int) -> Tensor:
    """DLFA on FEMNIST's settings as one writes it down: E x N copies, one client, one optimiser."""
    module = w.model.apply.module  # type: ignore[attr-defined]
    seen, labels = w.observation.rounds[0], w.batch.labels[trial]
    before = {n: v[trial] for n, v in seen.before.items()}
    target = {n: (before[n] - seen.sent[n][trial]) / LOCAL.rate for n in before}
    order = draw_order(LOCAL, N, random.key(w.seeds[trial])).tolist()
    copies = copies.clone().requires_grad_()
    adam = torch.optim.Adam([copies], lr=0.4)
    layer = {"dense1": 0, "dense2": 1, "dense3": 2, "head": 3}
    for k in range(iterations):
        now = {n: v.clone().requires_grad_() for n, v in before.items()}
        for step, batch in enumerate(order):
            epoch, index = step // 2, [i for i in batch if i >= 0]
            logits = torch.func.functional_call(module, now, (copies[epoch, index],))
            slopes = torch.autograd.grad(F.cross_entropy(logits, labels[index]), now.values(), create_graph=True)
            now = {n: v - LOCAL.rate * g for (n, v), g in zip(now.items(), slopes, strict=True)}
        match = sum(
            math.exp(-layer[n.split(".")[0]]) * ((before[n] - now[n]) / LOCAL.rate - target[n]).square().sum()
            for n in now
        )
        finished = max(k - 1, 0)  # what the engine's clock shows: iterations finished when the evaluation begins
        factor = min(2 ** ((finished + 1) / (iterations // 2)), 2.0)
        images = copies.flatten(0, 1)
        tv = sum((x - x.roll(1, -1)).square().sum() + (x - x.roll(1, -2)).square().sum() for x in images) / len(images)
        picture = images * 0.25 + 0.4
        box = ((picture - picture.clamp(0, 1)) ** 2).sum() / len(images)
        means = [c.mean(0) for c in copies]
        invariant = sum((a - b).square().mean() for a in means for b in means) / len(means) ** 2
        loss = factor * match / len(order) + 0.001 * tv + 2 * box + 1000 * invariant
        adam.param_groups[0]["lr"] = 0.4 * 0.995 ** (k / 10)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return copies.detach()


def test_dlfa_is_the_plain_loop() -> None:
    w, iterations = small(), 6
    how = dlfa(iterations=iterations)
    problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    made = run_problem(w.model, problem, how.stop, DOUBLE, "", how.most_evaluations())
    for trial in range(2):
        start = torch.cat([problem.unknowns[GUESS][trial][None], problem.unknowns[COPIES][trial]])
        copies = plain_loop(w, trial, start, iterations)
        assert_close(made.unknowns[GUESS][trial], copies[0], rtol=1e-6, atol=1e-6)
        assert_close(made.unknowns[COPIES][trial], copies[1:], rtol=1e-6, atol=1e-6)


def evaluation(how: Matching, w: World, knowledge: Knowledge | None = None) -> Evaluation:
    problem, _ = how.prepare(w.model, w.observation, knowledge or w.knowledge, w.seeds, DOUBLE)
    evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native")
    return evaluate(problem.unknowns, torch.zeros(len(w.seeds), dtype=torch.int64))


def test_the_truth_in_its_true_order_explains_the_update() -> None:
    w = small()
    knowledge = replace(w.knowledge, order=draw_order(LOCAL, N, random.fold(random.key(w.seeds), "client")))
    truth = SCALING.scale(w.batch.inputs, 3)
    how = dlfa()
    problem, _ = how.prepare(w.model, w.observation, knowledge, w.seeds, DOUBLE)
    unknowns = {GUESS: truth, COPIES: truth[:, None].expand(2, 2, *truth.shape[1:])}
    made = Evaluator(w.model, unknowns, problem.facts, "native")(unknowns, torch.zeros(2).long())
    assert (made.mismatch < 1e-20).all()
    other = {**unknowns, COPIES: unknowns[COPIES].flip(2)}  # each copy must be the one its own epoch trained on
    assert (Evaluator(w.model, other, problem.facts, "native")(other, torch.zeros(2).long()).mismatch > 1e-6).all()


# -- recomputation


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("segment", [None, 1, 4, 100])
def test_recomputing_segments_changes_nothing(segment: int | None) -> None:
    w = small()
    kept, again = evaluation(dlfa(segment=0), w), evaluation(dlfa(segment=segment), w)
    assert_close(again.total, kept.total, rtol=1e-12, atol=1e-12)
    for name in (GUESS, COPIES):
        assert_close(again.gradient[name], kept.gradient[name], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_recomputation_makes_long_simulations_fit() -> None:
    """Bytes at the peak: without it they grow with the steps, with it much more slowly."""

    def peak(epochs: int, segment: int | None) -> int:
        w = small(LocalTraining(epochs=epochs, rate=0.01), trials=1, hidden=(200, 50))
        problem, _ = dlfa(segment=segment, invariant=0.0).prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
        evaluate = Evaluator(w.model, problem.unknowns, problem.facts, "native")
        return peak_bytes(lambda: evaluate(problem.unknowns, torch.zeros(1, dtype=torch.int64)))

    kept = [peak(epochs, 0) for epochs in (9, 36)]
    again = [peak(epochs, None) for epochs in (9, 36)]
    assert kept[1] > 3 * kept[0]
    assert again[1] < 3 * again[0]
    assert again[1] < kept[1] / 3


def test_the_network_never_sees_more_pictures_than_the_client_has() -> None:
    """Else memory grows with the epochs, whatever is recomputed."""
    local = LocalTraining(epochs=6, batch_size=3, rate=0.01)
    w = world(1, name="cnn_mnist", samples=6, local=local, labels=True)
    problem, _ = dlfa().prepare(w.model, w.observation, w.knowledge, w.seeds)
    sizes = []

    def apply(parameters: Tree, buffers: Tree, x: Tensor, key: Tensor) -> tuple[Tensor, Tree]:
        sizes.append(x.shape[0])
        return w.model.apply(parameters, buffers, x, key)

    evaluate = Evaluator(replace(w.model, apply=apply), problem.unknowns, problem.facts, "loop")
    evaluate(problem.unknowns, torch.zeros(1, dtype=torch.int64))
    assert sizes.count(3) >= 12
    assert max(sizes) == 6


# -- what is told


def test_without_the_local_training_it_refuses_in_one_line() -> None:
    w = small()
    with pytest.raises(InputError, match=r"Knowledge\.local .*sme") as e:
        dlfa().run(w.model, w.observation, replace(w.knowledge, local=None), w.seeds)
    assert "\n" not in str(e.value)


def test_labels_that_were_not_told_are_read_off_the_update() -> None:
    w = small()
    blind = replace(w.knowledge, labels=None)
    problem, _ = dlfa().prepare(w.model, w.observation, blind, w.seeds, DOUBLE)
    read = problem.facts.knowledge.labels
    assert read is not None
    assert torch.equal(read, counts(w.model, w.observation, blind, random.key(w.seeds)))


def test_a_shared_gradient_is_refused() -> None:
    w = world(2, name="mlp", samples=2, labels=True)
    knowledge = replace(w.knowledge, local=LOCAL)
    with pytest.raises(InputError, match="shared a gradient"):
        dlfa().run(w.model, w.observation, knowledge, w.seeds)


def test_one_epoch_has_no_copies_to_average() -> None:
    w = small(LocalTraining(epochs=1, batch_size=2, rate=0.05))
    made = dlfa(iterations=3).run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    problem, _ = dlfa(iterations=3).prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    ended = run_problem(w.model, problem, dlfa(iterations=3).stop, DOUBLE, "", 3.0)
    assert_close(made.inputs, SCALING.unscale(ended.unknowns[GUESS], 3))
    assert torch.equal(ended.unknowns[COPIES], problem.unknowns[COPIES])  # unused, so it never moved


@pytest.mark.slow
def test_unequal_clients_adam_and_momentum_simply_work() -> None:
    w = small()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    batch = make_batch(w.batch.inputs, w.batch.labels, classes=10, mask=mask)
    for local in (LOCAL, replace(LOCAL, momentum=0.9), replace(LOCAL, optimiser="adam", rate=0.01)):
        client = replace(w.client, local=local)
        seen = client.observe(w.model, w.weights, batch, w.seeds)
        knowledge = attacker_knowledge(w.model, client, batch, labels=True)
        for statistic in ("mean", "features") if local is LOCAL else ("mean",):
            how = dlfa(iterations=2, statistic=statistic)  # type: ignore[arg-type]
            made = how.run(w.model, seen, knowledge, w.seeds, DOUBLE)
            assert bool(made.inputs.isfinite().all())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tv": -1.0},
        {"box": -1.0},
        {"invariant": -1.0},
        {"segment": -1},
        {"decay": 0.0},
        {"decay_every": 0},
        {"ramp": (0.0, 1.0)},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        dlfa(**wrong)  # type: ignore[arg-type]


def test_the_recipe_has_the_published_settings() -> None:
    how = dlfa()
    assert (how.stop.iterations, how.optimiser.rate) == (400, 0.4)  # type: ignore[attr-defined]
    schedule = how.rules[GUESS].schedule
    assert schedule is not None
    assert_close(schedule(torch.tensor([0, 10, 20])).float(), torch.tensor([1.0, 0.995, 0.995**2]))
    assert isinstance(how.simulate, EpochCopies)
    assert isinstance(how.simulate.inner, LocalSteps)
    match = how.objective
    assert isinstance(match, LayerMatch)
    factor = match.factor(torch.tensor([0.0, 99, 199, 399]))
    assert_close(factor, torch.tensor([2 ** (1 / 200), 2**0.5, 2.0, 2.0]))


# -- priors


@settings(deadline=None, max_examples=20)
@given(epochs=st.integers(1, 4), samples=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_order_invariant_prior_is_its_double_sum_and_feels_no_order(epochs: int, samples: int, seed: int) -> None:
    every = random.normal(random.key(seed), (max(epochs, 2), samples, 2, 4, 4), torch.float64)
    for statistic in ("mean", "features"):
        prior = OrderInvariant(3.0, statistic, filters=5)  # type: ignore[arg-type]
        got = prior(view_of(every[0], every[1:], epochs))
        kernel = random.normal(random.fold(random.key(3), "order_invariant"), (5, 2, 3, 3), torch.float64) / math.sqrt(
            18
        )
        each = []
        for copies in every[:epochs]:
            each.append(copies.mean(0) if statistic == "mean" else F.conv2d(copies, kernel, padding=1).amax(0))
        slow = sum((a - b).square().mean() for a in each for b in each) / epochs**2
        assert_close(got, 3.0 * torch.as_tensor(slow, dtype=torch.float64))
        assert_close(prior(view_of(every[0].flip(0), every[1:].flip(1), epochs)), got)


def test_priors_of_every_copy_are_averaged_over_images() -> None:
    every = random.normal(random.key(0), (3, 2, 1, 4, 4), torch.float64)
    view = view_of(every[0], every[1:], 3)
    tv = EveryCopy(TotalVariation(0.5, power=2, circular=True, total=True))(view)
    images = every.flatten(0, 1)
    slow = sum((x - x.roll(1, -1)).square().sum() + (x - x.roll(1, -2)).square().sum() for x in images) / 6
    assert_close(tv, 0.5 * torch.as_tensor(slow))
    picture = images * 0.25 + 0.4
    outside = torch.where(picture < 0, picture, torch.where(picture > 1, picture - 1, 0)).square().sum() / 6
    assert_close(EveryCopy(OutOfRange(2.0))(view), 2 * outside)


# -- copies


@settings(deadline=None, max_examples=15)
@given(epochs=st.integers(1, 4), samples=st.integers(1, 5), seed=st.integers(0, 99))
def test_copies_are_paired_with_the_first_epochs_and_averaged(epochs: int, samples: int, seed: int) -> None:
    key = random.key(seed)
    first = random.uniform(key, (samples, 1, 4, 4))
    noise = 0.01 * random.normal(random.fold(key, 1), (max(epochs - 1, 1), samples, 1, 4, 4))
    orders = [random.permutation(random.fold(key, 7 + e), samples) for e in range(max(epochs - 1, 1))]
    copies = torch.stack([(first + noise[e])[order] for e, order in enumerate(orders)])
    knowledge = view_of(first, copies, epochs).knowledge
    made = average_copies({GUESS: first[None], COPIES: copies[None]}, knowledge)[GUESS][0]
    expected = torch.cat([first[None], (first + noise)])[:epochs].mean(0)
    assert_close(made, expected)


@settings(deadline=None, max_examples=15)
@given(epochs=st.integers(1, 4), present=st.lists(st.booleans(), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_slots_that_a_smaller_client_does_not_fill_pair_with_nothing(
    epochs: int, present: list[bool], seed: int
) -> None:
    """The present ones come out as if the others were not there, whatever lies in those; the empty slots stay."""
    key, number, here = random.key(seed), len(present), torch.tensor(present)
    first = random.uniform(key, (number, 1, 4, 4))
    copies = random.uniform(random.fold(key, 1), (max(epochs - 1, 1), number, 1, 4, 4))
    copies[:, ~here] = 0.5  # flat and near everything
    knowledge = view_of(first, copies, epochs).knowledge
    told_of = replace(knowledge, present=here[None])
    made = average_copies({GUESS: first[None], COPIES: copies[None]}, told_of)[GUESS][0]
    alone = average_copies({GUESS: first[here][None], COPIES: copies[:, here][None]}, knowledge)[GUESS][0]
    assert_close(made[here], alone)
    assert torch.equal(made[~here], first[~here])


def test_the_mismatch_of_layers_is_over_each_clients_own_steps() -> None:
    gap = {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(2)}
    zero = {name: torch.zeros_like(value) for name, value in gap.items()}
    local = LocalTraining(epochs=3, batch_size=2, rate=0.1)
    for size, steps in ((5, 9), (2, 3), (1, 3)):
        knowledge = Knowledge((1, 2, 2), 4, 5, present=torch.arange(5) < size, local=local)
        clock = Clock(torch.tensor(0), random.key(3))
        view = View({}, Simulated(gap, torch.zeros(1), torch.zeros(1)), zero, None, knowledge, clock)  # type: ignore[arg-type]
        assert LayerMatch()(view).item() == pytest.approx((6 + 2 * math.exp(-1)) / (0.1**2 * steps))


@pytest.mark.slow
def test_the_reconstruction_is_the_mean_of_the_copies() -> None:
    w = small()
    how = replace(dlfa(iterations=2), start=Insider(w.batch.inputs))
    made = how.run(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    problem, _ = how.prepare(w.model, w.observation, w.knowledge, w.seeds, DOUBLE)
    ended = run_problem(w.model, problem, how.stop, DOUBLE, "", 2.0)
    expected = average_copies(ended.unknowns, w.knowledge)[GUESS]
    assert_close(made.inputs, SCALING.unscale(expected, 3))
    assert not torch.allclose(expected, ended.unknowns[GUESS])
