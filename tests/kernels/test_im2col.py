"""Convolutions as products: the same numbers and derivatives as torch's own, caught wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.kernels import im2col
from leakscope.kernels.im2col import Im2col, back_by_copies, back_by_fold, by_copies, by_view
from leakscope.models import build

torch.set_num_threads(1)
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conv2d(*args: Any, **settings: Any) -> Tensor:
    with Im2col():
        return F.conv2d(*args, **settings)


class Convolutions(TorchDispatchMode):
    """Counts the convolutions that reach torch's own kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.number += "convolution" in str(func)
        return func(*args, **(kwargs or {}))


def native(f: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """Return what `f` gives inside the mode, and how many native convolutions it took."""
    with Convolutions() as count, Im2col():
        made = f()
    return made, count.number


WAYS = {"CPU's": (by_copies, back_by_copies), "CUDA's": (by_view, back_by_fold)}


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make columns here as either device does."""
    monkeypatch.setattr(im2col, "by_copies", WAYS[request.param][0])
    monkeypatch.setattr(im2col, "back_by_copies", WAYS[request.param][1])


@pytest.mark.usefixtures("way")
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=PAIR,
    stride=PAIR,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    bias=st.booleans(),
)
def test_values_and_both_derivatives_are_torchs(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    size: tuple[int, int],
    channels: tuple[int, int],
    bias: bool,
) -> None:
    assume(all(s + 2 * p > d * (k - 1) for s, p, d, k in zip(size, padding, dilation, kernel, strict=True)))
    x, w = draw(0, 2, channels[0], *size), draw(1, channels[1], channels[0], *kernel)
    b = draw(2, channels[1]) if bias else None
    found = []
    for convolve in (conv2d, F.conv2d):
        leaves = [t.clone().requires_grad_() for t in (x, w, b) if t is not None]
        out = convolve(leaves[0], leaves[1], leaves[2] if bias else None, stride, padding, dilation)
        first = torch.autograd.grad((out.sin() * draw(3, *out.shape)).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g * draw(4, *g.shape)).sum() for g in first), leaves)
        found.append((out, first, second))
    assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "given", [{"stride": 2}, {"padding": 1}, {"dilation": 2}, {"stride": [2, 1]}, {"padding": (2,)}]
)
def test_settings_may_be_numbers_or_lists(given: dict[str, object]) -> None:
    x, w = draw(0, 1, 2, 6, 7), draw(1, 3, 2, 3, 3)
    assert_close(conv2d(x, w, **given), F.conv2d(x, w, **given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, (1, 3), (3, 2)])
@pytest.mark.parametrize("padding", [0, (1, 0)])
def test_pointwise_convolutions_keep_their_strides_apart(stride: int | tuple[int, int], padding: object) -> None:
    x, w = draw(0, 2, 3, 7, 6), draw(1, 4, 3, 1, 1)
    assert_close(conv2d(x, w, None, stride, padding), F.conv2d(x, w, None, stride, padding), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("way")
def test_finite_differences_agree_twice() -> None:
    leaves = [t.requires_grad_() for t in (draw(0, 1, 1, 3, 3), draw(1, 1, 1, 2, 2), draw(2, 1))]
    assert torch.autograd.gradcheck(lambda *a: conv2d(*a, 1, 1), leaves)
    assert torch.autograd.gradgradcheck(lambda *a: conv2d(*a, 1, 1), leaves)


# -- the mode

X, W, B = draw(0, 2, 4, 6, 6), draw(1, 3, 4, 3, 3), draw(2, 3)
LAYER = nn.Conv2d(4, 3, 3, stride=2, padding=1).double()
CIRCLE = nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular").double()
CALLS: dict[str, Callable[[], Tensor]] = {
    "nn.Conv2d": lambda: LAYER(X),
    "nn.Conv2d in a circle": lambda: CIRCLE(X),
    "F.conv2d": lambda: F.conv2d(X, W, B, 2, 1),
    "torch.conv2d": lambda: torch.conv2d(X, W, B, 1, 0, 2),
    "F.conv2d by keyword": lambda: F.conv2d(X, weight=W, bias=B, padding=1),
    "F.conv2d all by keyword": lambda: F.conv2d(input=X, weight=W, bias=B, padding=1),
    "torch.conv2d all by keyword": lambda: torch.conv2d(input=X, weight=W),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_mode_catches_every_way_to_convolve(name: str) -> None:
    inside, number = native(CALLS[name])
    assert number == 0
    assert_close(inside, CALLS[name](), rtol=1e-10, atol=1e-10)


NATIVE: dict[str, Callable[[], Tensor]] = {
    "grouped": lambda: F.conv2d(X, W[:2, :2], None, groups=2),
    "depthwise": lambda: F.conv2d(X, draw(3, 4, 1, 3, 3), None, 1, 1, 1, 4),
    "unbatched": lambda: F.conv2d(X[0], W, B),
    "padding by name": lambda: F.conv2d(X, W, B, padding="same"),
    "transposed": lambda: F.conv_transpose2d(X, draw(3, 4, 2, 3, 3)),
    "one-dimensional": lambda: F.conv1d(X[:, :, 0], W[:, :, 0]),
}


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_what_the_product_form_does_not_do_stays_native(name: str) -> None:
    inside, number = native(NATIVE[name])
    assert number == 1
    assert torch.equal(inside, NATIVE[name]())


def test_outside_the_mode_nothing_is_caught() -> None:
    with Im2col():
        pass
    with Convolutions() as count:
        F.conv2d(X, W)
    assert count.number == 1


def test_the_mode_ends_even_if_the_call_fails() -> None:
    with pytest.raises(RuntimeError), Im2col():
        F.conv2d(X, W[:, :2])
    with Convolutions() as count:
        F.conv2d(X, W)
    assert count.number == 1


@pytest.mark.usefixtures("way")
def test_under_vmap_every_trial_has_its_own_weights() -> None:
    xs, ws, bs = draw(5, 3, 2, 4, 6, 6), draw(6, 3, 5, 4, 3, 3), draw(7, 3, 5)
    with Im2col():
        many = torch.func.vmap(lambda x, w, b: F.conv2d(x, w, b, 2, 1))(xs, ws, bs)
    alone = torch.stack([F.conv2d(x, w, b, 2, 1) for x, w, b in zip(xs, ws, bs, strict=True)])
    assert_close(many, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("way")
def test_a_gradient_of_a_gradient_under_vmap_is_the_native_one() -> None:
    """What an attack computes: the derivative, in the input, of the length of the gradient in the weights."""
    xs, ws = draw(5, 3, 1, 2, 5, 5), draw(6, 3, 3, 2, 3, 3)

    def mismatch(x: Tensor, w: Tensor) -> Tensor:
        return torch.func.grad(lambda w: F.conv2d(x, w, None, 2, 1).sigmoid().sum())(w).square().sum()

    derive = torch.func.vmap(torch.func.grad(mismatch))
    with Im2col():
        ours = derive(xs, ws)
    assert_close(ours, derive(xs, ws), rtol=1e-10, atol=1e-10)


class Operations(TorchDispatchMode):
    """Names every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func).split(".")[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("way")
def test_columns_take_as_many_operations_for_any_number_of_pictures() -> None:
    found = []
    for many in (2, 9):
        x, w = draw(5, many, 2, 2, 6, 6), draw(6, many, 3, 2, 3, 3)
        derive = torch.func.vmap(torch.func.grad(lambda x, w: F.conv2d(x, w, None, 2, 1).sin().sum()))
        with Operations() as count, Im2col():
            derive(x, w)
        found.append(count.names)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("device", "compiled", "own", "others"),
    [
        ("cpu", False, "stack", {"im2col", "unfold"}),
        ("cpu", True, "stack", {"im2col", "unfold"}),
        ("meta", False, "unfold", {"im2col", "stack"}),
        ("meta", True, "im2col", {"unfold", "stack"}),
    ],
)
def test_columns_are_made_as_the_device_does_best(device: str, compiled: bool, own: str, others: set[str]) -> None:
    """`meta` is any device but a CPU: its operations have shapes and no numbers."""
    x, w = draw(0, 2, 3, 6, 6).to(device), draw(1, 4, 3, 3, 3).to(device)
    with Operations() as count, Im2col(compiled=compiled):
        made = F.conv2d(x, w, None, 1, 1)
    assert made.shape == (2, 4, 6, 6)
    assert own in count.names
    assert not others & set(count.names)


