"""Convolutions client by client: the numbers of the plain ones, whatever the shape, with one thread and with two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.testing import assert_close

from leakscope.kernels.per_client import client_by_client

K = 3


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slopes(own_inputs: bool, own_weights: bool, **how: object) -> tuple[Tensor, ...]:
    """Return the gradients by input, weight and bias of a smooth function of the convolution, for K clients."""
    groups = int(how.get("groups", 1))  # type: ignore[call-overload]
    x, w, b = draw(0, K, 2, 4, 7, 6), draw(1, K, 6, 4 // groups, 3, 2), draw(2, K, 6)

    def value(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, **how).sin().sum()  # type: ignore[arg-type]

    dims = (0 if own_inputs else None, 0 if own_weights else None, 0 if own_weights else None)
    given = [v if d == 0 else v[0] for v, d in zip((x, w, b), dims, strict=True)]
    made: tuple[Tensor, ...] = vmap(grad(value, argnums=(0, 1, 2)), in_dims=dims)(*given)
    return made


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
        {"groups": 2, "padding": 1},
        {"padding": "same"},
    ],
)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_gradients_are_those_of_the_plain_convolution(threads: int, how: dict[str, object], last: bool) -> None:
    expected = slopes(True, True, **how)
    with client_by_client(channels_last=last):
        made = slopes(True, True, **how)
    assert_close(made, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("inputs", "weights"), [(True, False), (False, True)])
def test_what_clients_have_in_common_need_not_be_repeated(inputs: bool, weights: bool) -> None:
    expected = slopes(inputs, weights)
    with client_by_client(channels_last=weights):
        made = slopes(inputs, weights)
    assert_close(made, expected, rtol=1e-11, atol=1e-11)


@settings(deadline=None, max_examples=20)
@given(clients=st.integers(1, 4), batch=st.integers(1, 3), side=st.integers(3, 6), bias=st.booleans())
def test_values_agree_for_any_shape(clients: int, batch: int, side: int, bias: bool) -> None:
    x, w = draw(3, clients, batch, 2, side, side), draw(4, clients, 3, 2, 3, 3)
    b = draw(5, clients, 3) if bias else None
    plain = torch.stack([F.conv2d(x[k], w[k], None if b is None else b[k], padding=1) for k in range(clients)])
    with client_by_client():
        made = vmap(lambda x, w, b: F.conv2d(x, w, b, padding=1), in_dims=(0, 0, 0 if bias else None))(x, w, b)
    assert_close(made, plain, rtol=1e-11, atol=1e-11)


def test_a_gradient_by_the_weights_alone_computes_no_other() -> None:
    x, w = draw(0, K, 2, 4, 5, 5), draw(1, K, 3, 4, 3, 3)
    with client_by_client():
        made = vmap(grad(lambda w, x: F.conv2d(x, w).square().sum()))(w, x)
    expected = vmap(grad(lambda w, x: F.conv2d(x, w).square().sum()))(w, x)
    assert_close(made, expected, rtol=1e-11, atol=1e-11)


def test_the_bits_do_not_depend_on_the_threads() -> None:
    x, w = draw(0, K, 8, 4, 9, 9).float(), draw(1, K, 3, 4, 3, 3).float()
    before, made = torch.get_num_threads(), []
    for number in (1, 2):
        torch.set_num_threads(number)
        with client_by_client():
            made.append(vmap(grad(lambda w, x: F.conv2d(x, w).square().sum()))(w, x))
    torch.set_num_threads(before)
    assert torch.equal(*made)


def test_a_second_derivative_is_refused() -> None:
    x, w = draw(0, 2, 4, 5, 5), draw(1, 3, 4, 3, 3)
    with client_by_client(), pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda x: grad(lambda w: F.conv2d(x, w).square().sum())(w).sum())(x)
