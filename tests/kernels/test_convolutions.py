"""Convolutions as products, with bands and over windows: the numbers of the plain ones, whatever the shape, and first derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.testing import assert_close

from leakscope.kernels.bands import Banded
from leakscope.kernels.windows import Windowed

K = 3
Way = type[Banded] | type[Windowed]
each_way = pytest.mark.parametrize("way", [Banded, Windowed])


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slopes(x: Tensor, w: Tensor, b: Tensor | None, dims: tuple[int | None, ...], **how: object) -> tuple[Tensor, ...]:
    """Return the gradients by input, weight and bias of a smooth function of the convolution, for all clients."""

    def value(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.conv2d(x, w, b, **how).sin().sum()  # type: ignore[arg-type]

    names = (0, 1) if b is None else (0, 1, 2)
    made: tuple[Tensor, ...] = vmap(grad(value, argnums=names), in_dims=dims)(x, w, b)
    return made


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@each_way
@settings(deadline=None, max_examples=30)
@given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 12)),
    channels=st.tuples(st.sampled_from([1, 2, 7]), st.sampled_from([1, 5, 20, 50])),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
)
def test_gradients_are_those_of_the_plain_convolution(
    way: Way,
    size: tuple[int, int],
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
) -> None:
    in_channels, out_channels = channels
    x, w = draw(0, K, 2, in_channels, *size), draw(1, K, out_channels, in_channels, *kernel)
    b, dims = (draw(2, K, out_channels), (0, 0, 0)) if bias else (None, (0, 0, None))
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    expected = slopes(x, w, b, dims, **how)
    with way():
        made = slopes(x, w, b, dims, **how)
    assert_close(made, expected, rtol=1e-9, atol=1e-9)


@each_way
@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (1, 0, 0)])
def test_what_clients_have_in_common_need_not_be_repeated(way: Way, dims: tuple[int | None, ...]) -> None:
    values = [draw(0, K, K, 4, 7, 6), draw(1, K, 6, 4, 3, 2), draw(2, K, 6)]
    x, w, b = (v if d is not None else v[0] for v, d in zip(values, dims, strict=True))
    expected = slopes(x, w, b, dims, padding=1)
    with way():
        made = slopes(x, w, b, dims, padding=1)
    assert_close(made, expected, rtol=1e-11, atol=1e-11)


@each_way
@pytest.mark.parametrize("how", [{"groups": 2}, {"padding": "same"}])
def test_what_products_cannot_do_stays_as_it_was(way: Way, how: dict[str, object]) -> None:
    x, w, b = draw(0, K, 2, 4, 7, 6), draw(1, K, 6, 4 // int(how.get("groups", 1)), 3, 2), draw(2, K, 6)  # type: ignore[call-overload]
    expected = slopes(x, w, b, (0, 0, 0), **how)
    with way():
        made = slopes(x, w, b, (0, 0, 0), **how)
    assert_close(made, expected, rtol=1e-11, atol=1e-11)


@each_way
def test_one_client_alone_needs_no_vmap(way: Way) -> None:
    x, w = draw(0, 2, 4, 7, 6), draw(1, 6, 4, 3, 2).requires_grad_()
    with way():
        made = F.conv2d(x, w, stride=2)
        slope = torch.autograd.grad(made.sin().sum(), w)[0]
    assert_close(made, F.conv2d(x, w, stride=2), rtol=1e-11, atol=1e-11)
    assert_close(slope, torch.autograd.grad(F.conv2d(x, w, stride=2).sin().sum(), w)[0], rtol=1e-11, atol=1e-11)


@each_way
def test_mistakes_are_told_as_ever(way: Way) -> None:
    with way(), pytest.raises(RuntimeError, match="channels"):
        F.conv2d(draw(0, 2, 4, 7, 6), draw(1, 6, 3, 3, 2))
    with way(), pytest.raises(RuntimeError, match="Kernel size"):
        F.conv2d(draw(0, 2, 4, 2, 2), draw(1, 6, 4, 3, 3))


@each_way
def test_a_second_derivative_is_refused(way: Way) -> None:
    x, w = draw(0, 2, 4, 5, 5), draw(1, 3, 4, 3, 3)
    with way(), pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda x: grad(lambda w: F.conv2d(x, w).square().sum())(w).sum())(x)
    outside = x.clone().requires_grad_()
    with way(), pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda w: F.conv2d(outside, w).square().sum())(w).square().sum().backward()  # type: ignore[no-untyped-call]
    inside = w.clone().requires_grad_()
    with way(), pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(F.conv2d(x, inside).square().sum(), inside, create_graph=True)