@pytest.mark.usefixtures("way")
def test_derivatives_forward_are_torchs() -> None:
    x, w = draw(0, 2, 3, 6, 6), draw(1, 4, 3, 3, 3)

    def length(x: Tensor) -> Tensor:
        return F.conv2d(x, w, None, 2, 1, 1).sin().square().sum()

    def both() -> tuple[Tensor, Tensor]:
        direction = draw(2, *x.shape)
        first = torch.func.jvp(length, (x,), (direction,))[1]
        return first, torch.func.jvp(torch.func.grad(length), (x,), (direction,))[1]

    with Im2col():
        ours = both()
    assert_close(ours, both(), rtol=1e-10, atol=1e-10)


def test_a_picture_smaller_than_the_kernel_is_refused_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="Kernel size"), Im2col():
        F.conv2d(X, draw(1, 3, 4, 7, 7))


@pytest.mark.parametrize("name", ["lenet_cpl", "resnet20", "cnn_mnist"])
def test_whole_networks_give_the_same_output_without_a_native_convolution(name: str) -> None:
    model = build(name, (1, 8, 8), 3)
    x = draw(8, 2, 1, 8, 8).float()

    def run() -> Tensor:
        return model.apply(model.parameters, model.buffers, x, torch.tensor(0))[0]

    inside, number = native(run)
    assert number == 0
    assert_close(inside, run(), rtol=1e-4, atol=1e-5)
