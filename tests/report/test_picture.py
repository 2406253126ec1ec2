"""A picture that goes into a sprite is the one that comes out of it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from leakscope.report.films import BUDGET, LADDER, Detail, Reel, choose_detail, film_reel, still_reel
from leakscope.report.pictures import Pixels, coarsen, data_uri, drawable, pixels, png, shrink, sprite

STRENGTHS = (0.0, 0.25, 0.5, 1.0, 1.5)
SHAPES = [(1, 28, 28), (3, 32, 32), (12, 9), (30,), (1,), (3, 1, 1)]


def decode(data: bytes) -> Pixels:
    image = np.asarray(Image.open(io.BytesIO(data)))
    return image[..., None] if image.ndim == 2 else image


def taken(column: Pixels, i: int, rows: int) -> Pixels:
    """Return picture i of a sprite, as the page's style sheet finds it."""
    top = i * (rows + 2) + 1
    return column[top : top + rows]


def test_pixels_are_clamped_and_finite() -> None:
    values = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5, float("nan"), float("inf"), float("-inf")])
    assert pixels(values)[0, :, 0].tolist() == [0, 0, 128, 255, 255, 0, 255, 0]


def test_pixels_put_the_channels_last() -> None:
    picture = torch.zeros(3, 2, 4)
    picture[2, 1, 3] = 1
    assert pixels(picture).shape == (2, 4, 3)
    assert pixels(picture)[1, 3].tolist() == [0, 0, 255]


def test_pixels_take_what_a_training_loop_holds() -> None:
    picture = torch.rand(1, 8, 8, dtype=torch.float64, requires_grad=True)
    assert pixels(picture * 1).shape == (8, 8, 1)
    assert pixels(picture.to(torch.bfloat16)).dtype == np.uint8


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_truth_and_result_leave_the_sprite_unchanged(shape: tuple[int, ...], strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    truth, frames = torch.rand(shape, generator=generator), torch.randn(5, *shape, generator=generator)
    column = decode(film_reel(truth, frames).encode(Detail(coarse=strength)))
    rows = pixels(truth).shape[0]
    assert column.shape[0] == 6 * (rows + 2)
    assert np.array_equal(taken(column, 0, rows), pixels(truth))
    assert np.array_equal(taken(column, 5, rows), pixels(frames[4]))
    for i in range(4):
        assert np.array_equal(taken(column, 1 + i, rows), coarsen(pixels(frames[i]), strength))
    spare = column.reshape(6, rows + 2, *column.shape[1:])
    assert np.array_equal(spare[:, 0], spare[:, 1])
    assert np.array_equal(spare[:, -1], spare[:, -2])


@pytest.mark.parametrize("strength", STRENGTHS)
def test_stills_are_exact(strength: float) -> None:
    noise = torch.randn(3, 1, 16, 16)
    column = decode(still_reel(list(noise)).encode(Detail(coarse=strength)))
    assert np.array_equal(column, decode(sprite([pixels(picture) for picture in noise])))


@pytest.mark.parametrize("frames", [2, 3, 9])
def test_a_film_is_thinned_with_both_ends_kept(frames: int) -> None:
    reel = film_reel(torch.zeros(1, 8, 8), torch.linspace(0, 1, 9)[:, None, None, None].expand(9, 1, 8, 8))
    kept = reel.drawn(Detail(frames=frames))
    assert (len(kept), kept[0], kept[-1]) == (frames, 0, 8)
    column = decode(reel.encode(Detail(frames=frames)))
    shown = [int(taken(column, 1 + i, 8)[0, 0, 0]) for i in range(frames)]
    assert shown == [round(255 * i / 8) for i in kept]


def test_large_pictures_are_shrunk_and_small_ones_left_alone() -> None:
    large = pixels(torch.rand(3, 100, 60))
    assert shrink(large, 50).shape == (50, 30, 3)
    assert abs(float(shrink(large, 50).mean()) - float(large.mean())) < 1
    assert shrink(large, 100) is large
    row = pixels(torch.rand(300))
    assert shrink(row, 32) is row
    assert "--rows:50;--columns:30;--count:1;" in still_reel([torch.rand(3, 100, 60)]).rule("k", Detail(side=50))


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [((), (1,)), ((7,), (7,)), ((4, 5), (4, 5)), ((3, 4, 5), (3, 4, 5)), ((2, 4, 5), (8, 5)), ((2, 3, 4, 5), (24, 5))],
)
def test_any_shape_can_be_drawn(shape: tuple[int, ...], drawn: tuple[int, ...]) -> None:
    assert tuple(drawable(torch.zeros(shape)).shape) == drawn
    assert tuple(drawable(torch.zeros(6, *shape), stack=True).shape) == (6, *drawn)


@given(st.integers(0, 2**32 - 1), st.sampled_from(STRENGTHS))
def test_coarsening_moves_a_value_by_half_a_step_of_its_roughness_at_most(seed: int, strength: float) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (9, 9, 1)).astype(np.uint8)
    rough = float(np.median(np.abs(np.diff(image.astype(int), axis=1))))
    moved = np.abs(coarsen(image, strength).astype(int) - image).max()
    assert moved <= max(strength * rough, 1) * 0.75 + 1
    assert coarsen(np.zeros_like(image), strength).max() == 0


def test_a_calm_picture_keeps_its_values() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)
    assert np.array_equal(coarsen(ramp, 1.0), ramp)


def noisy_reels(count: int) -> list[Reel]:
    generator = torch.Generator().manual_seed(0)
    return [
        film_reel(torch.rand(3, 32, 32, generator=generator), torch.rand(9, 3, 32, 32, generator=generator))
        for _ in range(count)
    ]


@pytest.mark.slow
def test_the_budget_decides_the_detail() -> None:
    reels = noisy_reels(24)
    sizes = [sum(len(reel.encode(detail)) for reel in reels) for detail in LADDER]
    assert choose_detail([reels], budget=2 * sizes[0]) == LADDER[0]
    assert choose_detail([reels], budget=1) == LADDER[-1]
    assert min(sizes) < sizes[0] / 2
    for budget in sizes[1:-1]:
        place = LADDER.index(choose_detail([reels], budget=round(1.05 * budget)))
        assert sizes[place] <= 1.1 * budget
    assert choose_detail([[], []], budget=BUDGET) == LADDER[0]


def test_kinds_of_reels_are_judged_apart() -> None:
    large, small = noisy_reels(3), [still_reel([torch.zeros(1, 8, 8)])] * 50
    alone = sum(len(reel.encode(LADDER[0])) for reel in large)
    beside = sum(len(reel.encode(LADDER[0])) for reel in small)
    assert choose_detail([large, small], budget=alone + beside) == LADDER[0]
    assert choose_detail([large, small], budget=alone + beside - 1) != LADDER[0]


def test_data_uri_holds_the_bytes() -> None:
    import base64

    data = png(np.zeros((2, 2, 3), dtype=np.uint8))
    kind, text = data_uri(data).split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(text) == data
