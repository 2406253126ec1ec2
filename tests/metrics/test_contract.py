"""What every metric of the table promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.testing import assert_close

from leakscope.metrics import METRICS, Direction, Metric

SHAPES = [
    (4, 1, 28, 28),
    (5, 3, 32, 32),
    (2, 3, 13, 20),
    (1, 1, 7, 9),
    (2, 1, 8, 9),
    (2, 3, 12, 10),
    (2, 3, 4, 5, 12, 12),
]
PLAIN = {name: metric for name, metric in METRICS.items() if isinstance(metric, Metric)}
every_metric = pytest.mark.parametrize("metric", PLAIN.values(), ids=PLAIN)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def pictures(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_mse(x: np.ndarray, y: np.ndarray) -> float:
    return sum((float(a) - float(b)) ** 2 for a, b in zip(x.flat, y.flat, strict=True)) / x.size


def slow_psnr(x: np.ndarray, y: np.ndarray) -> float:
    return 10 * math.log10(1 / slow_mse(x, y))


def slow_relative(x: np.ndarray, y: np.ndarray) -> float:
    return math.sqrt(slow_mse(x, y) / slow_mse(x, np.zeros_like(x)))


def slow_windows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Every window of two one-channel images by hand: its luminance factor, and its contrast and structure factor."""
    height, width = x.shape
    side = max(s for s in (1, 3, 5, 7, 9, 11) if s <= min(height, width))
    offset = np.arange(side) - side // 2
    weight = np.exp(-(offset[:, None] ** 2 + offset[None] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    found = []
    for top in range(height - side + 1):
        for left in range(width - side + 1):
            a, b = x[top : top + side, left : left + side], y[top : top + side, left : left + side]
            ma, mb = (weight * a).sum(), (weight * b).sum()
            va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
            cov = (weight * (a - ma) * (b - mb)).sum()
            found.append(((2 * ma * mb + 1e-4) / (ma**2 + mb**2 + 1e-4), (2 * cov + 9e-4) / (va + vb + 9e-4)))
    return np.array(found)


def slow_ssim(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean([slow_windows(a, b).prod(1).mean() for a, b in zip(x, y, strict=True)]))


def slow_ms_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Scale by scale, channel by channel."""
    weights = [0.0448, 0.2856, 0.3001, 0.2363, 0.1333]
    scales = next(k for k in (5, 4, 3, 2, 1) if k == 1 or min(x.shape[1:]) >= 11 * 2 ** (k - 1))
    values = []
    for a, b in zip(x, y, strict=True):
        value = 1.0
        for scale in range(scales):
            windows = slow_windows(a, b)
            factor = windows.prod(1).mean() if scale == scales - 1 else windows[:, 1].mean()
            value *= max(factor, 0.0) ** (weights[scale] * 1.0001 / sum(weights[:scales]))
            h, w = a.shape[0] // 2 * 2, a.shape[1] // 2 * 2
            a, b = ((z[:h:2, :w:2] + z[1:h:2, :w:2] + z[:h:2, 1:w:2] + z[1:h:2, 1:w:2]) / 4 for z in (a, b))
        values.append(value)
    return float(np.mean(values))


def slow_band(image: np.ndarray, level: int, k: int) -> np.ndarray:
    """One band of the complex steerable pyramid: dense Fourier matrices, and the response frequency by frequency."""
    signed = [
        [2 * math.pi * (n / size if n < (size + 1) // 2 else n / size - 1) for n in range(size)] for size in image.shape
    ]
    down, across = (np.exp(-1j * np.outer(turns, np.arange(len(turns)))) for turns in signed)
    spectrum = down @ image @ across.T
    for (i, v), (j, u) in itertools.product(enumerate(signed[0]), enumerate(signed[1])):
        octave = math.log2(math.hypot(u, v) * 2**level / math.pi) if u or v else -9.0
        aligned = math.cos(math.atan2(v, u) - math.pi * k / 8)
        length = 2**7 * math.factorial(7) / math.sqrt(8 * math.factorial(14))
        inside = abs(octave) < 1 and aligned > 0
        spectrum[i, j] *= math.cos(math.pi / 2 * octave) * length * aligned**7 if inside else 0.0
    band: np.ndarray = down.conj().T @ spectrum @ across.conj() / image.size
    return band


def slow_cw_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Band by band and window by window."""
    shortest = min(x.shape[1:])
    side = max(s for s in (1, 3, 5, 7) if s <= shortest)
    levels = next(k for k in (4, 3, 2, 1) if k == 1 or 2 ** (k + 1) <= shortest)
    values = []
    for level, k, (a, b) in itertools.product(range(1, levels + 1), range(8), list(zip(x, y, strict=True))):
        windows = [sliding_window_view(slow_band(z, level, k), (side, side)) for z in (a, b)]
        shared = abs((windows[0] * windows[1].conj()).mean((-2, -1)))
        energy = sum((abs(w) ** 2).mean((-2, -1)) for w in windows)
        values.append(((2 * shared + 1e-4) / (energy + 1e-4)).mean())
    return float(np.mean(values))


SLOW: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mse": slow_mse,
    "psnr": slow_psnr,
    "ssim": slow_ssim,
    "rmse_relative": slow_relative,
    "ms_ssim": slow_ms_ssim,
    "cw_ssim": slow_cw_ssim,
}


@every_metric
@every_shape
def test_agrees_with_a_slow_obvious_version(metric: Metric, shape: tuple[int, ...]) -> None:
    x, y = pictures(0, shape), pictures(1, shape)
    items = zip(x.reshape(-1, *shape[-3:]).numpy()[:2], y.reshape(-1, *shape[-3:]).numpy()[:2], strict=True)
    slow = torch.tensor([SLOW[metric.name](a, b) for a, b in items], dtype=torch.float64)
    assert_close(metric.function(x, y).flatten()[:2], slow, rtol=1e-9, atol=1e-12)


@every_metric
@every_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_value_per_item_in_the_dtype_of_the_input(
    metric: Metric, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    found = metric.function(pictures(0, shape, dtype), pictures(1, shape, dtype))
    assert found.shape == shape[:-3]
    assert found.dtype == dtype
    assert bool(found.isfinite().all())


@every_metric
def test_float32_is_close_to_float64(metric: Metric) -> None:
    x, y = pictures(0, SHAPES[1], torch.float32), pictures(1, SHAPES[1], torch.float32)
    exact = metric.function(x.double(), y.double())
    assert_close(metric.function(x, y).double(), exact, rtol=1e-5, atol=1e-6)


@every_metric
def test_repeats_and_leaves_its_input_alone(metric: Metric) -> None:
    x, y = pictures(0, SHAPES[0]), pictures(1, SHAPES[0])
    before = x.clone(), y.clone()
    assert torch.equal(metric.function(x, y), metric.function(x, y))
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@every_metric
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), noise=st.floats(1e-3, 1.0))
def test_identity_is_best_and_nothing_beats_it(metric: Metric, seed: int, noise: float) -> None:
    x = pictures(seed, (3, 1, 12, 12))
    y = x + noise * (pictures(seed + 1, (3, 1, 12, 12)) - 0.5)
    same, other = metric.function(x, x.clone()), metric.function(x, y)
    assert_close(same, torch.full_like(same, metric.best))
    better = same < other if metric.direction is Direction.LOWER else same > other
    assert bool(better.all())


