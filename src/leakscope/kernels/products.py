"""What convolutions of many clients as products of matrices share, whichever way the products are laid out.

Once clients have weights of their own, vmap turns their convolutions into one of many groups, which CPU libraries do at half
the speed and less. A torch function mode (`core.convolutions`) catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and
grad. First derivatives only: this is for training, attacks differentiate twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from leakscope.kernels.bands import Sizes
from leakscope.kernels.convolutions import pair

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How products are laid out: the cotangents of input, and of weight and bias, from what the convolution kept of its kernel.

    `by_input(cotangent, kept, sizes)` and `by_weight(cotangent, x, kept, sizes)`; every tensor leads with the clients.
    """

    by_input: Callable[[Tensor, Tensor, Sizes], Tensor]
    by_weight: Callable[[Tensor, Tensor, Tensor, Sizes], tuple[Tensor, Tensor]]


WAYS: dict[str, Way] = {}


def sizes_of(
    input: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> Sizes | None:
    """Return the sizes of an ungrouped convolution of several pictures; None for any other, and for a mistaken one."""
    if input.ndim != 4 or groups != 1 or isinstance(padding, str) or input.shape[1] != weight.shape[1]:
        return None
    there, here, *kernel = weight.shape
    sizes = Sizes(pair(input.shape[2:]), (here, there), pair(kernel), pair(stride), pair(padding), pair(dilation))
    return None if min(sizes.out) < 1 else sizes


def leading(value: Tensor, dim: int | None, number: int) -> Tensor:
    """Return a tensor that leads with the clients; what they have in common is repeated in view."""
    return value.expand(number, *value.shape) if dim is None else value.movedim(dim, 0)


def all_leading(
    dims: Dims, number: int, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of a convolution, each leading with the clients."""
    own = None if bias is None else leading(bias, dims[2], number)
    return leading(x, dims[0], number), leading(weight, dims[1], number), own


def keep(ctx: Any, x: Tensor, kept: Tensor, bias: Tensor | None, sizes: Sizes) -> None:
    """Save what `cotangents` needs."""
    ctx.save_for_backward(x, kept)
    ctx.biased, ctx.sizes = bias is not None, sizes


def cotangents(ctx: Any, cotangent: Tensor, way: str) -> tuple[Tensor | None, ...]:
    """Return the cotangents of input, weight, bias and sizes; None where nobody needs one."""
    x, kept = ctx.saved_tensors
    levels = [level.key() for level in retrieve_all_functorch_interpreters()]
    twice = levels.count(TransformType.Grad) > 1 or any(map(_tracked, (cotangent, x, kept)))
    if twice if levels else torch.is_grad_enabled():
        raise RuntimeError(f"{way} are for training: they have no second derivative")
    needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
    made = torch.ops.leakscope.cotangents(cotangent, x, kept, ctx.sizes.numbers(), needs, way)
    return *(value if needed else None for value, needed in zip(made, needs, strict=True)), None


def _tracked(value: Tensor) -> bool:
    """Return whether plain autograd, outside all transforms, follows a tensor."""
    while is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value.requires_grad


def _all_clients(
    cotangent: Tensor, x: Tensor, kept: Tensor, numbers: Sequence[int], needs: Sequence[bool], way: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of input, weight and bias, all leading with the clients; one that nobody needs is a zero for each."""
    nothing, sizes = cotangent.new_zeros(len(cotangent)), Sizes.of(numbers)
    with torch._C.DisableTorchFunction():  # hundreds of small operations need not pass through the mode
        to_x = WAYS[way].by_input(cotangent, kept, sizes) if needs[0] else nothing
        if needs[1]:
            return to_x, *WAYS[way].by_weight(cotangent, x, kept, sizes)
        return to_x, nothing, cotangent.sum((1, 3, 4)) if needs[2] else nothing


def _one_client(cotangent: Tensor, x: Tensor, kept: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    return tuple(value[0] for value in _all_clients(cotangent[None], x[None], kept[None], *settings))


def _batched(
    info: Any, dims: Dims, cotangent: Tensor, x: Tensor, kept: Tensor, *settings: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    cotangent, x, kept = (leading(v, d, info.batch_size) for v, d in zip((cotangent, x, kept), dims, strict=False))
    made: tuple[Tensor, ...] = torch.ops.leakscope.all_cotangents(cotangent, x, kept, *settings)
    return made, (0, 0, 0)


# Operators of our own: as an autograd.Function inside the backward pass of another, the transforms take 1 ms for each call; and a
# traced graph (`traced`) holds one operator in the place of a loop over clients.
_LIBRARY = torch.library.Library("leakscope", "FRAGMENT")
_COTANGENTS = (
    "(Tensor cotangent, Tensor x, Tensor kept, int[] sizes, bool[] needs, str way) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define("cotangents" + _COTANGENTS)
_LIBRARY.impl("cotangents", _one_client, "CompositeExplicitAutograd")
_LIBRARY.define("all_cotangents" + _COTANGENTS)
_LIBRARY.impl("all_cotangents", _all_clients, "CompositeExplicitAutograd")
torch.library.register_vmap("leakscope::cotangents", _batched, lib=_LIBRARY)
