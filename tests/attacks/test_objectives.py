"""The objective: a distance between updates with what the attacker was told of how they were made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.defended import Clipped, LargestSent, Rounded, Sent, Whitened, nearest, shrink
from leakscope.attacks.distances import DISTANCES, angle, cosine, disagreement, l1, l2, squared_l2
from leakscope.attacks.objectives import Match, facts_needed, local_steps, reported, update_length, without_unneeded
from leakscope.attacks.units import AtLeast, InNoiseUnits, PerGradient, Scaled, ToLength
from leakscope.attacks.view import Clock, Objective, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, lift, scale
from leakscope.core.types import Knowledge, LocalTraining, Round

torch.set_num_threads(1)
SEEDS = st.integers(0, 10_000)


def tree(seed: int, *leading: int) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (2, 3), "b": (4,), "c": ()}
    return {n: torch.randn((*leading, *s), generator=generator, dtype=torch.float64) for n, s in shapes.items()}


def view(simulated: Tree, observed: Tree, mask: Tree | None = None, **facts: Tensor) -> View:
    knowledge = replace(Knowledge((2,), 3, 1, mask=mask), **facts)
    made = Simulated(simulated, torch.zeros(1, 3), torch.zeros(1, 3))
    return View({}, made, observed, Round({}, {}, observed), knowledge, Clock(torch.tensor(0), random.key(0)))


def told_of(match: Objective, here: View) -> Tensor:
    """Return the mismatch as it is reported."""
    return reported(match, here, match(here))


def steps_of(length: float, **facts: Tensor) -> Knowledge:
    """Return the facts with a local training whose update sums up gradients of this length."""
    return replace(Knowledge((2,), 3, 1, local=LocalTraining(epochs=2, rate=length / 2)), **facts)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_match_is_the_plain_distance_by_default(name: str) -> None:
    a, b = tree(0), tree(1)
    assert torch.equal(Match(DISTANCES[name])(view(a, b)), DISTANCES[name](a, b))


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_weights_multiply_both_sides_and_unnamed_layers_count_once(name: str) -> None:
    a, b = tree(0), tree(1)
    factors = {"a": 2.0, "b": 1.0, "c": 0.5}
    expected = DISTANCES[name](*({n: v * factors[n] for n, v in side.items()} for side in (a, b)))
    assert_close(Match(DISTANCES[name], weights=(("a", 2.0), ("c", 0.5)))(view(a, b)), expected)


def test_weights_that_name_no_layer_are_refused() -> None:
    with pytest.raises(InputError, match=r"Match\.weights.*nowhere"):
        Match(weights=(("a", 1.0), ("nowhere", 2.0)))(view(tree(0), tree(1)))


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_a_known_mask_hides_what_was_not_sent(name: str) -> None:
    a, b = tree(0), tree(1)
    mask = {
        "a": torch.tensor([[1, 0, 1], [0, 1, 1]]).bool(),
        "b": torch.tensor([1, 1, 0, 0]).bool(),
        "c": torch.tensor(True),
    }
    kept = [{n: v[mask[n]] for n, v in side.items()} for side in (a, b)]
    expected = DISTANCES[name](*kept).item()
    assert Sent(Match(DISTANCES[name]))(view(a, b, mask)).item() == pytest.approx(expected)
    spoiled = {n: torch.where(mask[n], v, v + 100) for n, v in b.items()}
    same = Sent(Match(DISTANCES[name]))(view(a, spoiled, mask))
    assert_close(same, Sent(Match(DISTANCES[name]))(view(a, b, mask)))


def test_weights_and_mask_work_together() -> None:
    a, b = tree(0), tree(1)
    mask = {"a": torch.zeros(2, 3), "b": torch.ones(4), "c": torch.tensor(1.0)}
    expected = 9 * (a["b"] - b["b"]).square().sum() + (a["c"] - b["c"]).square()
    assert_close(Sent(Match(squared_l2, (("b", 3.0),)))(view(a, b, mask)), expected)


def test_a_mask_the_attacker_was_not_told_is_an_error() -> None:
    with pytest.raises(InputError, match=r"Knowledge\.mask"):
        Sent()(view(tree(0), tree(1)))


def test_lifted_over_trials_each_mask_is_its_own() -> None:
    a, b = tree(0, 3), tree(1, 3)
    mask = {n: (tree(2, 3)[n] > 0) for n in a}
    match = Sent()
    many = lift(lambda a, b, m: match(view(a, b, m)))(a, b, mask)
    alone = [match(view(*({n: v[i] for n, v in side.items()} for side in (a, b, mask)))) for i in range(3)]
    assert_close(many, torch.stack(alone))


def test_what_a_round_did_not_send_is_hidden_though_another_round_sent_it() -> None:
    a, b = tree(0), tree(1)
    union = {n: torch.ones_like(v) for n, v in a.items()}
    sent = {n: v * (tree(2)[n] > 0) for n, v in b.items()}
    own = {n: (v != 0).to(v.dtype) for n, v in sent.items()}
    match = Sent()
    assert_close(match(view(a, sent, union)), match(view(a, b, own)))


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, bound=st.floats(1e-3, 10))
def test_a_known_clip_is_played_again(seed: int, bound: float) -> None:
    a = tree(seed)
    sent = shrink(a, bound)
    told = torch.tensor(bound, dtype=torch.float64)
    assert Clipped()(view(a, sent, bound=told)) < 1e-20
    twice = replace(view(scale(a, 0.5), scale(sent, 0.5)), knowledge=steps_of(2.0, bound=told))
    assert Clipped()(twice) < 1e-20
    assert squared_l2(shrink(a, 1e9), a) == 0


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, bits=st.integers(2, 8), random_rounding=st.booleans())
def test_everything_that_rounds_to_the_observed_is_a_match(seed: int, bits: int, random_rounding: bool) -> None:
    a = tree(seed)
    rounded = {}
    for name, value in a.items():
        step = value.abs().amax() / (2 ** (bits - 1) - 1)
        up = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed), dtype=value.dtype)
        rounded[name] = torch.floor(value / step + (up if random_rounding else 0.5)) * step
    told = torch.tensor(bits)
    assert Rounded()(view(a, rounded, bits=told)) < 1e-20
    far = {n: v + 2 * v.abs().amax() for n, v in rounded.items()}
    step = {n: v.abs().amax() / (2 ** (bits - 1) - 1) for n, v in rounded.items()}
    slow = sum(((far[n] - rounded[n] - step[n]) ** 2).sum() for n in far)
    assert_close(Rounded()(view(far, rounded, bits=told)), slow)
    assert_close(squared_l2(far, nearest(far, rounded, told)), slow)


@pytest.mark.parametrize("distance", [squared_l2, l2, l1, cosine, angle])
def test_the_gradient_of_a_rounded_match_is_that_of_the_distance_to_the_nearest(distance: Any) -> None:
    seen, told = {n: v.round() for n, v in tree(3).items()}, torch.tensor(3)
    at = {n: v + 0.3 * w for (n, v), w in zip(tree(3).items(), tree(4).values(), strict=True)}
    fast = torch.func.grad(lambda a: Rounded(Match(distance))(view(a, seen, bits=told)))(at)
    slow = torch.func.grad(lambda a: distance(a, nearest(a, seen, told)))(at)
    assert max(float(v.abs().max()) for v in slow.values()) > 1e-3
    for name in at:
        assert_close(fast[name], slow[name])


@pytest.mark.parametrize("distance", [squared_l2, l2])
def test_a_mismatch_in_units_of_the_noise_is_about_one_at_the_truth(distance: Any) -> None:
    sigma = torch.tensor(0.3, dtype=torch.float64)
    truth = {"w": torch.zeros(200, 100, dtype=torch.float64)}
    noise = torch.randn(200, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = told_of(InNoiseUnits(Match(distance, gain=7.0)), view(truth, {"w": sigma * noise}, sigma=sigma))
    assert made.item() == pytest.approx(1.0, abs=0.03)
    mask = {"w": (noise > 0).double()}
    half = told_of(InNoiseUnits(Sent(Match(distance))), view(truth, {"w": sigma * noise}, mask, sigma=sigma))
    assert half.item() == pytest.approx(1.0, abs=0.03)
    long = replace(view(truth, {"w": sigma / 5 * noise}), knowledge=steps_of(5.0, sigma=sigma))
    assert told_of(InNoiseUnits(Match(distance)), long).item() == pytest.approx(1.0, abs=0.03)


def test_slack_counts_where_it_is_more_than_the_noise() -> None:
    a, b, quiet = tree(0), tree(1), torch.tensor(0.0, dtype=torch.float64)
    assert_close(told_of(InNoiseUnits(slack=0.5), view(a, b, sigma=quiet)), squared_l2(a, b) / 0.5)


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, sigma=st.floats(1e-6, 1e3), slack=st.floats(0, 10), distance=st.sampled_from([squared_l2, l2]))
def test_known_noise_changes_what_is_reported_and_not_what_is_minimised(
    seed: int, sigma: float, slack: float, distance: Any
) -> None:
    a, b, told = tree(seed), tree(seed + 1), torch.tensor(sigma, dtype=torch.float64)
    here = view(a, b, sigma=told)
    match = InNoiseUnits(Match(distance), slack)
    assert torch.equal(match(here), distance(a, b))
    assert told_of(match, here) * match.explained(here) == pytest.approx(float(distance(a, b)))
    assert torch.equal(told_of(Match(distance), here), distance(a, b))


def test_an_objective_of_ones_own_is_reported_as_it_is() -> None:
    here = view(tree(0), tree(1))
    value = torch.tensor(3.0)
    assert reported(lambda _: value, here, value) is value


@settings(deadline=None, max_examples=40)
@given(
    epochs=st.integers(1, 5),
    batch=st.none() | st.integers(1, 7),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
def test_each_trial_has_the_steps_and_the_length_of_its_own_size(
    epochs: int, batch: int | None, momentum: float, sizes: list[int]
) -> None:
    local = LocalTraining(epochs=epochs, batch_size=batch, rate=0.3, momentum=momentum)
    present = torch.arange(6)[None] < torch.tensor(sizes)[:, None]
    each = [Knowledge((2,), 3, 6, present=row, local=local) for row in present]
    assert [float(update_length(k)) for k in each] == pytest.approx(local.length(sizes).tolist())
    assert [int(local_steps(local, k)) for k in each] == [local.steps(max(n, 1)) for n in sizes]
    whole = Knowledge((2,), 3, 6, local=local)
    assert update_length(whole) == pytest.approx(float(local.length([6])))


@pytest.mark.parametrize("distance", [squared_l2, l2, l1, cosine])
def test_changes_of_weights_count_per_gradient(distance: Any) -> None:
    a, b = tree(0), tree(1)
    here = replace(view(scale(a, 0.2), scale(b, 0.2)), knowledge=steps_of(0.2))
    assert_close(Scaled(Match(distance), PerGradient())(here), distance(a, b))
    with pytest.raises(InputError, match=r"Knowledge\.local"):
        Scaled(gain=PerGradient())(view(a, b))


FACTS: dict[str, tuple[Objective, dict[str, Tensor]]] = {
    "mask": (Sent(), {}),
    "clipped": (Clipped(), {"bound": torch.tensor(0.5, dtype=torch.float64)}),
    "rounded": (Rounded(), {"bits": torch.tensor(5)}),
    "angle": (Scaled(Sent(Match(angle)), 100.0), {}),
    "signs": (Sent(Match(disagreement)), {}),
    "noise": (InNoiseUnits(Sent(), 0.1), {"sigma": torch.tensor(0.2, dtype=torch.float64)}),
    "all": (
        InNoiseUnits(Sent(Clipped(Rounded(Match(weights=(("a", 2.0),)))))),
        {"bound": torch.tensor(0.5), "bits": torch.tensor(5), "sigma": torch.tensor(0.2)},
    ),
}


@pytest.mark.parametrize("name", sorted(FACTS))
def test_the_derivative_of_a_match_that_uses_facts_passes_finite_differences(name: str) -> None:
    match, facts = FACTS[name]
    a, b = tree(1), tree(2)
    mask = {n: (tree(3)[n] > -0.5).double() for n in a}

    def value(*leaves: Tensor) -> Tensor:
        return match(view(dict(zip(a, leaves, strict=True)), b, mask, **facts))

    assert torch.autograd.gradcheck(value, [v.clone().requires_grad_() for v in a.values()])


@pytest.mark.parametrize(
    ("match", "fact"), [(Clipped(), "bound"), (Rounded(), "bits"), (InNoiseUnits(), "sigma"), (LargestSent(), "mask")]
)
def test_a_fact_the_attacker_was_not_told_is_an_error(match: Objective, fact: str) -> None:
    with pytest.raises(InputError, match=rf"Knowledge\.{fact}"):
        told_of(match, view(tree(0), tree(1)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Match(gain=0.0),
        lambda: Scaled(gain=float("inf")),
        lambda: AtLeast(1.0, -1.0),
        lambda: ToLength(1.0, float("inf")),
        lambda: Rounded(pull=-1.0),
        lambda: InNoiseUnits(slack=-1.0),
        lambda: InNoiseUnits(Match(cosine)),
        lambda: LargestSent(Match(cosine)),
    ],
)
def test_senseless_settings_are_refused(build: Any) -> None:
    with pytest.raises(InputError):
        build()


def test_every_wrapper_says_which_facts_it_reads_and_the_others_can_be_left_out() -> None:
    every = InNoiseUnits(Scaled(Sent(Clipped(Rounded(Whitened()))), ToLength(PerGradient(), 10.0)))
    used = {"mask", "bound", "bound_each", "bits", "sigma", "sigma_each", "local"}
    assert facts_needed(every) == used
    assert facts_needed(Match()) == frozenset()
    assert facts_needed(Sent(lambda view: view.simulated.output.sum())) is None
    one = torch.ones(1)
    known = Knowledge((2,), 3, 1, mask={"a": one}, bound=one, bound_each=True, bits=one, sigma=one, labels=one)
    assert without_unneeded(every, known) == known
    assert without_unneeded(Clipped(), known) == Knowledge((2,), 3, 1, bound=one, bound_each=True, labels=one)
    assert without_unneeded(lambda view: view.simulated.output.sum(), known) is known
