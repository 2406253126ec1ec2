"""Baselines that never see the update: right against slow versions, and blind to everything a client could send."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks import null
from leakscope.attacks.attack import Matching
from leakscope.attacks.engine.plan import Execution
from leakscope.attacks.engine.state import Stop
from leakscope.attacks.null import ClassMean, PriorOnly, class_mean, draw_labels
from leakscope.attacks.optimisers import Adam
from leakscope.attacks.priors import LabelRegulariser, Norm, TotalVariation
from leakscope.attacks.recipes import ATTACKS, cpl, dlg, ig, prior_only
from leakscope.attacks.simulate import ALPHA, OneGradient, OnTheLine
from leakscope.attacks.starts import Normal, Patterned, Uniform
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.scaling import Scaling
from leakscope.core.tree import map_tensors, take, tensors
from leakscope.core.types import Knowledge, LocalTraining, Observation, Outcome, Reconstruction, make_batch
from leakscope.models import Torch, build, draw_parameters

torch.set_num_threads(1)
CLASSES, SAMPLES, SEEDS = 4, 2, [3, 8, 21]
SHAPES = {"grey": (1, 8, 8), "colour": (3, 6, 9), "table": (7,)}
SCALING = Scaling((0.4,), (0.3,))
EXACT = Execution(dtype="float64")
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def knows(shape: tuple[int, ...], labels: Tensor | None = None) -> Knowledge:
    return Knowledge(shape, CLASSES, SAMPLES, scaling=SCALING, labels=labels)


def played(
    shape: tuple[int, ...], seed: int, network: str = "mlp", local: LocalTraining | None = None
) -> tuple[Model, Observation, Knowledge]:
    model, client = build(network, shape, CLASSES), Client(local, scaling=SCALING)
    trials = len(SEEDS)
    labels = torch.randint(CLASSES, (trials, SAMPLES), generator=torch.Generator().manual_seed(seed))
    batch = make_batch(draw(seed, trials, SAMPLES, *shape), labels, classes=CLASSES)
    weights = draw_parameters(model, Torch(), random.key([seed + s for s in SEEDS]))
    return model, client.observe(model, weights, batch, SEEDS), attacker_knowledge(model, client, batch)


def same_bytes(one: object, other: object) -> None:
    first, second = list(tensors(one)), list(tensors(other))
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()


def public(shape: tuple[int, ...], number: int = 20) -> tuple[Tensor, Tensor]:
    return draw(5, number, *shape), torch.arange(number) % CLASSES


# -- class mean


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    shape=st.sampled_from([(3,), (1, 2, 3), (3, 2, 2)]),
    seed=st.integers(0, 99),
    asked=st.lists(st.integers(0, 4), min_size=1, max_size=3),
)
def test_the_class_mean_is_the_mean_of_the_public_pictures_of_that_class(
    labels: list[int], shape: tuple[int, ...], seed: int, asked: list[int]
) -> None:
    pictures = draw(seed, len(labels), *shape)
    attack = class_mean(pictures, torch.tensor(labels), classes=5)
    knowledge = Knowledge(shape, 5, len(asked), labels=torch.tensor([asked]))
    made = attack.guess(knowledge, 1, EXACT)
    for place, wanted in enumerate(asked):
        of_class = [pictures[i].double() for i, label in enumerate(labels) if label == wanted]
        chosen = of_class or [picture.double() for picture in pictures]
        assert_close(made.inputs[0, place], sum(chosen) / len(chosen))
    assert made.labels.tolist() == [asked]
    blind = attack.guess(replace(knowledge, labels=None), 2, EXACT)
    for trial in range(2):
        assert_close(blind.inputs[trial], pictures.double().mean(0).expand(len(asked), *shape))
    commonest = max(labels.count(label) for label in labels)
    assert all(labels.count(label) == commonest for label in blind.labels.flatten().tolist())


def test_the_class_mean_does_not_depend_on_the_size_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, labels = public((1, 8, 8))
    whole = class_mean(pictures, labels, classes=CLASSES)
    monkeypatch.setattr(null, "_AT_ONCE", 3 * 64)
    assert_close(class_mean(pictures, labels, classes=CLASSES).means, whole.means, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("pictures", "labels", "words"),
    [
        (torch.rand(3, 1, 2, 2), torch.tensor([0, 1]), "pictures P x"),
        (torch.rand(0, 1, 2, 2), torch.zeros(0, dtype=torch.int64), "none empty"),
        (torch.rand(2, 1, 2, 2) * 255, torch.tensor([0, 1]), r"box \[0, 1\]"),
        (torch.full((2, 1, 2, 2), torch.nan), torch.tensor([0, 1]), r"box \[0, 1\]"),
        (torch.ones(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]), "floating numbers"),
        (torch.rand(2, 1, 2, 2), torch.tensor([0.0, 1.0]), "whole ones"),
        (torch.rand(2, 1, 2, 2), torch.tensor([0, 4]), "0..3 for 4 classes, got 0..4"),
        (torch.rand(2, 1, 2, 2), torch.tensor([-1, 3]), "got -1..3"),
    ],
)
def test_a_public_set_that_cannot_be_used_is_refused(pictures: Tensor, labels: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        class_mean(pictures, labels, classes=CLASSES)


def test_a_class_mean_of_another_shape_or_fewer_classes_is_refused() -> None:
    attack = class_mean(*public((1, 8, 8)), classes=CLASSES)
    with pytest.raises(InputError, match=r"\(1, 8, 8\).*\(1, 8, 9\)"):
        attack.guess(knows((1, 8, 9)), 1)
    with pytest.raises(InputError, match="class 4"):
        attack.guess(knows((1, 8, 8), torch.tensor([[0, 4]])), 1)


# -- blind to the update


def blind_attacks(shape: tuple[int, ...]) -> dict[str, ClassMean | PriorOnly]:
    return {
        "class_mean": class_mean(*public(shape), classes=CLASSES),
        "prior_only": prior_only(iterations=5),
        "prior only of cpl": PriorOnly(cpl(alpha=0.1, iterations=3)),
    }


@each_shape
@pytest.mark.parametrize("name", sorted(blind_attacks((7,))))
def test_another_client_another_update_and_a_broken_one_give_the_same_bytes(name: str, shape: tuple[int, ...]) -> None:
    attack = blind_attacks(shape)[name]
    model, seen, knowledge = played(shape, seed=0)
    _, other, _ = played(shape, seed=50)
    broken = map_tensors(lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t, seen)
    weights = played(shape, seed=7, network="linear", local=LocalTraining(rate=0.1))
    made = attack.run(model, seen, knowledge, SEEDS)
    for network, observation in ((model, other), (model, broken), weights[:2]):
        same_bytes(attack.run(network, observation, knowledge, SEEDS), made)


@each_shape
@pytest.mark.parametrize("name", sorted(blind_attacks((7,))))
def test_a_baseline_hands_back_what_an_attack_does(name: str, shape: tuple[int, ...]) -> None:
    attack = blind_attacks(shape)[name]
    model, seen, knowledge = played(shape, seed=0)
    knowledge = replace(knowledge, labels=torch.tensor([[0, 1], [2, 3], [3, 3]]))
    before, generator = copy.deepcopy(list(tensors((attack, seen, knowledge)))), torch.get_rng_state()
    made = attack.run(model, seen, knowledge, SEEDS)
    like = cpl(iterations=1).run(model, seen, knowledge, SEEDS, Execution(form="native"))
    for field in Reconstruction.__dataclass_fields__:
        mine, theirs = getattr(made, field), getattr(like, field)
        if theirs is None:
            assert mine is None, field
            continue
        if isinstance(theirs, Mapping):
            assert mine.keys() == theirs.keys(), field
            continue
        assert mine.dtype == theirs.dtype, field
        assert mine.ndim == theirs.ndim, field
        assert mine.shape[0] == len(SEEDS), field
    assert made.inputs.shape == made.start.shape == like.inputs.shape
    assert made.snapshots.shape[2:] == like.snapshots.shape[2:]
    assert made.trace.shape == made.trace_at.shape
    assert made.snapshots.shape[:2] == made.snapshots_at.shape
    assert made.labels.equal(knowledge.labels)
    assert made.mismatch.isnan().all()
    assert made.trace.isnan().all()
    assert (made.trace_at == -1).all()
    assert made.snapshots[made.snapshots_at >= 0].isfinite().all()
    assert made.inputs.isfinite().all()
    same_bytes(list(tensors((attack, seen, knowledge))), before)
    same_bytes(attack.run(model, seen, knowledge, SEEDS), made)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("name", sorted(blind_attacks((7,))))
def test_a_trial_does_not_depend_on_its_neighbours(name: str) -> None:
    attack = blind_attacks((1, 8, 8))[name]
    model, seen, knowledge = played((1, 8, 8), seed=0)
    many = attack.run(model, seen, knowledge, SEEDS)
    alone = attack.run(model, take(seen, slice(2, 3)), knowledge, SEEDS[2:])
    same_bytes(alone, take(many, slice(2, 3)))


@pytest.mark.parametrize("name", sorted(blind_attacks((7,))))
def test_the_number_of_seeds_is_checked(name: str) -> None:
    model, seen, knowledge = played((7,), seed=0)
    with pytest.raises(InputError, match="3 trials, 2 seeds"):
        blind_attacks((7,))[name].run(model, seen, knowledge, SEEDS[:2])


# -- prior only


def by_hand(start: Tensor, penalty: object, iterations: int, rate: float) -> Tensor:
    """Return torch's own Adam on a penalty of the guess."""
    guess = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=rate)
    for _ in range(iterations):
        optimiser.zero_grad()
        penalty(guess).backward()  # type: ignore[operator]
        optimiser.step()
    return guess.detach()


