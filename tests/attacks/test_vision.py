"""The pieces of `modern` and `gradinversion` against slow versions, and the promises of the engine for them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leakscope.attacks import Execution
from leakscope.attacks.group import GROUP, EachMember, GroupConsistency, mean_member
from leakscope.attacks.objectives import Match
from leakscope.attacks.optimisers import Rule
from leakscope.attacks.optimisers.rules import Cosine, SoftSign
from leakscope.attacks.priors import GUESS, Langevin, OpponentVariation, TotalVariation
from leakscope.attacks.recipes import ig
from leakscope.attacks.view import Clock, Entering, Simulated, View
from leakscope.attacks.vision import gradinversion, modern
from leakscope.attacks.watched import HeadFeatures
from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.model import Dense
from leakscope.core.tree import take
from leakscope.core.types import Knowledge, Round, make_batch
from leakscope.models import from_module
from leakscope.play import Exposure, expose, shared_weights

SHAPE = (3, 6, 6)
KNOWN = Knowledge(SHAPE, 3, 2)


def view(x: Tensor, *, simulated: Simulated | None = None, iteration: int = 0, **unknowns: Tensor) -> View:
    nothing = Simulated({}, x.new_zeros(2, 3), x.new_zeros(2, 3))
    clock = Clock(torch.tensor(iteration), random.key(7))
    return View({GUESS: x, **unknowns}, simulated or nothing, {}, Round({}, {}, {}), KNOWN, clock)


def pictures(seed: int) -> Tensor:
    return random.uniform(random.key(seed), (2, *SHAPE), torch.float64)


def test_opponent_variation_is_the_slow_sum() -> None:
    x, total, number = pictures(0), 0.0, 0
    for picture in x:
        red, green, blue = picture
        for plane in (red, green, blue, red - green, red - blue, green - blue):
            for i in range(6):
                for j in range(6):
                    down = float(plane[i + 1, j] - plane[i, j]) if i < 5 else 0.0
                    across = float(plane[i, j + 1] - plane[i, j]) if j < 5 else 0.0
                    total += math.sqrt(down**2 + across**2 + 1e-8)
                    number += 1
    assert_close(float(OpponentVariation(0.3)(view(x))), 0.3 * total / number)


def test_cosine_decay_warms_up_and_ends_at_zero() -> None:
    factors = Cosine(1000, warmup=50)(torch.arange(1001))
    slow = [(t + 1) / 50 if t < 50 else (1 + math.cos(math.pi * (t - 50) / 950)) / 2 for t in range(1001)]
    assert_close(factors, torch.tensor(slow, dtype=torch.float64), rtol=0, atol=1e-11)
    assert float(Cosine(1)(torch.tensor(0))) == 1


def test_soft_sign_goes_from_a_bounded_gradient_to_the_gradient() -> None:
    g = torch.tensor([[-30.0, -0.1, 0.0, 0.2, 40.0]]).repeat(3, 1).double()
    soft = Rule(sign=SoftSign(100)).signed(g, torch.tensor([0, 50, 100]))
    slow = [[math.tanh(v * s) / s for v in row] for row, s in zip(g.tolist(), (1.0, 0.5, 0.01), strict=True)]
    assert_close(soft, torch.tensor(slow, dtype=torch.float64))


def test_langevin_is_zero_with_the_keys_noise_as_its_gradient() -> None:
    x = pictures(1)

    def penalty(x: Tensor, iteration: int = 3) -> Tensor:
        return Langevin(0.5, Cosine(10, 0))(view(x, iteration=iteration))

    assert float(penalty(x)) == 0
    slope = torch.func.grad(penalty)(x)
    noise = random.normal(random.fold(random.fold(random.key(7), "langevin"), 3), x.shape, x.dtype)
    assert_close(slope, 0.5 * float(Cosine(10, 0)(torch.tensor(3))) * noise)
    assert not torch.equal(slope, torch.func.grad(lambda v: penalty(v, 4))(x))


def test_head_features_compare_with_the_mean_feature_of_a_class() -> None:
    f, targets = pictures(2).flatten(1)[:, :5], torch.eye(3, dtype=torch.float64)[[2, 0]]
    rows, bias = pictures(3).flatten()[:15].reshape(3, 5), torch.tensor([0.5, 0.25, -0.5]).double()
    layer = Dense("fc.weight", "fc.bias")
    simulated = Simulated({}, targets, targets, entering=(Entering(layer, f, torch.tensor([True, True])),))
    seen = replace(view(f, simulated=simulated), observed={"fc.weight": rows, "fc.bias": bias})
    slow = sum((f[i] - rows[c] / bias[c]).square().mean() for i, c in ((0, 2), (1, 0))) / 2
    assert_close(HeadFeatures(0.3)(seen), 0.3 * slow)
    lacking = replace(seen, observed={"fc.weight": rows, "fc.bias": bias * torch.tensor([0.0, 1, 1])})
    assert_close(HeadFeatures(0.3)(lacking), 0.3 * (f[0] - rows[2] / bias[2]).square().mean())


def test_a_group_is_pulled_to_its_plain_mean() -> None:
    one, others = pictures(4), torch.stack([pictures(5), pictures(6)])
    every = [one, *others]
    mean = sum(every) / 3
    slow = sum((x - mean).square().mean() for x in every) / 3
    assert_close(GroupConsistency(0.5)(view(one, **{GROUP: others})), 0.5 * slow)
    variation = TotalVariation(1.0)
    assert_close(
        EachMember(variation)(view(one, **{GROUP: others})), torch.stack([variation(view(x)) for x in every]).mean()
    )
    assert_close(mean_member({GUESS: one[None], GROUP: others[None]}, KNOWN)[GUESS][0], mean)


def exposure(trials: int = 2, *, sends: bool = True) -> Exposure:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    ).eval()  # fmt: skip
    model = from_module(layers, input_shape=SHAPE)
    inputs = random.uniform(random.key(list(range(trials))), (2, *SHAPE))
    data = make_batch(inputs, torch.tensor([[0, 2]] * trials), classes=3)
    client = Client(norm="train", sends_buffers=sends)
    return expose(model, client, shared_weights(model, trials), data, list(range(trials)), labels=True)


ATTACKS = {
    "ig": lambda: ig(iterations=6, bn=0.01),
    "modern": lambda: modern(iterations=6, bn=0.01),
    "gradinversion": lambda: gradinversion(iterations=6, group=3),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_trial_has_the_same_bits_alone_and_among_others(name: str) -> None:
    many, attack = exposure(), ATTACKS[name]()
    plain = Execution(form="native")
    together = attack.run(many.model, many.observation, many.knowledge, [0, 1], plain)
    alone = many.select(torch.tensor([1]))
    single = attack.run(alone.model, alone.observation, alone.knowledge, [1], plain)
    assert torch.equal(take(together.inputs, 1), single.inputs[0])
    assert torch.isfinite(together.inputs).all()
    assert together.inputs.shape == many.batch.inputs.shape


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_sent_buffers_change_the_result(name: str) -> None:
    sent, unsent, attack = exposure(1), exposure(1, sends=False), ATTACKS[name]()
    ends = [attack.run(e.model, e.observation, e.knowledge, [0], Execution(form="native")) for e in (sent, unsent)]
    assert not torch.equal(ends[0].inputs, ends[1].inputs)


@pytest.mark.parametrize("iterations", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_vmapped_traced_and_looped_evaluations_agree(iterations: int) -> None:
    one, attack = exposure(1), gradinversion(iterations=iterations, group=2)
    ends = [attack.run(one.model, one.observation, one.knowledge, [0], Execution(form=f)) for f in ("native", "loop")]
    assert_close(ends[0].trace, ends[1].trace, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("settings", [{"group": 0}, {"bn": -1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        gradinversion(**settings)  # type: ignore[arg-type]


def test_the_default_objective_is_a_sum_over_layers() -> None:
    a, b = {"w": torch.ones(2, 2), "b": torch.zeros(3)}, {"w": torch.zeros(2, 2), "b": torch.full((3,), 2.0)}
    objective = gradinversion(group=1).objective
    assert isinstance(objective, Match)
    assert_close(objective.distance(a, b), torch.tensor(2.0 + math.sqrt(12)))


def test_weights_of_total_variation_are_lanes_of_which_the_smallest_mismatch_is_kept() -> None:
    many, weights = exposure(), (1e-4, 0.1, 10.0)
    plain = Execution(form="native")
    chosen = replace(ig(iterations=6, restarts=2), tv_weights=weights)
    together = chosen.run(many.model, many.observation, many.knowledge, [0, 1], plain)
    single = [
        ig(iterations=6, restarts=2, tv=w).run(many.model, many.observation, many.knowledge, [0, 1], plain)
        for w in weights
    ]
    best = torch.stack([each.mismatch for each in single]).argmin(0)
    for trial, place in enumerate(best.tolist()):
        assert torch.equal(together.inputs[trial], single[place].inputs[trial])
        assert float(together.learned["tv_weight"][trial]) == pytest.approx(weights[place])
