"""Named-tensor trees, and the map over all tensors of a nested value.

A `Tree` is a flat dict from name to tensor: parameters, buffers, an update, the unknowns of a trial. The vector functions (`dot`,
`norm`, ...) read it as one long vector. `map_tensors` and `lift` walk nested dicts, tuples and frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Tree = dict[str, Tensor]
V = TypeVar("V")

TINY = 1e-12
LARGE = 2**22  # numbers of one trial, from which on a CPU runs trials one by one (ResNet18 has 11 million weights)


class _SquaredNorms(torch.autograd.Function):
    """`x . x` of every tensor in one pass over x, and one for its gradient `2 g x`: updates are the largest tensors of an attack."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tree: Tensor) -> Tensor:
        return _squared_norms(*tree)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, ...]:
        return tuple(x * g for x, g in zip(ctx.saved_tensors, (2 * cotangent).unbind(), strict=True))


def _squared_norms(*tree: Tensor) -> Tensor:
    """Return `x . x` of every tensor: on CPU in one pass, ten times as fast as a batched product; elsewhere square and sum, which fuse."""
    if tree[0].device.type == "cpu":
        return torch.stack([torch.linalg.vector_norm(x).square() for x in tree])
    return torch.stack([x.square().sum() for x in tree])


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return the inner product of two trees with the same names."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def squared_norm(a: Mapping[str, Tensor]) -> Tensor:
    """Return the squared Euclidean length of a tree read as one vector."""
    values = tuple(a.values())
    if not any(
        value.requires_grad for value in values
    ):  # such as an observed update: no call through autograd, the same bits
        return _squared_norms(*values).sum()
    norms: Tensor = _SquaredNorms.apply(*values)  # type: ignore[no-untyped-call]
    return norms.sum()


def norm(a: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean length of a tree read as one vector."""
    return squared_norm(a).sqrt()


def scale(a: Mapping[str, Tensor], factor: Tensor | float) -> Tree:
    """Return `factor * a`."""
    return {name: value * factor for name, value in a.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Return `a + b`."""
    return {name: value + b[name] for name, value in a.items()}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Return `a - b`."""
    return {name: value - b[name] for name, value in a.items()}


def interpolate(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: Tensor | float) -> Tree:
    """Return `(1 - weight) * a + weight * b`."""
    return {name: torch.lerp(value, b[name], torch.as_tensor(weight, dtype=value.dtype)) for name, value in a.items()}


def count(a: Mapping[str, Tensor]) -> int:
    """Return the number of scalars in a tree."""
    return sum(value.numel() for value in a.values())


def tensors(value: object) -> Iterator[Tensor]:
    """Yield every tensor in a nested value, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def map_tensors(f: Callable[..., Tensor], value: V, *others: V) -> V:
    """Return `value` with every tensor replaced by `f(tensor, ...)`; `others` have the same nesting."""
    return cast(V, _map(f, value, others))


def _map(f: Callable[..., Tensor], value: object, others: tuple[object, ...]) -> object:
    if isinstance(value, Tensor):
        return f(value, *others)
    if isinstance(value, Mapping):
        return {k: _map(f, v, tuple(o[k] for o in others)) for k, v in value.items()}  # type: ignore[index]
    if isinstance(value, tuple | list):
        return type(value)(_map(f, v, tuple(o[i] for o in others)) for i, v in enumerate(value))  # type: ignore[index]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _map(f, getattr(value, field.name), tuple(getattr(o, field.name) for o in others))
            for field in dataclasses.fields(value)
        }
        return _replace(value, changed)
    return value


def _replace(value: object, changed: dict[str, object]) -> object:
    """Return a copy of a dataclass with new field values, without its checks (they may not trace)."""
    copy = object.__new__(type(value))
    for name, item in changed.items():
        object.__setattr__(copy, name, item)
    return copy


def fill(value: V, flat: list[Tensor]) -> V:
    """Return `value` with its tensors replaced by those of `flat`, in the order of `tensors`."""
    queue = iter(flat)
    return map_tensors(lambda _: next(queue), value)


def take(value: V, index: Tensor | int | slice) -> V:
    """Return the trials at `index` (dimension 0) of every tensor."""
    return map_tensors(lambda t: t[index], value)


def rows(t: Tensor) -> Tensor:
    """Return a tensor T x ... as a matrix with one row per trial."""
    return t.reshape(t.shape[0], -1)


def trials(value: object) -> int:
    """Return the length of the leading dimension shared by all tensors of a value."""
    lengths = {t.shape[0] if t.ndim else None for t in tensors(value)}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            f"every tensor must lead with the same trial dimension, got lengths {sorted(map(str, lengths))}"
        )
    return int(next(iter(lengths)))  # type: ignore[arg-type]


def flattened(
    f: Callable[..., V], args: tuple[object, ...]
) -> tuple[Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]], list[V]]:
    """Return `f` as a function from the tensors in `args` to those of its result, and a list that holds the last result."""
    shape: list[V] = []

    def flat_f(flat: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        result = f(*fill(args, list(flat)))
        shape[:] = [result]
        return tuple(tensors(result))

    return flat_f, shape


def lift(f: Callable[..., V], chunk: int | None = None) -> Callable[..., V]:
    """Return `f`, a function of ONE trial, as a function of many: every tensor argument has a leading trial dimension.

    This is `torch.func.vmap` over all tensors of all arguments. A function that vmap cannot run (a recurrent layer, a branch on a
    tensor's value) is called trial by trial; so is one of large trials on a CPU, where convolutions in groups are slow.
    """

    def many(*args: object) -> V:
        one, shape = flattened(f, args)
        values = tuple(tensors(args))
        flat: tuple[Tensor, ...] | None = None
        if values[0].device.type != "cpu" or sum(t.numel() for t in values) < LARGE * max([1, *values[0].shape[:1]]):
            try:
                flat = torch.func.vmap(one, randomness="error", chunk_size=chunk)(values)
            except RuntimeError as error:
                if not beyond_vmap(error):
                    raise
        if flat is None:
            generator = torch.get_rng_state()
            rows = [one(tuple(t[i] for t in values)) for i in range(trials(args))]
            if not torch.equal(generator, torch.get_rng_state()):
                raise RuntimeError("a function of one trial drew random numbers from torch's global generator")
            flat = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return fill(shape[0], list(flat))

    return many


def beyond_vmap(error: RuntimeError) -> bool:
    """Return whether an error means that vmap cannot run a function that may work for one trial."""
    text = str(error)
    return (
        "vmap" in text or "atching rule" in text
    ) and "random" not in text  # global random draws are refused, not looped


def to(value: V, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> V:
    """Return `value` on another device; floating tensors also in another dtype."""
    return map_tensors(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None), value)


def flat_names(value: object, prefix: str = "") -> dict[str, Tensor]:
    """Return every tensor of a nested value under a name joined with "/", for saving."""
    if isinstance(value, Tensor):
        return {prefix: value}
    items: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, tuple | list):
        items = [(str(i), v) for i, v in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    named: dict[str, Tensor] = {}
    for name, item in items:
        named |= flat_names(item, f"{prefix}/{name}" if prefix else name)
    return named
