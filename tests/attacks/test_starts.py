"""Where the guess begins: patterns with the right period, exact colours, the right distributions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.attacks.starts import STARTS, Insider, Normal, Patterned, Solid, Uniform
from leakscope.core import random
from leakscope.core.errors import InputError
from leakscope.core.scaling import Scaling
from leakscope.core.tree import lift
from leakscope.core.types import Knowledge

torch.set_num_threads(1)
KEY = random.key(4)
SCALING = Scaling((0.4, 0.5, 0.6), (0.2, 0.25, 0.5))
COLOUR = (3, 6, 5)


def attacker_knowledge(shape: tuple[int, ...] = COLOUR, samples: int = 2, scaling: Scaling | None = None) -> Knowledge:
    return Knowledge(shape, 10, samples, scaling=scaling or Scaling())


# -- patterned


@settings(deadline=None, max_examples=60)
@given(
    tiles=st.integers(1, 6),
    channels=st.integers(1, 4),
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    seed=st.integers(0, 1000),
)
def test_a_patterned_picture_has_the_period_of_its_tile_along_both_sides(
    tiles: int, channels: int, height: int, width: int, seed: int
) -> None:
    picture = Patterned(tiles)(random.key(seed), attacker_knowledge((channels, height, width)))
    assert picture.shape == (2, channels, height, width)
    tall, wide = math.ceil(height / tiles), math.ceil(width / tiles)
    for row in range(height):
        for column in range(width):
            assert torch.equal(picture[..., row, column], picture[..., row % tall, column % wide])
    tile = picture[..., :tall, :wide].flatten()
    assert len(set(tile.tolist())) > 0.95 * tile.numel()  # within the tile, and from sample to sample, nothing repeats
    assert tile.min() >= 0
    assert tile.max() < 1


@settings(deadline=None, max_examples=30)
@given(tiles=st.integers(1, 5), features=st.integers(1, 14))
def test_a_patterned_table_repeats_along_its_one_dimension(tiles: int, features: int) -> None:
    row = Patterned(tiles)(KEY, attacker_knowledge((features,), 3))
    period = math.ceil(features / tiles)
    assert row.shape == (3, features)
    for column in range(features):
        assert torch.equal(row[:, column], row[:, column % period])
    assert len(set(row[:, :period].flatten().tolist())) == 3 * period


def test_the_tile_of_cpl_is_a_quarter_of_the_picture_and_patterned4_a_sixteenth() -> None:
    two, four = (STARTS[name]()(KEY, attacker_knowledge((3, 32, 32), 1)) for name in ("patterned", "patterned4"))
    assert two.unique().numel() == 3 * 16 * 16
    assert four.unique().numel() == 3 * 8 * 8
    assert torch.equal(two[..., :16, :16], two[..., 16:, 16:])


def test_the_tile_is_uniform() -> None:
    tile = Patterned(2)(KEY, attacker_knowledge((4, 64, 64), 8))[..., :32, :32].flatten()
    assert abs(tile.mean() - 0.5) < 5 * math.sqrt(1 / 12 / len(tile))
    assert abs(tile.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / len(tile))


@pytest.mark.parametrize("tiles", [0, -1])
def test_a_pattern_needs_a_tile(tiles: int) -> None:
    with pytest.raises(InputError, match=r"Patterned\.tiles"):
        Patterned(tiles)


# -- solid


@pytest.mark.parametrize("name", ["dark", "light", "red", "green", "blue"])
def test_geometric_starts_are_exactly_their_colour(name: str) -> None:
    rgb = {"dark": (0, 0, 0), "light": (1, 1, 1), "red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}[name]
    expected = torch.tensor(rgb, dtype=torch.float32)[:, None, None].expand(2, *COLOUR)
    assert torch.equal(STARTS[name]()(KEY, attacker_knowledge()), expected)


@pytest.mark.parametrize(("name", "level"), [("dark", 0.0), ("light", 1.0)])
def test_dark_and_light_work_for_grey_pictures_and_tables(name: str, level: float) -> None:
    for shape in ((1, 4, 4), (7,)):
        assert torch.equal(STARTS[name]()(KEY, attacker_knowledge(shape)), torch.full((2, *shape), level))


@pytest.mark.parametrize("shape", [(7,), (1, 4, 4), (2, 4, 4)])
def test_a_coloured_start_needs_a_colour_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="colour picture"):
        STARTS["blue"]()(KEY, attacker_knowledge(shape))


def test_a_solid_level_is_used_exactly_and_must_be_in_the_box() -> None:
    assert torch.equal(Solid(0.25)(KEY, attacker_knowledge()), torch.full((2, *COLOUR), 0.25))
    for level in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match=r"Solid\.level"):
            Solid(level)


def test_a_level_given_with_a_channel_is_not_ignored() -> None:
    """Every setting changes the result or is refused."""
    try:
        half = Solid(0.5, channel=1)(KEY, attacker_knowledge())
    except InputError:
        return
    assert torch.equal(half[:, 1], torch.full((2, 6, 5), 0.5))


def test_a_channel_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="channel"):
        Solid(channel=-1)(KEY, attacker_knowledge())


# -- noise


def test_normal_is_standard_normal_in_network_space_whatever_the_scaling() -> None:
    plain, scaled = (Normal()(KEY, attacker_knowledge((3, 40, 40), 4, s)) for s in (None, SCALING))
    assert torch.equal(plain, scaled)
    number = plain.numel()
    assert abs(plain.mean()) < 5 / math.sqrt(number)
    assert abs(plain.std() - 1) < 5 / math.sqrt(2 * number)
    assert abs((plain.abs() < 1).float().mean() - 0.6827) < 5 * math.sqrt(0.25 / number)


def test_uniform_fills_the_valid_box_evenly() -> None:
    drawn = Uniform()(KEY, attacker_knowledge((3, 40, 40), 4, SCALING))
    for channel in range(3):
        low, high = (edge[channel] for edge in SCALING.box())
        share = ((drawn[:, channel] - low) / (high - low)).flatten()
        assert share.min() >= -1e-6
        assert share.max() <= 1 + 1e-6
        assert abs(share.mean() - 0.5) < 5 * math.sqrt(1 / 12 / len(share))
        filled = torch.histc(share, 8, 0, 1)
        assert (filled - len(share) / 8).abs().max() < 5 * math.sqrt(len(share) * 7 / 64)


# -- insider


def draw(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_an_insider_starts_from_exactly_the_given_pictures() -> None:
    pictures = draw(2, *COLOUR)
    assert torch.equal(Insider(pictures)(KEY, attacker_knowledge()), pictures)
    assert_close(SCALING.unscale(Insider(pictures)(KEY, attacker_knowledge(scaling=SCALING)), 3), pictures)


def test_an_insiders_pictures_are_one_set_per_trial() -> None:
    pictures, keys = draw(3, 2, *COLOUR), random.key([1, 2, 3])
    many = lift(lambda s, k: s(k, attacker_knowledge(scaling=SCALING)))(Insider(pictures), keys)
    assert torch.equal(many, SCALING.scale(pictures, 3))


def test_insider_pictures_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"Insider\.pictures"):
        Insider(draw(1, *COLOUR))(KEY, attacker_knowledge())


# -- every start in picture space


@pytest.mark.parametrize("name", sorted(set(STARTS) - {"normal"}))
def test_the_scaling_of_the_network_is_applied(name: str) -> None:
    start = STARTS[name]()
    assert_close(
        start(KEY, attacker_knowledge(scaling=SCALING)),
        SCALING.scale(start(KEY, attacker_knowledge()), 3),
        rtol=1e-6,
        atol=1e-6,
    )
