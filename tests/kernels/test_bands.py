"""Bands: where a row is cut, and kernels spread into them and gaout_channelsd again. What they compute: test_products."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from leakscope.kernels.bands import block_of, gather_kernel, products, reach_of, spread_kernel
from leakscope.kernels.convolutions import Sizes

K = 3


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_row_of_many_channels_is_cut_into_blocks() -> None:
    sizes = Sizes((14, 14), (12, 12), (5, 5), (2, 2), (2, 2), (1, 1))
    assert sizes.out == (7, 7)
    assert (block_of(sizes), reach_of(sizes)) == (4, 11)
    assert len(products(sizes, 3)) == 5 * 2
    assert block_of(Sizes((9, 9), (64, 64), (3, 3), (1, 1), (1, 1), (1, 1))) == 1  # then nothing is computed in vain


@settings(deadline=None, max_examples=30)
@given(width=st.integers(5, 12), stride=st.integers(1, 3), dilation=st.integers(1, 2), out_channels=st.integers(1, 30))
def test_gathering_is_the_transpose_of_spreading(width: int, stride: int, dilation: int, out_channels: int) -> None:
    sizes = Sizes((5, width), (2, out_channels), (3, 3), (1, stride), (1, 1), (1, dilation))
    w = draw(3, K, out_channels, 2, 3, 3)
    bands = spread_kernel(w, sizes)
    other = draw(4, *bands.shape)
    assert_close((bands * other).sum(), (w * gather_kernel(other, sizes)).sum(), rtol=1e-10, atol=1e-10)
