"""Priors against double loops; zero where they should be; weights that differ from trial to trial."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.optimisers.rules import Interval, into_box
from leakscope.attacks.priors import GUESS, PRIORS, BoxPenalty, LabelRegulariser, Norm, TotalVariation
from leakscope.attacks.view import Clock, Simulated, View
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift
from leakscope.core.types import Knowledge, Round

torch.set_num_threads(1)
SCALING = Scaling((0.4, 0.5), (0.2, 0.5))


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def view(
    guess: Tensor, output: Tensor | None = None, targets: Tensor | None = None, scaling: Scaling | None = None
) -> View:
    nothing = torch.zeros(1, 3, dtype=guess.dtype)
    made = Simulated({}, nothing if output is None else output, nothing if targets is None else targets)
    knowledge = Knowledge(tuple(guess.shape[1:]), 3, guess.shape[0], scaling=scaling or Scaling())
    return View({GUESS: guess}, made, {}, Round({}, {}, {}), knowledge, Clock(torch.tensor(0), random.key(0)))


def slow_variation(x: Tensor, power: int, circular: bool, total: bool) -> float:
    """Return the total variation by visiting every pixel and its right and lower neighbour."""
    n, channels, height, width = x.shape
    found = []
    for down, right in ((0, 1), (1, 0)):
        each = []
        for i in range(n):
            for c in range(channels):
                for row in range(height):
                    for column in range(width):
                        r, k = row + down, column + right
                        if not circular and (r >= height or k >= width):
                            continue
                        each.append(abs(float(x[i, c, r % height, k % width] - x[i, c, row, column])) ** power)
        found.append(sum(each) if total else sum(each) / len(each))
    return sum(found)


@settings(deadline=None, max_examples=25)
@given(
    power=st.sampled_from([1, 2]),
    circular=st.booleans(),
    total=st.booleans(),
    height=st.integers(2, 5),
    width=st.integers(2, 5),
    scale=st.floats(0.1, 2),
    weight=st.floats(0, 2),
)
def test_total_variation_is_the_double_loop(
    power: int, circular: bool, total: bool, height: int, width: int, scale: float, weight: float
) -> None:
    x = draw(height * 10 + width, 2, 3, height, width)
    prior = TotalVariation(weight, power=power, scale=scale, circular=circular, total=total)
    assert prior(view(x)).item() == pytest.approx(weight * scale * slow_variation(x, power, circular, total), rel=1e-9)


def test_the_papers_forms_of_total_variation() -> None:
    x = draw(0, 2, 3, 5, 5)
    dx, dy = x.diff(dim=-1), x.diff(dim=-2)
    assert_close(TotalVariation(0.01, scale=0.5)(view(x)), 0.01 * (dx.abs().mean() + dy.abs().mean()) / 2)  # SME
    round_x, round_y = x - x.roll(1, -1), x - x.roll(1, -2)
    dlfa = TotalVariation(0.001, power=2, circular=True, total=True)
    assert_close(dlfa(view(x)), 0.001 * (round_x.square().sum() + round_y.square().sum()))


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_constant_pictures_have_no_variation_even_if_they_differ_from_each_other(power: int, circular: bool) -> None:
    x = draw(0, 3, 2, 1, 1).expand(3, 2, 4, 5)
    assert TotalVariation(1.0, power=power, circular=circular)(view(x)) == 0


@pytest.mark.parametrize("shape", [(1, 1, 5), (1, 5, 1), (1, 1, 1)])
@pytest.mark.parametrize("total", [False, True])
def test_a_picture_of_one_row_or_one_column_has_a_finite_variation(shape: tuple[int, ...], total: bool) -> None:
    x = draw(0, 2, *shape)
    expected = sum((d.abs().sum() if total else d.abs().mean()) for d in (x.diff(dim=-1), x.diff(dim=-2)) if d.numel())
    assert_close(TotalVariation(1.0, total=total)(view(x)), torch.as_tensor(expected, dtype=torch.float64))


def test_a_table_has_no_neighbours_so_variation_is_refused_or_leaves_examples_apart() -> None:
    """Rows of a table are different people; a prior must never pull them together, nor turn into NaN for one."""
    one, two = draw(0, 1, 6), draw(1, 1, 6)
    try:
        apart = TotalVariation(1.0)(view(one)) + TotalVariation(1.0)(view(two))
    except InputError:
        return
    assert apart.isfinite()
    together = TotalVariation(1.0, total=True)(view(torch.cat([one, two])))
    expected = TotalVariation(1.0, total=True)(view(one)) + TotalVariation(1.0, total=True)(view(two))
    assert_close(together, expected)


@pytest.mark.parametrize("power", [0, 3, -1])
def test_a_power_that_is_not_offered_is_refused(power: int) -> None:
    with pytest.raises(InputError, match="power"):
        TotalVariation(power=power)(view(draw(0, 1, 1, 3, 3)))


def test_the_label_regulariser_is_the_squared_distance_of_logits_and_label() -> None:
    output, targets = draw(0, 2, 3), torch.eye(3, dtype=torch.float64)[[0, 2]]
    slow = sum((float(output[i, c]) - float(targets[i, c])) ** 2 for i in range(2) for c in range(3))
    assert LabelRegulariser(0.7)(view(draw(1, 2, 4), output, targets)).item() == pytest.approx(0.7 * slow)
    assert LabelRegulariser(0.7)(view(draw(1, 2, 4), targets, targets)) == 0


def test_the_norm_is_the_mean_square_of_the_guess() -> None:
    x = draw(0, 2, 1, 3, 3)
    assert Norm(0.5)(view(x)).item() == pytest.approx(0.5 * sum(float(v) ** 2 for v in x.flatten()) / x.numel())


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), weight=st.floats(0, 3))
def test_the_box_penalty_is_the_squared_way_back_to_the_box(seed: int, weight: float) -> None:
    x = 3 * draw(seed, 2, 2, 3, 3)
    low, high = SCALING.box()
    slow = 0.0
    for i in range(2):
        for c in range(2):
            for v in x[i, c].flatten().tolist():
                slow += max(0.0, float(low[c]) - v, v - float(high[c])) ** 2
    made = BoxPenalty(weight)(view(x, scaling=SCALING))
    assert made.item() == pytest.approx(weight * slow / x.numel(), rel=1e-5, abs=1e-6)


def test_the_box_penalty_is_zero_inside_the_box_and_so_is_its_slope() -> None:
    inside = SCALING.scale(torch.rand(2, 2, 3, 3, generator=torch.Generator().manual_seed(0)).clamp(0.01, 0.99), 3)
    assert BoxPenalty(5.0)(view(inside, scaling=SCALING)) == 0
    slope = torch.func.grad(lambda x: BoxPenalty(5.0)(view(x, scaling=SCALING)))(inside)
    assert torch.equal(slope, torch.zeros_like(inside))


def test_outside_the_box_the_penalty_points_the_way_back() -> None:
    x = torch.tensor([[[[2.0]]], [[[-1.0]]]], dtype=torch.float64)
    slope = torch.func.grad(lambda x: BoxPenalty(1.0)(view(x)))(x)
    assert_close(slope, torch.tensor([[[[1.0]]], [[[-1.0]]]], dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(PRIORS))
def test_a_weight_for_each_trial_equals_separate_runs(name: str) -> None:
    x, output = 2 * draw(0, 4, 2, 2, 3, 3), draw(1, 4, 2, 3)
    weight = torch.tensor([0.0, 0.5, 1.0, 7.0], dtype=torch.float64)
    many = lift(lambda p, x, o: p(view(x, o, torch.zeros_like(o), SCALING)))(PRIORS[name](weight), x, output)
    alone = [PRIORS[name](float(w))(view(x[i], output[i], torch.zeros(2, 3), SCALING)) for i, w in enumerate(weight)]
    assert_close(many, torch.stack(alone), rtol=1e-9, atol=1e-12)
    assert many[0] == 0
    assert (many[1:] > 0).all()


@pytest.mark.parametrize("name", sorted(PRIORS))
def test_slopes_pass_finite_differences(name: str) -> None:
    x, output = 2 * draw(0, 2, 2, 3, 3), draw(1, 2, 3)

    def value(x: Tensor, output: Tensor) -> Tensor:
        return PRIORS[name](0.5)(view(x, output, torch.zeros_like(output), SCALING))

    assert torch.autograd.gradcheck(value, (x.requires_grad_(), output.requires_grad_()))


# -- projections


def test_a_guess_pushed_into_the_box_is_the_nearest_valid_one() -> None:
    wild = 4 * torch.rand(2, 3, 2, 3, 3, generator=torch.Generator().manual_seed(0)) - 2
    knowledge = Knowledge((2, 3, 3), 3, 3, scaling=SCALING)
    assert_close(into_box(SCALING.scale(wild, 3), knowledge), SCALING.scale(wild.clamp(0, 1), 3))


def test_an_interval_clamps() -> None:
    held = Interval(-0.5, 2.0)(torch.tensor([-3.0, 0.0, 5.0]), Knowledge((1,), 2, 1))
    assert held.tolist() == [-0.5, 0.0, 2.0]