@every_metric
def test_more_noise_is_worse(metric: Metric) -> None:
    x = 0.25 + 0.5 * pictures(0, (6, 3, 16, 16))
    noise = pictures(1, x.shape) - 0.5
    levels = torch.stack([metric.function(x, x + level * noise) for level in (0.05, 0.1, 0.2, 0.4)])
    steps = levels.diff(dim=0)
    assert bool((steps > 0).all() if metric.direction is Direction.LOWER else (steps < 0).all())


@every_metric
def test_symmetric_where_it_says_so(metric: Metric) -> None:
    x, y = pictures(0, SHAPES[1]), 0.5 * pictures(1, SHAPES[1])
    there, back = metric.function(x, y), metric.function(y, x)
    assert bool(torch.isclose(there, back, rtol=1e-9).all()) is metric.symmetric


@every_metric
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_reordering_both_stacks_reorders_the_values(metric: Metric, seed: int) -> None:
    x, y = pictures(seed, (6, 1, 11, 12)), pictures(seed + 1, (6, 1, 11, 12))
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    assert_close(metric.function(x[order], y[order]), metric.function(x, y)[order], rtol=1e-12, atol=0)


@every_metric
def test_channels_may_trade_places(metric: Metric) -> None:
    x, y = pictures(0, SHAPES[1]), pictures(1, SHAPES[1])
    assert_close(metric.function(x.flip(1), y.flip(1)), metric.function(x, y))


@every_metric
def test_vmap_equals_leading_dimensions_equals_a_loop(metric: Metric) -> None:
    x, y = pictures(0, (3, 2, 3, 12, 14)), pictures(1, (3, 2, 3, 12, 14))
    loop = torch.stack([metric.function(a, b) for a, b in zip(x, y, strict=True)])
    assert_close(torch.func.vmap(metric.function)(x, y), loop, rtol=1e-12, atol=0)
    assert_close(metric.function(x, y), loop, rtol=1e-12, atol=0)


@every_metric
def test_a_bad_neighbour_does_no_harm(metric: Metric) -> None:
    x, y = pictures(0, (3, 1, 12, 12)), pictures(1, (3, 1, 12, 12))
    poisoned = y.clone()
    poisoned[1] = torch.nan
    found = metric.function(x, poisoned)
    assert bool(found[1].isnan())
    assert_close(found[[0, 2]], metric.function(x, y)[[0, 2]], rtol=1e-12, atol=0)


@every_metric
def test_tables_are_rows(metric: Metric) -> None:
    x, y = pictures(0, (5, 14)), pictures(1, (5, 14))
    if not metric.tables:
        with pytest.raises(ValueError, match="stack"):
            metric.function(x, y)
        return
    slow = [SLOW[metric.name](a, b) for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    assert_close(metric.function(x, y), torch.tensor(slow, dtype=torch.float64))


@every_metric
@pytest.mark.parametrize(
    ("x", "y", "rule"),
    [
        (torch.zeros(2, 1, 8, 8), torch.zeros(1, 1, 8, 8), "one shape"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, 1, 8, 8), "floating point"),
        (torch.zeros(8), torch.zeros(8), "stack"),
        (torch.zeros(2, 8, 8), torch.zeros(2, 8, 8), "stack"),
        (torch.zeros(2, 1, 0, 8), torch.zeros(2, 1, 0, 8), "stack"),
    ],
    ids=["shapes", "bytes", "one item", "ambiguous", "empty"],
)
def test_what_cannot_be_compared_is_refused(metric: Metric, x: Tensor, y: Tensor, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        metric.function(x, y)


def test_the_table_describes_itself() -> None:
    assert list(METRICS) == [metric.name for metric in METRICS.values()]
    assert set(PLAIN) == set(SLOW)
    for metric in METRICS.values():
        assert metric.summary.startswith("Return the")
        assert "\n" not in metric.summary
