"""Characteristics: the ratio, the rule for diverged trials, CAP against the mean written out, regions, plain data."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from leakscope.clients import Client
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.types import LocalTraining, Observation, direction, make_batch
from leakscope.defences import DEFENCES, GaussianNoise, Sparsify
from leakscope.defences.on_model import Polarisation
from leakscope.metrics import Estimate, wilson
from leakscope.models import Uniform, build, draw_parameters
from leakscope_papers.characteristics.characteristic import (
    Characteristic,
    Point,
    Region,
    Rule,
    bias_ratio,
    measured,
    place,
    region,
)


def estimate(value: float, half: float = 0.0, n: int = 5) -> Estimate:
    return Estimate(value, value - half, value + half, n, n)


# -- the axis


def test_the_ratio_is_that_of_the_norms_of_all_biases() -> None:
    clean = {
        "a.bias": torch.tensor([[3.0, 0.0], [1.0, 1.0]]),
        "b.bias": torch.tensor([[4.0], [1.0]]),
        "a.weight": torch.ones(2, 9),
    }
    sent = {
        "a.bias": torch.tensor([[3.0, 1.0], [1.0, 1.0]]),
        "b.bias": torch.tensor([[4.0], [1.0]]),
        "a.weight": torch.zeros(2, 9),
    }
    assert_close(bias_ratio(clean, sent), torch.tensor([5.0, math.inf], dtype=torch.float64))
    assert_close(bias_ratio(clean, sent, ["a.bias"]), torch.tensor([3.0, math.inf], dtype=torch.float64))
    with pytest.raises(InputError, match="bias"):
        bias_ratio({"w": torch.ones(1, 2)}, {"w": torch.ones(1, 2)})
    with pytest.raises(InputError, match=r"missing: c\.bias"):
        bias_ratio(clean, sent, ["c.bias"])


def observed(**settings: object) -> tuple[dict, dict]:
    plain, guarded = seen_by_server({}, settings)
    return plain.rounds[0].sent, guarded.rounds[0].sent


def seen_with(local: LocalTraining | None, sigma: float) -> list[Observation]:
    return seen_by_server({"local": local}, {"local": local, "defences": (GaussianNoise(sigma),)})


def seen_by_server(*clients: dict) -> list[Observation]:
    model = build("lenet_dlg", (1, 8, 8), 4, {"width": 2})
    weights = draw_parameters(model, Uniform(0.3), random.key(range(6)))
    generator = torch.Generator().manual_seed(0)
    batch = make_batch(torch.rand(6, 1, 1, 8, 8, generator=generator), torch.zeros(6, 1).long(), classes=4)
    return [Client(**settings).observe(model, weights, batch, range(6)) for settings in clients]


LEAVE_BIASES = {"low_rank"}  # changes matrices alone


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_any_defence_can_be_put_on_the_axis(name: str) -> None:
    strong = {"gaussian_noise": {"sigma": 0.1}, "laplace_noise": {"sigma": 0.1}, "clip": {"bound": 1e-3}, "sparsify": {"drop": 0.9},
              "deep_compression": {"drop": 0.9}}  # fmt: skip
    plain, sent = observed(defences=(DEFENCES[name](**strong.get(name, {})),))
    ratio = bias_ratio(plain, sent)
    assert ratio.shape == (6,)
    assert (ratio > 0).all()
    assert any(not torch.equal(plain[n], sent[n]) for n in plain)
    assert (ratio.isinf() == (name in LEAVE_BIASES)).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["clean", "sent"])
def test_an_update_that_is_not_finite_has_no_ratio(which: str, value: float) -> None:
    clean = {"a.bias": torch.ones(2, 3), "a.weight": torch.full((2, 3), math.nan)}
    broken = {**clean, "a.bias": torch.tensor([[1.0, 1.0, 1.0], [1.0, value, 1.0]])}
    assert (bias_ratio(clean, clean) == math.inf).all()  # weights are not asked
    with pytest.raises(InputError, match=rf"{which} .*a\.bias"):
        bias_ratio(*((broken, clean) if which == "clean" else (clean, broken)))


def test_of_clients_that_share_weights_the_direction_is_meant() -> None:
    """One step of SGD: the direction is the gradient times the rate, so the ratio is that of the gradients."""
    gradients = seen_with(None, 0.01)
    weights = seen_with(LocalTraining(rate=0.1), 0.001)
    wanted = bias_ratio(*(seen.rounds[0].sent for seen in gradients))
    assert_close(bias_ratio(*(direction(seen.rounds[0], seen.shares) for seen in weights)), wanted, rtol=1e-3, atol=0)
    assert (
        bias_ratio(*(seen.rounds[0].sent for seen in weights)) > 2 * wanted
    ).all()  # what weights as they are would say


def test_more_noise_and_more_polarization_mean_a_smaller_ratio() -> None:
    noisy = [bias_ratio(*observed(defences=(GaussianNoise(s),))) for s in (1e-3, 1e-2)]
    assert_close(noisy[0] / noisy[1], torch.full((6,), 10.0, dtype=torch.float64), rtol=1e-3, atol=0)
    hidden = [bias_ratio(*observed(on_model=Polarisation(a, bits=16))) for a in (0.01, 0.1)]
    assert_close(hidden[0] / hidden[1], torch.full((6,), 10.0, dtype=torch.float64), rtol=1e-2, atol=0)
    assert (bias_ratio(*observed(defences=(Sparsify(0.0),))) == math.inf).all()


def test_rounding_is_no_perturbation_and_the_weakest_noise_is_one() -> None:
    plain, hidden = observed(on_model=Polarisation(0.0, bits=16))
    assert (bias_ratio(plain, hidden) == math.inf).all()
    nudged = {name: value * (1 + 2 * torch.finfo(value.dtype).eps) for name, value in plain.items()}
    assert any(not torch.equal(plain[name], nudged[name]) for name in plain)
    assert (bias_ratio(plain, nudged) == math.inf).all()
    assert (bias_ratio(*observed(defences=(GaussianNoise(1e-5),))) < 1e5).all()


@pytest.mark.parametrize(
    ("ratio", "name"),
    [(0.0, "green"), (1.0, "green"), (1.01, "white"), (9.9, "white"), (10.0, "red"), (math.inf, "red")],
)
def test_regions_have_the_stated_borders(ratio: float, name: str) -> None:
    assert region(ratio) is Region(name)


def test_the_place_is_the_papers() -> None:
    assert [round(place(r), 4) for r in (0.0, 1.0, 9.0, 999.0)] == [0.0, 0.3010, 1.0, 3.0]


# -- what a trial counts


def test_the_distance_is_relative_and_paired() -> None:
    truth = torch.rand(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(1)) + 0.01
    truth = truth.clamp(0, 1)
    guess = truth[:, [2, 0, 1]] * 0.9
    value, finite = Rule().distances(truth, guess)
    assert_close(value, torch.full((2, 3), 0.1, dtype=torch.float64), rtol=1e-5, atol=0)
    assert finite.all()


def test_a_diverged_trial_counts_as_the_rule_says() -> None:
    truth = torch.full((2, 1, 1, 2, 2), 0.25)
    guess = torch.stack([torch.full((1, 1, 2, 2), torch.nan), torch.full((1, 1, 2, 2), 100.0)])
    shown, finite = Rule().distances(truth, guess)
    assert_close(shown.flatten(), torch.tensor([1.0, 3.0], dtype=torch.float64))  # mid-grey, and clamped to 1
    assert finite.flatten().tolist() == [False, True]
    raw, _ = Rule(shown=False, cap=50.0).distances(truth, guess)
    assert raw.flatten().tolist() == [50.0, 50.0]
    free, _ = Rule(shown=False, cap=1e6).distances(truth, guess)
    assert free.flatten().tolist() == [1e6, 399.0]
    assert "50" in Rule(shown=False, cap=50.0).words


@pytest.mark.parametrize("rule", [Rule(), Rule(cap=2.0), Rule(shown=False, cap=50.0)], ids=["shown", "capped", "raw"])
@pytest.mark.parametrize("value", [0.0, 0.3, math.nan, -math.inf])
def test_a_black_sample_has_no_relative_error_and_is_left_out_and_counted(rule: Rule, value: float) -> None:
    truth = torch.full((3, 2, 1, 2, 2), 0.5)
    truth[1, 0] = 0.0
    guess = truth + 0.1
    guess[1, 0] = value
    distance, finite = rule.distances(truth, guess)
    assert distance.isnan().flatten().tolist() == [False, False, True, False, False, False]
    made = measured(0.1, torch.ones(3), 0.6, distance, finite)
    assert made.distance.value == pytest.approx(0.2)
    assert (made.distance.n, made.left_out, made.diverged) == (5, 1, int(not math.isfinite(value)))
    curve = Characteristic("dp", "dlg", "rmse", (made, made), rule.words)
    assert curve.left_out == 2
    assert json.loads(json.dumps(curve.plain(), allow_nan=False)) == curve.plain()
    assert "zero throughout" in rule.words


def test_black_samples_alone_make_no_point() -> None:
    distance, _ = Rule().distances(torch.zeros(2, 1, 1, 2, 2), torch.ones(2, 1, 1, 2, 2))
    with pytest.raises(InputError, match="no sample"):
        measured(0.1, torch.ones(2), 0.6, distance)


def test_an_infinite_distance_is_refused_and_the_rule_says_what_it_counts() -> None:
    with pytest.raises(InputError, match=r"infinite: Rule\(cap="):
        measured(0.1, torch.ones(2), 0.6, torch.tensor([[0.2], [math.inf]]))
    truth = torch.full((2, 1, 1, 2, 2), 0.5)
    guess = torch.stack([truth[0] + 0.1, torch.full_like(truth[0], math.inf)])
    distance, finite = Rule(shown=False, cap=10.0).distances(truth, guess)
    made = measured(0.1, torch.ones(2), 0.6, distance, finite)
    assert (made.distance.value, made.diverged) == (pytest.approx(5.1), 1)


def test_a_guess_for_each_sample_is_asked_for() -> None:
    truth = torch.rand(2, 1, 1, 4, 4)
    for guess in (truth.repeat(1, 2, 1, 1, 1), truth[:1], truth[..., :3]):
        with pytest.raises(InputError, match=r"guess .*\(2, 1, 1, 4, 4\)"):
            Rule().distances(truth, guess)


def test_rules_that_leave_no_bound_are_refused() -> None:
    with pytest.raises(InputError, match=r"Rule\.cap must"):
        Rule(shown=False)
    with pytest.raises(InputError, match=r"Rule\.cap .*got 0"):
        Rule(cap=0.0)


# -- the mean


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), min_size=1, max_size=8))
def test_cap_is_the_mean_of_the_products(rows: list[tuple[float, float]]) -> None:
    points = tuple(Point(float(i), 1.0, a, estimate(d)) for i, (a, d) in enumerate(rows))
    made = Characteristic("dp", "dlg", "rmse", points)
    assert made.cap.value == pytest.approx(sum(a * d for a, d in rows) / len(rows))
    assert made.grid == tuple(range(len(rows)))
    assert made.cap.n == 5 * len(rows)


def test_the_papers_accuracies_and_a_distance_of_one_give_their_mean() -> None:
    """Table 11, CIFAR-10, DP: with every reconstruction at distance 1 CAP is the mean accuracy, 0.6184."""
    accuracy = {0.5: 0.4205, 0.1: 0.5808, 0.01: 0.6853, 0.001: 0.7027, 0.0001: 0.7025}
    points = tuple(Point(s, 1.0, a, estimate(1.0)) for s, a in accuracy.items())
    assert Characteristic("dp", "dlg", "rmse", points).cap.value == pytest.approx(0.61836)


def test_the_interval_is_that_of_independent_distances() -> None:
    points = (Point(0.1, 2.0, 0.5, estimate(1.0, 0.3)), Point(0.2, 0.5, 0.8, estimate(2.0, 0.4)))
    cap = Characteristic("dp", "dlg", "rmse", points).cap
    assert (cap.high - cap.low) / 2 == pytest.approx(math.hypot(0.5 * 0.3, 0.8 * 0.4) / 2)


def test_an_accuracy_over_few_pictures_widens_the_interval_by_its_binomial_spread() -> None:
    sure, counted = (Point(0.1, 2.0, 0.6, estimate(2.0, 0.3), tests=tests) for tests in (None, 100))
    assert sure.half == pytest.approx(0.6 * 0.3)
    assert counted.half == pytest.approx(math.hypot(0.6 * 0.3, 2.0 * 1.959964 * math.sqrt(0.24 / 100)))
    cap = Characteristic("dp", "dlg", "rmse", (sure, counted)).cap
    assert (cap.high - cap.low) / 2 == pytest.approx(math.hypot(sure.half, counted.half) / 2)
    with pytest.raises(InputError, match=r"Point\.tests must\b"):
        Point(0.1, 2.0, 0.6, estimate(1.0), tests=0)


def test_a_point_is_made_of_trials() -> None:
    ratio = torch.tensor([0.1, 5.0, math.inf])
    made = measured(0.01, ratio, 0.6, torch.tensor([[0.2], [0.4], [0.9]]), torch.tensor([[True], [True], [False]]))
    assert (made.ratio, made.diverged, made.region) == (5.0, 1, Region.WHITE)
    assert made.distance.value == pytest.approx(0.5)
    assert made.distance.n == 3
    assert made.product == pytest.approx(0.3)


def test_a_share_has_the_interval_of_a_share() -> None:
    made = measured(0.1, torch.ones(10), 0.6, torch.zeros(10, dtype=torch.bool))
    assert (made.distance.value, made.distance.low) == (0.0, 0.0)
    assert made.distance.high == pytest.approx(wilson(0.0, 10)[1])


def test_what_is_stored_is_plain_data() -> None:
    points = (
        Point(0.1, 2.0, 0.5, estimate(1.0, 0.3), 1, 50),
        Point(0.2, 0.5, 0.8, estimate(2.0, 0.4)),
        Point(0.0, math.inf, 0.9, estimate(0.1)),
    )
    made = Characteristic("SPN", "unaware", "rmse", points, Rule().words)
    stored = json.loads(json.dumps(made.plain(), allow_nan=False))
    assert stored == made.plain()
    for point, row in zip(points, stored["points"], strict=True):
        assert row["ratio"] == (point.ratio if math.isfinite(point.ratio) else None)
        assert (row["parameter"], row["accuracy"]) == (point.parameter, point.accuracy)
        assert (row["diverged"], row["tests"], row["left_out"]) == (point.diverged, point.tests, point.left_out)
        assert row["distance"]["value"] == point.distance.value
        assert (row["product"], row["region"]) == (point.product, point.region.value)
    assert stored["points"][1]["region"] == "green"
    assert (stored["defence"], stored["attack"], stored["distance"]) == ("SPN", "unaware", "rmse")
    assert stored["cap"]["value"] == pytest.approx(made.cap.value)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="no point"):
        Characteristic("dp", "dlg", "rmse", ())
    with pytest.raises(InputError, match=r"Point\.accuracy .*got 70"):
        Point(0.1, 1.0, 70.0, estimate(1.0))
    with pytest.raises(InputError, match=r"Point\.ratio must\b"):
        Point(0.1, math.nan, 0.7, estimate(1.0))
