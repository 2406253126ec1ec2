"""Rules for batches: theorems where there are any, plain versions of the peers' rules, and the choice on a learned network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.label_rules import choice
from leakscope.attacks.label_rules.choice import by_residual, read_batch
from leakscope.attacks.label_rules.counts import calibrated, counts, least_counts
from leakscope.attacks.label_rules.head import LabelRule, bias_gradient
from leakscope.attacks.label_rules.hyperplane import label_set, separable_classes
from leakscope.attacks.label_rules.ilrg import _solve, ilrg
from leakscope.attacks.label_rules.negative_classes import analytic, bias_corrected
from leakscope.clients import Client, attacker_knowledge
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Model
from leakscope.core.tree import take
from leakscope.core.types import Batch, Knowledge, LocalTraining, Observation, make_batch
from leakscope.data import load
from leakscope.defences import GaussianNoise
from leakscope.models import Torch, build, draw_parameters, from_module

torch.set_num_threads(1)
CLASSES, TRIALS = 10, 60
SEEDS = list(range(TRIALS))
KEYS = random.key(SEEDS)
PEERS = [counts, ilrg, analytic, bias_corrected]
World = tuple[Model, Observation, Knowledge, Batch]


def learned(
    samples: int,
    *,
    kinds: int = CLASSES,
    strength: float = 4.0,
    skew: float = 0.0,
    lean: float = 0.0,
    client: Client = Client(),  # noqa: B008
) -> World:
    """Return clients of a calibrated linear network: class c lights pixel c, and labels are drawn from the predictions.

    A last pixel, dark in private images and not in random ones, speaks for class 0. Clients hold images of `kinds` classes; `skew`
    makes higher classes likelier, and `lean` makes the network, not the labels, prefer class 0.
    """
    generator = torch.Generator().manual_seed(samples)
    model = build("linear", (CLASSES + 1,), CLASSES)
    lit = torch.stack([torch.randperm(CLASSES, generator=generator)[:kinds] for _ in SEEDS])
    chosen = torch.randint(kinds, (TRIALS, samples), generator=generator)
    x = 0.6 * torch.rand((TRIALS, samples, CLASSES + 1), generator=generator)
    x = x.scatter(2, lit.gather(1, chosen)[..., None], 1.0)
    x[..., -1] = 0
    weight = torch.cat([strength * torch.eye(CLASSES), torch.zeros(CLASSES, 1)], 1)
    weight[0, -1] = 3 * strength
    bias = skew * torch.linspace(-1, 1, CLASSES)
    prediction = (x @ weight.T + bias).softmax(-1)
    labels = torch.multinomial(prediction.flatten(0, 1), 1, generator=generator).reshape(TRIALS, samples)
    batch = make_batch(x, labels if kinds == CLASSES else lit.gather(1, chosen), classes=CLASSES)
    bias[0] += lean
    first = {"weight": weight, "bias": bias}
    weights = {name: first[name.rpartition(".")[2]].expand(TRIALS, *w.shape) for name, w in model.parameters.items()}
    return model, client.observe(model, weights, batch, SEEDS), attacker_knowledge(model, client, batch), batch


def fresh(samples: int, classes: int = CLASSES) -> World:
    generator = torch.Generator().manual_seed(samples)
    model = build("mlp", (12,), classes, {"hidden": (24,)})
    x, labels = torch.rand((TRIALS, samples, 12), generator=generator), torch.randint(classes, (TRIALS, samples))
    batch = make_batch(x, labels, classes=classes)
    seen = Client().observe(model, draw_parameters(model, Torch(), KEYS), batch, SEEDS)
    return model, seen, attacker_knowledge(model, Client(), batch), batch


def counted(labels: Tensor, classes: int = CLASSES) -> Tensor:
    return torch.stack([torch.bincount(row, minlength=classes) for row in labels])


def overlaps(rule: LabelRule, world: World) -> Tensor:
    model, seen, knowledge, batch = world
    read = rule(model, seen, knowledge, KEYS)
    return torch.minimum(counted(read), counted(batch.labels)).sum(1).double() / batch.samples


# -- calibrated


@pytest.mark.parametrize("strength", [1.0, 4.0])
def test_counts_follow_the_bias_gradient_with_slope_one_on_a_calibrated_network(strength: float) -> None:
    model, seen, knowledge, batch = learned(64, strength=strength)
    gradient = bias_gradient(model, seen, knowledge, KEYS).flatten()
    share = counted(batch.labels).flatten() / 64 - 1 / CLASSES
    slope = -float((gradient * share).sum() / gradient.square().sum())
    assert slope == pytest.approx(1, abs=0.15)


def test_public_examples_mend_a_mean_prediction_that_is_not_even() -> None:
    world = learned(32, skew=1.0)
    model, seen, knowledge, _ = world
    public = learned(33, skew=1.0)[3].inputs
    told = (model, seen, replace(knowledge, public=public), world[3])
    assert overlaps(calibrated, told).mean() > overlaps(calibrated, world).mean() + 0.03


def test_one_step_of_sgd_is_read_as_its_gradient() -> None:
    as_gradient, as_weights = learned(8), learned(8, client=Client(LocalTraining(rate=0.5)))
    for rule in (calibrated, ilrg, by_residual, analytic, bias_corrected):
        same = (counted(rule(*as_gradient[:3], KEYS)) == counted(rule(*as_weights[:3], KEYS))).all(1)
        assert same.double().mean() > 0.9, rule


# -- what the gradient proves


@pytest.mark.parametrize("sigma", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("samples", [2, 8, 32])
def test_proved_counts_are_never_above_the_true_ones(samples: int, sigma: float) -> None:
    model, seen, knowledge, batch = learned(samples, client=Client(defences=(GaussianNoise(sigma),) if sigma else ()))
    least = least_counts(model, seen, knowledge, bias_gradient(model, seen, knowledge, KEYS))
    wrong = (least > counted(batch.labels)).double().mean()
    assert wrong <= (0.01 if sigma else 0)
    assert sigma == 0.05 or least.sum() > 0


# -- the peers' rules


def test_the_rules_of_negative_classes_are_their_plain_versions() -> None:
    model, seen, knowledge, batch = learned(12)
    gradients = bias_gradient(model, seen, knowledge, KEYS)
    plain = []
    for row in gradients.tolist():
        labels = [c for c, value in enumerate(row) if value < 0][:12]
        impact = sum(value for value in row if value < 0) / 12
        left = [value - impact if value < 0 else value for value in row]
        while len(labels) < 12:
            labels.append(left.index(min(left)))
            left[labels[-1]] -= impact
        plain.append(sorted(labels))
    assert bias_corrected(model, seen, knowledge, KEYS).tolist() == plain
    read = counted(analytic(model, seen, knowledge, KEYS))
    assert (read[gradients < 0] >= 1).all()
    assert (read.sum(1) == 12).all()
    drawn = read - (gradients < 0).to(read)
    assert (drawn.sum(0) > 0).all()  # what is missing is drawn from all classes
    del batch


def test_ilrg_solves_its_equations() -> None:
    """Exact counts of classes whose predictions are known come back; counts of 0 too."""
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(20, 8, 8, generator=generator, dtype=torch.float64).softmax(-1)
    share = torch.multinomial(torch.ones(20, 8), 24, replacement=True, generator=generator)
    share = torch.stack([torch.bincount(row % 5, minlength=8) for row in share]).double() / 24
    system = prediction.mT - torch.eye(8, dtype=torch.float64)
    gradient = (system @ share[..., None])[..., 0]
    assert torch.allclose(_solve(system, gradient), share, atol=1e-6)


# -- the choice


@pytest.mark.parametrize("samples", [2, 8, 32, 128])
@pytest.mark.parametrize("kinds", [CLASSES, 3])
def test_the_choice_is_no_worse_than_any_peer_and_than_guessing_on_a_learned_network(samples: int, kinds: int) -> None:
    world = learned(samples, kinds=kinds)
    chosen = overlaps(by_residual, world)
    guesses = torch.randint(CLASSES, (TRIALS, samples), generator=torch.Generator().manual_seed(1))
    rates = [float(overlaps(rule, world).mean()) for rule in (*PEERS, lambda *_: guesses)]
    assert float(chosen.mean()) >= max(rates) - 0.02
    assert float(chosen.mean()) > rates[-1]


def test_a_network_that_prefers_a_class_does_not_make_labels_look_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """As half-trained ones do. The prediction at the mean features shows it; chance is right for 0.86 of 128 labels."""
    world = learned(128, strength=1.0, lean=1.0)
    guesses = torch.randint(CLASSES, (TRIALS, 128), generator=torch.Generator().manual_seed(1))
    moved = float(overlaps(by_residual, world).mean())
    assert moved >= max(float(overlaps(rule, world).mean()) for rule in (*PEERS, calibrated, lambda *_: guesses))
    monkeypatch.setattr(choice, "_moved", lambda even, _: even)
    assert moved > float(overlaps(by_residual, world).mean()) + 0.01


def test_random_inputs_mislead_counts_on_a_learned_network() -> None:
    world = learned(32)
    guesses = torch.randint(CLASSES, (TRIALS, 32), generator=torch.Generator().manual_seed(1))
    assert overlaps(counts, world).mean() < overlaps(lambda *_: guesses, world).mean()
    assert overlaps(by_residual, world).mean() > overlaps(counts, world).mean() + 0.2


@pytest.mark.parametrize("samples", [4, 32])
def test_a_fresh_network_gives_sure_and_right_labels_and_a_learned_one_does_not(samples: int) -> None:
    model, seen, knowledge, batch = fresh(samples)
    read = read_batch(model, seen, knowledge, KEYS)
    assert read.sure.double().mean() > 0.9
    assert torch.equal(counted(read.labels)[read.sure], counted(batch.labels)[read.sure])
    model, seen, knowledge, batch = learned(32)
    assert read_batch(model, seen, knowledge, KEYS).sure.double().mean() < 0.1


@pytest.mark.parametrize("samples", [4, 8, 16])
def test_shares_that_were_cut_to_whole_ones_make_no_labels_sure(samples: int) -> None:
    data = load("digits")
    labels = torch.as_tensor(data.labels("train", range(400)))
    x, y = data.pictures("train", range(400))[labels < 2], labels[labels < 2]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    stepper = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(20):
        stepper.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        stepper.step()
    model, trials = from_module(network, input_shape=(1, 8, 8)), 40
    chosen = torch.randint(len(x), (trials, samples), generator=torch.Generator().manual_seed(1))
    batch, client, seeds = make_batch(x[chosen], y[chosen], classes=2), Client(), list(range(trials))
    weights = {name: value.expand(trials, *value.shape).clone() for name, value in model.parameters.items()}
    seen, knowledge = client.observe(model, weights, batch, seeds), attacker_knowledge(model, client, batch)
    read = read_batch(model, seen, knowledge, random.key(seeds))
    wrong = (counted(read.labels) != counted(batch.labels)).any(1)
    assert int((read.sure & wrong).sum()) <= trials // 20


def test_smaller_clients_get_labels_of_their_own_number() -> None:
    model, seen, knowledge, _ = learned(8)
    present = torch.arange(8) < torch.arange(TRIALS)[:, None] % 8 + 1
    for rule in (calibrated, ilrg, by_residual, analytic, bias_corrected):
        read = rule(model, seen, replace(knowledge, present=present), KEYS)
        assert read.shape == (TRIALS, 8)
        assert ((read >= 0) & (read < CLASSES)).all()


def test_an_update_of_zeros_is_read_without_error() -> None:
    model, seen, knowledge, _ = learned(8)
    zeros = replace(seen.rounds[0], sent={name: torch.zeros_like(w) for name, w in seen.rounds[0].sent.items()})
    for rule in (calibrated, ilrg, by_residual, analytic, bias_corrected):
        read = rule(model, replace(seen, rounds=(zeros,)), knowledge, KEYS)
        assert ((read >= 0) & (read < CLASSES)).all()


# -- the set of labels


@pytest.mark.parametrize("rank", [2, 3])
def test_the_hyperplane_test_agrees_with_trying_all_directions(rank: int) -> None:
    """A gradient of `rank` examples: r is tried on a fine grid of the sphere; cases that it decides narrowly are left out."""
    generator = torch.Generator().manual_seed(rank)
    directions = torch.nn.functional.normalize(torch.randn(40_000, rank, generator=generator), dim=1).double()
    decided = 0
    for _ in range(12):
        prediction = torch.randn(rank, 6, generator=generator).softmax(-1).double()
        labels = torch.randint(6, (rank,), generator=generator)
        gradient = (prediction - torch.eye(6).double()[labels]).T @ torch.rand(rank, 9, generator=generator).double()
        points = torch.linalg.svd(gradient)[0][:, :rank]
        sides = directions @ points.T
        found = separable_classes(gradient)
        for c in range(6):
            others = torch.cat([sides[:, :c], sides[:, c + 1 :]], 1).amin(1)
            margin = float(torch.minimum(others, -sides[:, c]).max())  # above 0 if some direction separates
            if abs(margin) > 0.02:
                decided += 1
                assert bool(found[c]) == (margin > 0)
        assert found[labels].all()
    assert decided > 40


def test_the_set_of_labels_of_a_network_is_found() -> None:
    model, seen, _, batch = fresh(4, classes=20)
    one = label_set(model, take(seen, slice(0, 6)))
    assert torch.equal(one, counted(batch.labels[:6], 20) > 0)


def test_a_gradient_of_full_rank_is_refused() -> None:
    with pytest.raises(InputError, match="full rank"):
        separable_classes(torch.randn(5, 9, generator=torch.Generator().manual_seed(0)))
