"""Convolutions of many clients computed client by client, several at a time on one core each; no module is rewritten.

With separate weights per client vmap makes one grouped convolution, at half the speed or less on CPUs. All other operations stay
batched. Channels last in memory halves the backward pass of few channels. First derivatives only: for training, not for attacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from leakscope.core.tree import V
from leakscope.kernels.convolutions import Convolving, ConvSettings, Dims, Pair

Needs = tuple[bool, bool, bool]

_POOL: ContextVar[ThreadPoolExecutor | None] = ContextVar("threads_of_the_running_clients", default=None)


@contextmanager
def client_by_client(*, channels_last: bool = False) -> Iterator[None]:
    """Inside, every 2-D convolution of many clients is computed client by client, on as many cores as torch has threads."""
    threads = torch.get_num_threads()
    if threads == 1:
        with Convolving(partial(_compute, channels_last)):
            yield
        return
    with ThreadPoolExecutor(threads, "leakscope", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        token = _POOL.set(pool)
        try:
            with Convolving(partial(_compute, channels_last)):
                yield
        finally:
            _POOL.reset(token)
            torch.set_num_threads(threads)  # a new thread's number becomes global


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments of a convolution, and whether channels are last in memory."""

    called: ConvSettings
    channels_last: bool

    @property
    def numbers(self) -> tuple[Pair, Pair, Pair]:
        """Return stride, padding and dilation."""
        return self.called.stride, self.called.padding, self.called.dilation


def _compute(channels_last: bool, x: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvSettings) -> Tensor:
    out: Tensor = _Convolution.apply(x, weight, bias, Setting(settings, channels_last))  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """`x * w + b`; `_Backward` is its derivative."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
        return _forward(x, weight, bias, setting)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Setting], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.biased = inputs[2] is not None
        ctx.setting = inputs[3]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs = (bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1]), bool(ctx.biased))
        values = _Backward.apply(cotangent, x, weight, ctx.setting, needs)  # type: ignore[no-untyped-call]
        return *(value if needed else None for value, needed in zip(values, needs, strict=True)), None

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, setting: Setting
    ) -> tuple[Tensor, int]:
        parts = _parts((x, weight, bias), dims, info.batch_size, setting)
        return _stacked(_spread(lambda one: _forward(one[0], one[1], one[2], setting), parts), setting), 0


class _Backward(torch.autograd.Function):
    """The cotangents of input, weight and bias; zero if not needed."""

    @staticmethod
    def forward(
        cotangent: Tensor, x: Tensor, weight: Tensor, setting: Setting, needs: Needs
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _backward(cotangent, x, weight, setting, needs)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: object, *cotangents: Tensor) -> None:
        del ctx, cotangents
        raise RuntimeError("client by client is for training: it has no second derivative")

    @staticmethod
    def vmap(
        info: Any, dims: Dims, cotangent: Tensor, x: Tensor, weight: Tensor, setting: Setting, needs: Needs
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        parts = _parts((cotangent, x, weight), dims, info.batch_size, setting)
        values = _spread(lambda one: _backward(one[0], one[1], cast(Tensor, one[2]), setting, needs), parts)
        return tuple(_stacked(list(each), setting) for each in zip(*values, strict=True)), (0, 0, 0)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
    stride, padding, dilation = setting.numbers
    groups = setting.called.groups
    out: Tensor = torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups)
    return out


def _backward(
    cotangent: Tensor, x: Tensor, weight: Tensor, setting: Setting, needs: Needs
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation = setting.numbers
    groups = setting.called.groups
    values = torch.ops.aten.convolution_backward(
        cotangent, x, weight, [weight.shape[0]], stride, padding, dilation, False, (0, 0), groups, needs
    )
    to_x, to_weight, to_bias = (cotangent.new_zeros(()) if value is None else value for value in values)
    return to_x, to_weight, to_bias


def _parts(
    values: Sequence[Tensor | None], dims: Dims, number: int, setting: Setting
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Return the arguments of each client, in the layout of the setting."""
    split = (_split(value, dim, number, setting) for value, dim in zip(values, dims, strict=False))
    return cast("list[tuple[Tensor, Tensor, Tensor | None]]", list(zip(*split, strict=True)))


def _split(value: Tensor | None, dim: int | None, number: int, setting: Setting) -> Sequence[Tensor | None]:
    if value is None or dim is None:
        return [value] * number
    layout = torch.channels_last if setting.channels_last and value.ndim == 5 else torch.contiguous_format
    return [each.contiguous(memory_format=layout) for each in value.unbind(dim)]


def _stacked(values: list[Tensor], setting: Setting) -> Tensor:
    """Return the results of all clients as one tensor, keeping their layout."""
    if not setting.channels_last or values[0].ndim != 4:
        return torch.stack(values)
    return torch.stack([value.permute(0, 2, 3, 1) for value in values]).permute(0, 1, 4, 2, 3)


def _spread(
    f: Callable[[tuple[Tensor, Tensor, Tensor | None]], V], items: list[tuple[Tensor, Tensor, Tensor | None]]
) -> list[V]:
    """Return f of every item, on the pool's threads if there is one; a CUDA device runs them in sequence."""
    pool = None if items[0][0].is_cuda else _POOL.get()
    return [f(item) for item in items] if pool is None else list(pool.map(f, items))
