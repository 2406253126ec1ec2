"""Contexts that compute every 2-D convolution in another way, without rewriting modules.

A torch function mode catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and grad; unsupported and invalid calls go to
torch. Bands and windows share this module: they compute the convolutions of many clients as matrix products, because vmap turns
those of clients with separate weights into a grouped one, at half the speed or less on CPUs. They have first derivatives only,
for training; attacks, which differentiate twice, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]
Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ConvSettings:
    """The arguments of a convolution other than tensors; pairs are (height, width)."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


Compute = Callable[[Tensor, Tensor, Tensor | None, ConvSettings], Tensor | None]


class Convolving(TorchFunctionMode):
    """Inside this context `torch.conv2d` of a batch returns `compute(...)`, or torch's result if that is None."""

    def __init__(self, compute: Compute) -> None:
        """Take the replacement, a function of input, weight, bias and settings."""
        super().__init__()
        self.compute = compute

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Route conv2d to the replacement, everything else to torch."""
        del types
        called = read_conv2d(*args, **(kwargs or {})) if func is torch.conv2d else None
        out = None if called is None else self.compute(*called)
        return func(*args, **(kwargs or {})) if out is None else out


def read_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, ConvSettings] | None:
    """Return the arguments of `torch.conv2d`; None without a batch, or if the padding is a word."""
    if input.ndim != 4 or isinstance(padding, str):
        return None
    return input, weight, bias, ConvSettings(pair(stride), pair(padding), pair(dilation), groups)


def pair(value: int | Sequence[int]) -> Pair:
    """Return a setting of a convolution as a pair (height, width).

    >>> pair(2), pair((1, 2))
    ((2, 2), (1, 2))
    """
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an ungrouped convolution; pairs are (height, width), `channels` (in, out)."""

    image: Pair
    channels: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Sizes:
        """Return the sizes from their `numbers`."""
        return cls(*zip(numbers[::2], numbers[1::2], strict=True))

    def numbers(self) -> list[int]:
        """Return all sizes as a flat list, for a torch operator."""
        pairs = (self.image, self.channels, self.kernel, self.stride, self.padding, self.dilation)
        return [number for both in pairs for number in both]

    @property
    def out(self) -> Pair:
        """Return height and width of the output."""
        sides = zip(self.image, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sides)
        return height, width


def sized(compute: Callable[[Tensor, Tensor, Tensor | None, Sizes], Tensor]) -> Compute:
    """Return `compute` for `Convolving`, limited to valid ungrouped convolutions."""

    def computed(x: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvSettings) -> Tensor | None:
        sizes = sizes_of(x, weight, settings)
        return None if sizes is None else compute(x, weight, bias, sizes)

    return computed


def sizes_of(input: Tensor, weight: Tensor, settings: ConvSettings) -> Sizes | None:
    """Return the sizes of an ungrouped convolution; None if it is grouped or invalid."""
    if settings.groups != 1 or input.shape[1] != weight.shape[1]:
        return None
    out_channels, in_channels, *kernel = weight.shape
    image, channels = pair(input.shape[2:]), (in_channels, out_channels)
    sizes = Sizes(image, channels, pair(kernel), settings.stride, settings.padding, settings.dilation)
    return None if min(sizes.out) < 1 else sizes


ByInput = Callable[[Tensor, Tensor, Sizes], Tensor]
ByWeight = Callable[[Tensor, Tensor, Tensor, Sizes], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Derivatives:
    """Cotangents of a convolution: `by_input(cotangent, kernel, sizes)`, `by_weight(cotangent, x, kernel, sizes)` (weight and bias)."""

    by_input: ByInput
    by_weight: ByWeight


_WAYS: dict[str, Derivatives] = {}  # by name


def register(way: str, by_input: ByInput, by_weight: ByWeight) -> None:
    """Register the derivatives of a way to convolve under its name."""
    _WAYS[way] = Derivatives(by_input, by_weight)


def leading(value: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return a tensor with a leading client dimension; shared values are expanded as a view."""
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)


def all_leading(
    dims: Dims, clients: int, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of a convolution, each with a leading client dimension."""
    biases = None if bias is None else leading(bias, dims[2], clients)
    return leading(x, dims[0], clients), leading(weight, dims[1], clients), biases


def save(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes) -> None:
    """Save the inputs of `cotangents`."""
    ctx.save_for_backward(x, kernel)
    ctx.biased, ctx.sizes = bias is not None, sizes


def cotangents(ctx: Any, cotangent: Tensor, way: str) -> tuple[Tensor | None, ...]:
    """Return the cotangents of input, weight, bias and sizes; None if not needed."""
    x, kernel = ctx.saved_tensors
    levels = [level.key() for level in retrieve_all_functorch_interpreters()]
    twice = levels.count(TransformType.Grad) > 1 or any(map(_tracked, (cotangent, x, kernel)))
    if twice if levels else torch.is_grad_enabled():
        raise RuntimeError(f"{way} are for training: they have no second derivative")
    needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
    values = torch.ops.leakscope.cotangents(cotangent, x, kernel, ctx.sizes.numbers(), needs, way)
    return *(value if needed else None for value, needed in zip(values, needs, strict=True)), None


def _tracked(value: Tensor) -> bool:
    """Return whether plain autograd, outside all transforms, tracks a tensor."""
    while is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value.requires_grad


def _all_clients(
    cotangent: Tensor, x: Tensor, kernel: Tensor, numbers: Sequence[int], needs: Sequence[bool], way: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of input, weight and bias with a leading client dimension; zeros if not needed."""
    nothing, sizes = cotangent.new_zeros(len(cotangent)), Sizes.of(numbers)
    with torch._C.DisableTorchFunction():  # skip the mode for hundreds of small operations
        to_x = _WAYS[way].by_input(cotangent, kernel, sizes) if needs[0] else nothing
        if needs[1]:
            return to_x, *_WAYS[way].by_weight(cotangent, x, kernel, sizes)
        return to_x, nothing, cotangent.sum((1, 3, 4)) if needs[2] else nothing


def _one_client(cotangent: Tensor, x: Tensor, kernel: Tensor, *settings: object) -> tuple[Tensor, ...]:
    return tuple(value[0] for value in _all_clients(cotangent[None], x[None], kernel[None], *settings))  # type: ignore[arg-type]


def _batched(
    info: Any, dims: Dims, cotangent: Tensor, x: Tensor, kernel: Tensor, *settings: object
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    tensors = (leading(v, d, info.batch_size) for v, d in zip((cotangent, x, kernel), dims, strict=False))
    values: tuple[Tensor, ...] = torch.ops.leakscope.all_cotangents(*tensors, *settings)
    return values, (0, 0, 0)


# Custom operators: an autograd.Function inside another's backward pass costs 1 ms per call under transforms. A traced graph then
# holds one operator instead of a loop over clients.
_LIBRARY = torch.library.Library("leakscope", "FRAGMENT")
_COTANGENTS = (
    "(Tensor cotangent, Tensor x, Tensor kernel, int[] sizes, bool[] needs, str way) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("cotangents" + _COTANGENTS)
_LIBRARY.impl("cotangents", _one_client, "CompositeExplicitAutograd")
_LIBRARY.define("all_cotangents" + _COTANGENTS)
_LIBRARY.impl("all_cotangents", _all_clients, "CompositeExplicitAutograd")
torch.library.register_vmap("leakscope::cotangents", _batched, lib=_LIBRARY)
