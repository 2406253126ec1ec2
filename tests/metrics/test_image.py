"""Picture metrics against scikit-image, and at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor
from torch.testing import assert_close

from leakscope.metrics import cw_ssim, ms_ssim, mse, psnr, rmse_relative, ssim
from leakscope.metrics.wavelet import band_filters


def scenes(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Smooth pictures with some noise: flat parts, slopes and edges."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(*shape[:-2], 3, 3, generator=draw, dtype=torch.float64)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[-2:], mode="bilinear")
    edges = torch.rand(*shape[:-2], 1, 1, generator=draw, dtype=torch.float64) > 0.5
    noise = 0.05 * torch.randn(shape, generator=draw, dtype=torch.float64)
    return (torch.where(edges, (smooth > 0.5).double(), smooth) + noise).clamp(0, 1)


@pytest.mark.parametrize("shape", [(8, 1, 28, 28), (8, 3, 32, 32), (3, 3, 11, 11), (3, 2, 40, 17)], ids=str)
@pytest.mark.parametrize("kind", ["near", "far", "flat", "negative"])
def test_ssim_agrees_with_scikit_image(shape: tuple[int, ...], kind: str) -> None:
    truth = scenes(0, shape)
    guess = {
        "near": (truth + 0.1 * (scenes(1, shape) - 0.5)).clamp(0, 1),
        "far": scenes(2, shape),
        "flat": torch.full_like(truth, 0.5),
        "negative": 1 - truth,
    }[kind]
    reference = [
        structural_similarity(  # type: ignore[no-untyped-call]
            a.numpy(),
            b.numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
        )
        for a, b in zip(truth, guess, strict=True)
    ]
    assert_close(ssim(truth, guess), torch.tensor(reference, dtype=torch.float64), atol=1e-9, rtol=0)
    assert_close(ssim(truth.float(), guess.float()).double(), ssim(truth, guess), atol=1e-6, rtol=0)


def test_ssim_of_flat_pictures_in_float32_keeps_its_digits() -> None:
    """A variance taken in float32 would be off by more than C2 forgives."""
    truth = torch.full((1, 1, 16, 16), 0.9)
    truth[..., ::2] += 1e-3
    guess = torch.full((1, 1, 16, 16), 0.9)
    assert_close(ssim(truth, guess).double(), ssim(truth.double(), guess.double()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (3, 3), (10, 10), (8, 20)])
def test_ssim_of_small_pictures(size: tuple[int, int]) -> None:
    truth = scenes(0, (2, 3, *size))
    assert_close(ssim(truth, truth), torch.ones(2, dtype=torch.float64))
    assert bool((ssim(truth, 1 - truth) < 0.999).all())


def test_ssim_of_one_pixel_is_its_luminance_term() -> None:
    x, y = 0.3, 0.8
    found = ssim(torch.full((1, 1, 1, 1), x).double(), torch.full((1, 1, 1, 1), y).double())
    assert float(found) == pytest.approx((2 * x * y + 1e-4) / (x * x + y * y + 1e-4), rel=1e-6)


def test_psnr_agrees_with_scikit_image() -> None:
    truth, guess = scenes(0, (4, 3, 16, 16)), scenes(1, (4, 3, 16, 16))
    reference = [
        peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=1.0)  # type: ignore[no-untyped-call]
        for a, b in zip(truth, guess, strict=True)
    ]
    assert_close(psnr(truth, guess), torch.tensor(reference, dtype=torch.float64))


def test_psnr_of_identical_pictures_is_infinite_and_of_opposite_ones_zero() -> None:
    black = torch.zeros(2, 1, 4, 4)
    assert psnr(black, black).tolist() == [math.inf, math.inf]
    assert psnr(black, black + 1).tolist() == [0.0, 0.0]
    assert psnr(black, black + 0.1)[0] == pytest.approx(20.0)


def test_nothing_is_clamped() -> None:
    truth = torch.zeros(1, 1, 4, 4)
    assert float(mse(truth, truth + 3)) == 9.0


def test_relative_error_of_black_pictures() -> None:
    black = torch.zeros(1, 1, 4, 4)
    assert float(rmse_relative(black, black)) == 0.0
    assert float(rmse_relative(black, black + 0.1)) == math.inf
    assert float(rmse_relative(black + 0.5, black)) == 1.0


@pytest.mark.parametrize(("rank", "shape"), [(1, (4, 3)), (2, (4,)), (None, None)])
def test_rank_says_what_one_item_is(rank: int | None, shape: tuple[int, ...] | None) -> None:
    x, y = torch.rand(4, 3, 5, dtype=torch.float64), torch.zeros(4, 3, 5, dtype=torch.float64)
    if shape is None:
        with pytest.raises(ValueError, match="say `rank`"):
            mse(x, y, rank=rank)
        return
    for metric in (mse, psnr, rmse_relative):
        assert metric(x, y, rank=rank).shape == shape
    assert_close(mse(x, y, rank=rank), x.square().flatten(3 - (rank or 0)).mean(-1))


def test_gradients_flow() -> None:
    truth, guess = scenes(0, (1, 1, 12, 12)), scenes(1, (1, 1, 12, 12)).requires_grad_()
    for metric in (mse, psnr, ssim, rmse_relative):
        (slope,) = torch.autograd.grad(metric(truth, guess).sum(), guess)
        assert bool(slope.isfinite().all())
        assert float(slope.abs().max()) > 0


def waves(side: int) -> tuple[Tensor, Tensor]:
    """Three channels of crossing waves, and the same with stripes added."""
    r = torch.arange(side, dtype=torch.float64)
    grey = 0.5 + 0.25 * torch.sin(r[:, None] / 7) * torch.cos(r / 5) + 0.2 * torch.sin((r[:, None] + 2 * r) / 3)
    truth = torch.stack([grey.roll(3 * channel, 0) for channel in range(3)])[None]
    return truth, (truth + 0.2 * torch.sin(r / 2) ** 2).clamp(0, 1)


@pytest.mark.parametrize(("side", "reference"), [(176, 0.9522881), (192, 0.9525228), (256, 0.9551062)])
def test_ms_ssim_of_five_scales_has_the_values_of_pytorch_msssim(side: int, reference: float) -> None:
    """`pytorch_msssim.ms_ssim(x, y, data_range=1)` of version 1.0.0, whose window is float32."""
    assert float(ms_ssim(*waves(side))) == pytest.approx(reference, abs=5e-7)


def test_cw_ssim_forgives_a_shift_that_ssim_does_not() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.nn.functional.avg_pool2d(torch.rand(4, 1, 68, 68, generator=draw), 5, 1)
    shifted, noisy = truth.roll(1, -1), truth + 0.1 * (torch.rand(truth.shape, generator=draw) - 0.5)
    assert bool((ssim(truth, shifted) < ssim(truth, noisy)).all())
    assert bool((cw_ssim(truth, shifted) > cw_ssim(truth, noisy)).all())


def test_cw_ssim_does_not_see_brightness_and_its_bands_cover_the_middle_frequencies() -> None:
    flat = torch.full((1, 1, 32, 32), 0.2, dtype=torch.float64)
    assert float(cw_ssim(flat, flat + 0.5)) == pytest.approx(1.0)
    filters = band_filters(32, 32, flat.device)
    squares = torch.stack([band**2 for band in filters]).sum(0)
    both = squares + squares.flip((0, 1)).roll((1, 1), (0, 1))  # a wave and its mirror image
    assert len(filters) == 4 * 8
    assert float(both[0, 0]) < 1e-20
    assert_close(both[2:6, 2:6], torch.ones(4, 4, dtype=torch.float64))
