"""Gradient checkpointing that works under torch.func: run a function without storing intermediates, and rerun it for its gradient.

`torch.utils.checkpoint` fails under `torch.func.grad`; an autograd.Function whose backward takes the function's vjp works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from leakscope.core.tree import fill, tensors

V = TypeVar("V")


def recompute(f: Callable[..., V], *args: object) -> V:
    """Return `f(*args)`, storing only `args` for the backward pass. `f` must be pure and may nest as in `core.tree`.

    Only the first derivative with respect to tensors of `args` is defined; closures of `f` and the derivative are constants.
    """
    shape: list[V | None] = []

    def flat(*leaves: Tensor) -> tuple[Tensor, ...]:
        result = f(*fill(args, list(leaves)))
        if not shape:  # only the first time: a result of the backward pass would keep its whole graph alive
            shape.append(result)
        return tuple(tensors(result))

    class Segment(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*leaves: Tensor) -> tuple[Tensor, ...]:
            return flat(*leaves)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs)
            ctx.floats = [value.is_floating_point() for value in output]

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
            leaves = ctx.saved_tensors
            moving = [i for i, leaf in enumerate(leaves) if leaf.is_floating_point() and ctx.needs_input_grad[i]]

            def partial(*floats: Tensor) -> tuple[Tensor, ...]:
                full = list(leaves)
                for i, value in zip(moving, floats, strict=True):
                    full[i] = value
                return tuple(value for value in flat(*full) if value.is_floating_point())

            cotangents = tuple(c for c, f in zip(cotangents, ctx.floats, strict=True) if f)
            back: list[Tensor | None] = [None] * len(leaves)
            with torch.no_grad():  # torch.func.grad records its backward pass and would store everything
                pull = torch.func.vjp(partial, *[leaves[i] for i in moving])[1]
                for i, value in zip(moving, pull(cotangents), strict=True):
                    back[i] = value
            return tuple(back)

    result = Segment.apply(*tensors(args))  # type: ignore[no-untyped-call]
    output: V = fill(cast(V, shape[0]), list(result))
    shape[:] = [None]
    return output
