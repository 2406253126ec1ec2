"""Every 2-D convolution inside a context computed in another way: no module is rewritten.

`nn.Conv2d`, `F.conv2d` and `torch.conv2d` are one call, which a torch function mode catches above vmap and grad. What cannot be
computed in the other way, and what is mistaken, goes to torch itself.

Bands and windows compute the convolutions of many clients as matrix products: once clients have weights of their own, vmap turns
their convolutions into a grouped one, which CPU libraries do at half the speed and less. What those two ways share is here: the sizes
of a convolution and its first derivatives. They are for training; attacks, which differentiate twice, are refused.
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
    """What a convolution is called with besides its tensors; pairs by height and width."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


Compute = Callable[[Tensor, Tensor, Tensor | None, ConvSettings], Tensor | None]


class Convolving(TorchFunctionMode):
    """Inside this context `torch.conv2d` of a batch is what `compute` returns, or itself where that is None."""

    def __init__(self, compute: Compute) -> None:
        """Take the function of input, weight, bias and settings that stands in."""
        super().__init__()
        self.compute = compute

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Route conv2d to the function that stands in, everything else to itself."""
        del types
        out = self._conv2d(*args, **(kwargs or {})) if func is torch.conv2d else None
        return func(*args, **(kwargs or {})) if out is None else out

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor | None:
        if input.ndim != 4 or isinstance(padding, str):
            return None
        return self.compute(input, weight, bias, ConvSettings(pair(stride), pair(padding), pair(dilation), groups))


def pair(value: int | Sequence[int]) -> Pair:
    """Return a setting of a convolution for both directions.

    >>> pair(2), pair((1, 2))
    ((2, 2), (1, 2))
    """
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an ungrouped convolution: pairs by height and width, `channels` in and out."""

    image: Pair
    channels: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Sizes:
        """Return the sizes that `numbers` gave."""
        return cls(*zip(numbers[::2], numbers[1::2], strict=True))

    def numbers(self) -> list[int]:
        """Return all sizes in a row, for an operator of torch."""
        pairs = (self.image, self.channels, self.kernel, self.stride, self.padding, self.dilation)
        return [number for both in pairs for number in both]

    @property
    def out(self) -> Pair:
        """Return height and width of the output."""
        sides = zip(self.image, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sides)
        return height, width


def sized(compute: Callable[[Tensor, Tensor, Tensor | None, Sizes], Tensor]) -> Compute:
    """Return what `Convolving` takes, for convolutions whose sizes are known: not grouped, not mistaken."""

    def computed(x: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvSettings) -> Tensor | None:
        sizes = sizes_of(x, weight, settings)
        return None if sizes is None else compute(x, weight, bias, sizes)

    return computed


def sizes_of(input: Tensor, weight: Tensor, settings: ConvSettings) -> Sizes | None:
    """Return the sizes of an ungrouped convolution; None for a grouped and for a mistaken one."""
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
    """The cotangents of a convolution's input, and of its weight and bias; every tensor leads with the clients.

    `by_input(cotangent, kernel, sizes)` and `by_weight(cotangent, x, kernel, sizes)`; `kernel` is what the convolution saved of it.
    """

    by_input: ByInput
    by_weight: ByWeight


_WAYS: dict[str, Derivatives] = {}  # by the name that the operators below take


def register(way: str, by_input: ByInput, by_weight: ByWeight) -> None:
    """Give the derivatives of a way to convolve its name."""
    _WAYS[way] = Derivatives(by_input, by_weight)


def leading(value: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return a tensor that leads with the clients; what they have in common is repeated in view."""
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)


def all_leading(
    dims: Dims, clients: int, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of a convolution, each leading with the clients."""
    biases = None if bias is None else leading(bias, dims[2], clients)
    return leading(x, dims[0], clients), leading(weight, dims[1], clients), biases


def save(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes) -> None:
    """Save what `cotangents` needs."""
    ctx.save_for_backward(x, kernel)
    ctx.biased, ctx.sizes = bias is not None, sizes


def cotangents(ctx: Any, cotangent: Tensor, way: str) -> tuple[Tensor | None, ...]:
    """Return the cotangents of input, weight, bias and sizes; None where nobody needs one."""
    x, kernel = ctx.saved_tensors
    levels = [level.key() for level in retrieve_all_functorch_interpreters()]
    twice = levels.count(TransformType.Grad) > 1 or any(map(_tracked, (cotangent, x, kernel)))
    if twice if levels else torch.is_grad_enabled():
        raise RuntimeError(f"{way} are for training: they have no second derivative")
    needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
    values = torch.ops.leakscope.cotangents(cotangent, x, kernel, ctx.sizes.numbers(), needs, way)
    return *(value if needed else None for value, needed in zip(values, needs, strict=True)), None


def _tracked(value: Tensor) -> bool:
    """Return whether plain autograd, outside all transforms, follows a tensor."""
    while is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value.requires_grad


def _all_clients(
    cotangent: Tensor, x: Tensor, kernel: Tensor, numbers: Sequence[int], needs: Sequence[bool], way: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of input, weight and bias, all leading with the clients; one that nobody needs is a zero for each."""
    nothing, sizes = cotangent.new_zeros(len(cotangent)), Sizes.of(numbers)
    with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
        to_x = _WAYS[way].by_input(cotangent, kernel, sizes) if needs[0] else nothing
        if needs[1]:
            return to_x, *_WAYS[way].by_weight(cotangent, x, kernel, sizes)
        return to_x, nothing, cotangent.sum((1, 3, 4)) if needs[2] else nothing


def _one_client(cotangent: Tensor, x: Tensor, kernel: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    return tuple(value[0] for value in _all_clients(cotangent[None], x[None], kernel[None], *settings))


def _batched(
    info: Any, dims: Dims, cotangent: Tensor, x: Tensor, kernel: Tensor, *settings: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    tensors = (leading(v, d, info.batch_size) for v, d in zip((cotangent, x, kernel), dims, strict=False))
    values: tuple[Tensor, ...] = torch.ops.leakscope.all_cotangents(*tensors, *settings)
    return values, (0, 0, 0)


# Operators of our own: as an autograd.Function inside the backward pass of another, the transforms take 1 ms for each call; and a
# traced graph holds one operator in the place of a loop over clients.
_LIBRARY = torch.library.Library("leakscope", "FRAGMENT")
_COTANGENTS = (
    "(Tensor cotangent, Tensor x, Tensor kernel, int[] sizes, bool[] needs, str way) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("cotangents" + _COTANGENTS)
_LIBRARY.impl("cotangents", _one_client, "CompositeExplicitAutograd")
_LIBRARY.define("all_cotangents" + _COTANGENTS)
_LIBRARY.impl("all_cotangents", _all_clients, "CompositeExplicitAutograd")
torch.library.register_vmap("leakscope::cotangents", _batched, lib=_LIBRARY)
