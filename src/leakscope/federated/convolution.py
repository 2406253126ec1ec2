"""Convolutions of many clients, each by itself: no module is rewritten.

Once clients have weights of their own, vmap turns their convolutions into one of many groups, which CPU libraries do at half
the speed and less. Here every client's convolution is the plain one, several at a time on one core each, while all else
stays batched. A torch function mode catches `nn.Conv2d`, `F.conv2d` and `torch.conv2d` above vmap and grad. First
derivatives only: this is for training, attacks differentiate twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Setting = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]  # stride, padding, dilation, groups
Dims = tuple[int | None, ...]

_POOL: ContextVar[ThreadPoolExecutor | None] = ContextVar("threads_of_the_running_clients", default=None)


@contextmanager
def client_by_client() -> Iterator[None]:
    """Inside, every 2-D convolution of many clients is computed client by client, on as many cores as torch has threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        with _ClientByClient():
            yield
        return
    with ThreadPoolExecutor(threads, "leakscope", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        token = _POOL.set(pool)
        try:
            with _ClientByClient():
                yield
        finally:
            _POOL.reset(token)
            torch.set_num_threads(threads)  # a new thread's own number becomes everybody's


class _ClientByClient(TorchFunctionMode):
    """Routes conv2d to the function below, everything else to itself."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func is torch.conv2d:
            return _conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    if input.ndim != 4 or isinstance(padding, str):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    setting = (_two(stride), _two(padding), _two(dilation), groups)
    out: Tensor = _Convolution.apply(input, weight, setting)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias[:, None, None]


class _Convolution(torch.autograd.Function):
    """`x * w`; its derivative is the function below."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, setting: Setting) -> Tensor:
        return _forward(x, weight, setting)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Setting], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.setting = inputs[2]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]))
        to_x, to_weight = _Backward.apply(cotangent, x, weight, ctx.setting, needs)  # type: ignore[no-untyped-call]
        return (to_x if needs[0] else None), (to_weight if needs[1] else None), None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, setting: Setting) -> tuple[Tensor, int]:
        each = zip(_split(x, dims[0], info.batch_size), _split(weight, dims[1], info.batch_size), strict=True)
        return torch.stack(_spread(lambda pair: _forward(pair[0], pair[1], setting), list(each))), 0


class _Backward(torch.autograd.Function):
    """The cotangents of input and weight; one that nobody needs is a zero."""

    @staticmethod
    def forward(
        cotangent: Tensor, x: Tensor, weight: Tensor, setting: Setting, needs: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        return _backward(cotangent, x, weight, setting, needs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        del ctx, cotangents
        raise RuntimeError("client by client is for training: it has no second derivative")

    @staticmethod
    def vmap(
        info: Any,
        dims: Dims,
        cotangent: Tensor,
        x: Tensor,
        weight: Tensor,
        setting: Setting,
        needs: tuple[bool, bool],
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        parts = [_split(value, dim, info.batch_size) for value, dim in zip((cotangent, x, weight), dims, strict=False)]
        made = _spread(lambda one: _backward(one[0], one[1], one[2], setting, needs), list(zip(*parts, strict=True)))
        return (torch.stack([a for a, _ in made]), torch.stack([b for _, b in made])), (0, 0)


def _forward(x: Tensor, weight: Tensor, setting: Setting) -> Tensor:
    stride, padding, dilation, groups = setting
    out: Tensor = torch.ops.aten.convolution(x, weight, None, stride, padding, dilation, False, (0, 0), groups)
    return out


def _backward(
    cotangent: Tensor, x: Tensor, weight: Tensor, setting: Setting, needs: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    stride, padding, dilation, groups = setting
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(
        cotangent, x, weight, None, stride, padding, dilation, False, (0, 0), groups, (*needs, False)
    )
    nothing = cotangent.new_zeros(())
    return (nothing if to_x is None else to_x), (nothing if to_weight is None else to_weight)


def _split(value: Tensor, dim: int | None, number: int) -> list[Tensor]:
    return [value] * number if dim is None else [each.contiguous() for each in value.unbind(dim)]


def _spread(f: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Return f of every item, on the pool's threads where there is one."""
    pool = _POOL.get()
    return [f(item) for item in items] if pool is None else list(pool.map(f, items))


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))
