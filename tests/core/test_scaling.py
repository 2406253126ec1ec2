"""From pictures in [0, 1] to network inputs and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift

SCALINGS = st.integers(1, 3).flatmap(
    lambda channels: st.builds(
        lambda m, s: Scaling(tuple(m), tuple(s)),
        st.lists(st.floats(-1, 2), min_size=channels, max_size=channels),
        st.lists(st.floats(0.1, 3), min_size=channels, max_size=channels),
    )
)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=30)
@given(scaling=SCALINGS, seed=st.integers(0, 1000))
def test_scaling_a_picture_is_the_formula_channel_by_channel(scaling: Scaling, seed: int) -> None:
    x = draw(seed, 2, len(scaling.mean), 3, 4)
    expected = np.stack(
        [(x[:, c].numpy() - m) / s for c, (m, s) in enumerate(zip(scaling.mean, scaling.std, strict=True))], axis=1
    )
    assert_close(scaling.scale(x, 3), torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(scaling=SCALINGS, seed=st.integers(0, 1000), leading=st.integers(0, 3))
def test_unscale_undoes_scale_whatever_stands_before_the_channels(scaling: Scaling, seed: int, leading: int) -> None:
    x = draw(seed, *[2] * leading, len(scaling.mean), 3, 4)
    assert_close(scaling.unscale(scaling.scale(x, 3), 3), x, rtol=1e-10, atol=1e-10)
    assert_close(scaling.scale(scaling.unscale(x, 3), 3), x, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=30)
@given(scaling=SCALINGS, seed=st.integers(0, 1000))
def test_clamp_moves_what_is_outside_the_box_to_its_edge_and_nothing_else(scaling: Scaling, seed: int) -> None:
    wild = 4 * draw(seed, 2, len(scaling.mean), 3, 4) - 2
    expected = scaling.scale(wild.clamp(0, 1), 3)
    assert_close(scaling.clamp(scaling.scale(wild, 3), 3), expected, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=20)
@given(scaling=SCALINGS)
def test_the_box_is_what_black_and_white_become(scaling: Scaling) -> None:
    low, high = scaling.box()
    for value, edge in ((0.0, low), (1.0, high)):
        solid = torch.full((len(scaling.mean), 1, 1), value)
        assert_close(scaling.scale(solid, 3).flatten(), edge)


def test_features_of_a_table_each_have_their_own_scale() -> None:
    scaled = Scaling((0.0, 1.0), (1.0, 2.0)).scale(torch.tensor([[0.5, 0.0], [1.0, 1.0]]), 1)
    assert torch.equal(scaled, torch.tensor([[0.5, -0.5], [1.0, 0.0]]))


def test_one_entry_serves_every_channel() -> None:
    x = draw(0, 2, 3, 4, 4)
    assert torch.equal(Scaling((0.3,), (0.2,)).scale(x, 3), Scaling((0.3,) * 3, (0.2,) * 3).scale(x, 3))


def test_lifted_over_trials_each_is_scaled_as_it_is_alone() -> None:
    scaling, x = Scaling((0.1, 0.2), (0.5, 2.0)), draw(0, 4, 3, 2, 5, 5)
    assert torch.equal(lift(lambda x: scaling.scale(x, 3))(x), torch.stack([scaling.scale(one, 3) for one in x]))


def test_the_default_changes_nothing_and_keeps_the_dtype() -> None:
    x = draw(0, 2, 3, 4, 4).float()
    assert torch.equal(Scaling().scale(x, 3), x)
    assert Scaling((0.5,), (0.3,)).scale(x, 3).dtype == torch.float32


@pytest.mark.parametrize(
    ("mean", "std", "word"),
    [
        ((0.5,), (0.0,), "positive"),
        ((0.5,), (-1.0,), "positive"),
        ((0.5, 0.5), (1.0,), "one entry"),
        ((), (), "one entry"),
    ],
)
def test_a_scaling_that_cannot_be_undone_is_refused(mean: tuple[float, ...], std: tuple[float, ...], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Scaling(mean, std)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["mean", "std"])
def test_a_scaling_that_is_not_finite_is_refused(field: str, value: float) -> None:
    with pytest.raises(InputError):
        Scaling(**{field: (value,)})


@pytest.mark.parametrize("method", ["scale", "unscale", "clamp"])
def test_the_wrong_number_of_channels_is_refused(method: str) -> None:
    with pytest.raises(InputError, match=r"2 channels.* 3"):
        getattr(Scaling((0.1, 0.2), (1.0, 1.0)), method)(draw(0, 1, 3, 4, 4), 3)