@pytest.mark.parametrize(
    ("shape", "prior", "penalty"),
    [
        (
            (3, 6, 9),
            TotalVariation(0.7, power=2),
            lambda x: 0.7 * (x.diff(dim=-1).square().mean() + x.diff(dim=-2).square().mean()),
        ),
        ((7,), Norm(0.7), lambda x: 0.7 * x.square().mean()),
        ((7,), TotalVariation(0.7, power=2), lambda x: 0.7 * x.square().mean()),
    ],
    ids=["pictures", "a table", "a table, variation asked for"],
)
def test_prior_only_descends_the_prior_from_the_start_of_the_attack(
    shape: tuple[int, ...], prior: TotalVariation | Norm, penalty: object
) -> None:
    attack = Matching("any", priors=(prior,), start=Uniform(), optimiser=Adam(0.05), stop=Stop(iterations=12))
    knowledge = knows(shape)
    made = PriorOnly(attack).guess(knowledge, SEEDS, EXACT)
    keys = random.fold(random.fold(random.key(SEEDS), "start"), 0)
    for trial in range(len(SEEDS)):
        start = Uniform()(keys[trial], knowledge).double()
        assert_close(SCALING.scale(made.start[trial], len(shape)), start)
        expected = by_hand(start, penalty, 12, 0.05)
        assert_close(SCALING.scale(made.inputs[trial], len(shape)), expected, rtol=1e-9, atol=1e-9)
    assert (made.outcome == Outcome.EXHAUSTED).all()
    assert (made.iterations == 12).all()


def variation(x: Tensor) -> Tensor:
    return (x.diff(dim=-1).abs().mean((-3, -2, -1)) + x.diff(dim=-2).abs().mean((-3, -2, -1))).mean(1)


@pytest.mark.parametrize("start", [Normal(), Patterned()], ids=lambda start: type(start).__name__)
def test_the_default_prior_only_smooths_its_start_inside_the_box(start: Normal | Patterned) -> None:
    made = prior_only(start=start).guess(knows((3, 12, 12)), SEEDS)
    assert (variation(made.inputs) < 0.1 * variation(made.start)).all()
    assert made.inputs.min() >= -1e-6
    assert made.inputs.max() <= 1 + 1e-6


def test_all_iterations_are_run_once_whatever_the_attack_would_stop_at() -> None:
    attack = PriorOnly(ig(threshold=1.0, restarts=3, iterations=5))
    made = attack.guess(knows((1, 8, 8)), SEEDS)
    assert made.iterations.tolist() == [5, 5, 5]
    assert made.evaluations.tolist() == [6, 6, 6]
    assert (made.outcome == Outcome.EXHAUSTED).all()
    same_bytes(made, PriorOnly(ig(iterations=5)).guess(knows((1, 8, 8)), SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [cpl(iterations=2), dlg(iterations=2), cpl(alpha=1.0, iterations=2)])
def test_an_attack_without_a_prior_on_the_guess_ends_where_it_starts(attack: Matching) -> None:
    made = PriorOnly(attack).guess(knows((1, 8, 8)), SEEDS)
    assert torch.equal(made.inputs, made.start)
    like = attack.run(*played((1, 8, 8), seed=0), SEEDS, Execution(form="native"))
    assert torch.equal(made.start, like.start), "the start is the attack's own"


def test_an_attack_with_other_unknowns_can_be_silenced_too() -> None:
    attack = Matching(
        "line",
        simulate=OnTheLine(OneGradient()),
        priors=(TotalVariation(), LabelRegulariser(0.1)),
        extras={ALPHA: lambda key, knowledge: torch.full((), 0.5)},
        optimiser=Adam(0.1),
        stop=Stop(iterations=3),
    )
    made = PriorOnly(attack).guess(knows((1, 8, 8)), SEEDS)
    assert (variation(made.inputs) < variation(made.start)).all()


def test_labels_not_told_are_uniform_and_each_trials_own() -> None:
    number = 4000
    drawn = draw_labels(range(number), 3, CLASSES)
    assert drawn.dtype == torch.int64
    for place in range(3):
        counts = torch.bincount(drawn[:, place], minlength=CLASSES).double()
        assert len(counts) == CLASSES
        expected = number / CLASSES
        assert ((counts - expected).square() / expected).sum() < 21, "chi-squared, 3 degrees of freedom, p = 1e-4"
    together = (drawn[:, 0] == drawn[:, 1]).double().mean()
    assert abs(together - 1 / CLASSES) < 5 * math.sqrt(0.25 * 0.75 / number), "samples are drawn apart"
    assert draw_labels([17], 3, CLASSES).equal(drawn[17:18])
    assert prior_only(iterations=1).guess(knows((7,)), SEEDS).labels.equal(draw_labels(SEEDS, SAMPLES, CLASSES))


def test_prior_only_is_an_attack_by_name() -> None:
    attack = ATTACKS["prior_only"]()
    model, seen, knowledge = played((1, 8, 8), seed=0)
    same_bytes(attack.run(model, seen, knowledge, SEEDS), prior_only().guess(knowledge, SEEDS))
    assert attack.name == "prior_only"
