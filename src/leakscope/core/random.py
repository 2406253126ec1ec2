"""Random numbers as a pure function of a key: Philox 4x32-10 in integer tensor operations.

A key is an int64 scalar tensor (one trial) or a vector (many trials). `fold` derives a new key from a key and a purpose or a
counter; `uniform`, `normal` and `permutation` draw from a key. A draw is the same on CPU and GPU, alone or in a batch, traced or
not, and under `vmap`. (Integers agree bit for bit; normals use float64 logarithms and cosines and are rounded to the requested
dtype.) Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from leakscope.core.errors import InputError

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_ROUNDS = 10
_AT_ONCE = 1 << 16  # words: larger draws are no faster together


def key(seed: int | Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """Return the key of one seed (a scalar) or of many (a vector)."""
    values = [seed] if isinstance(seed, int) else list(seed)
    if any(not 0 <= s < 2**63 for s in values):
        raise InputError(f"a seed must lie in [0, 2**63), got {next(s for s in values if not 0 <= s < 2**63)}")
    keys = torch.tensor(values, dtype=torch.int64, device=device)
    return keys[0] if isinstance(seed, int) else keys


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], k0: Tensor, k1: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four 32-bit words (in int64) of Philox 4x32-10 for each counter."""
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        high0, high1 = (p0 >> 32) & _LOW, (p1 >> 32) & _LOW
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _LOW, high0 ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def _zero(k: Tensor) -> Tensor:
    """Return 0 computed from the key: a compiler would use 32-bit arithmetic for plain constants."""
    return k & 0


def fold(k: Tensor, data: str | int | Tensor) -> Tensor:
    """Return a new key from a key and a purpose (text) or a counter (number, or one per key)."""
    if isinstance(data, str):
        return _mixed(k, _filled(zlib.crc32(data.encode()), k), 1)
    return _mixed(k, data.to(k.device, torch.int64) if isinstance(data, Tensor) else _filled(data, k), 2)


def fold_each(k: Tensor, purposes: Sequence[str]) -> Tensor:
    """Return the keys folded with each purpose, along a new last dimension."""
    return _mixed(k.unsqueeze(-1), torch.stack([_filled(zlib.crc32(each.encode()), k) for each in purposes]), 1)


def _filled(number: int, like: Tensor) -> Tensor:
    """Return a number created on the key's device: a copy from the host cannot be part of a recording."""
    return torch.full((), number, dtype=torch.int64, device=like.device)


def _mixed(k: Tensor, number: Tensor, kind: int) -> Tensor:
    zero = _zero(k)
    low, high = zero + (number & _LOW), zero + ((number >> 32) & _LOW)
    a, b, _, _ = philox((low, high, zero + kind, zero), k & _LOW, (k >> 32) & _LOW)
    return (a | (b << 32)) & 0x7FFFFFFFFFFFFFFF


def _words(k: Tensor, number: int) -> Tensor:
    """Return `number` 32-bit words for each key, along a new last dimension."""
    blocks = -(-number // 4)
    count = torch.arange(blocks, dtype=torch.int64, device=k.device)
    k = k.unsqueeze(-1)
    zero = _zero(k) + torch.zeros_like(count)
    words = philox((zero + count, zero, zero, zero), k & _LOW, (k >> 32) & _LOW)
    return torch.stack(words, dim=-1).flatten(-2)[..., :number]


def uniform(k: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers in [0, 1) of shape `k.shape + shape`, on a grid of 2**-24 (float32 and float64 draw the same)."""
    words = _words(k, math.prod(shape)) >> 8
    return (words.to(torch.float64) * 2.0**-24).to(dtype).reshape((*k.shape, *shape))


def normal(k: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return standard normal numbers of shape `k.shape + shape`, by Box-Muller."""
    number = math.prod(shape)
    words = _words(k, 2 * number)
    return _normal(words[..., :number], words[..., number:]).to(dtype).reshape((*k.shape, *shape))


def _normal(first: Tensor, second: Tensor) -> Tensor:
    radius = (-2 * torch.log((first.to(torch.float64) + 1) * 2.0**-32)).sqrt()
    return radius * torch.cos(second.to(torch.float64) * (2.0**-32 * 2 * math.pi))


def uniforms(k: Tensor, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return for each name `uniform` of the key folded with it: many small tensors in one pass."""

    def many(words: list[Tensor], numbers: list[int]) -> Tensor:
        del numbers
        return (torch.cat(words, dim=-1) >> 8).to(torch.float64) * 2.0**-24

    return _drawn(k, shapes, dtype, 1, uniform, many)


def normals(k: Tensor, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return for each name `normal` of the key folded with it: many small tensors in one pass."""

    def many(words: list[Tensor], numbers: list[int]) -> Tensor:
        first = torch.cat([w[..., :number] for w, number in zip(words, numbers, strict=True)], dim=-1)
        return _normal(first, torch.cat([w[..., number:] for w, number in zip(words, numbers, strict=True)], dim=-1))

    return _drawn(k, shapes, dtype, 2, normal, many)


def _drawn(
    k: Tensor,
    shapes: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    words: int,
    one: Callable[[Tensor, Sequence[int], torch.dtype], Tensor],
    many: Callable[[list[Tensor], list[int]], Tensor],
) -> dict[str, Tensor]:
    """Return a draw for each name: large tensors by `one`, groups of small ones by `many`; a number takes `words` words."""
    draws: dict[str, Tensor] = {}
    for names in _together(shapes, words):
        if len(names) == 1:
            draws[names[0]] = one(fold(k, names[0]), shapes[names[0]], dtype)
            continue
        numbers = [math.prod(shapes[name]) for name in names]
        drawn = many(_words_each(fold_each(k, names), [words * number for number in numbers]), numbers)
        draws |= _cut(drawn.to(dtype), {name: shapes[name] for name in names})
    return draws


def _together(shapes: Mapping[str, Sequence[int]], words: int) -> list[list[str]]:
    """Return the names in groups of neighbours small enough for one draw."""
    groups: list[list[str]] = []
    room = 0
    for name, shape in shapes.items():
        wanted = words * math.prod(shape)
        if not groups or wanted > room:
            groups.append([])
            room = _AT_ONCE
        groups[-1].append(name)
        room -= wanted
    return groups


def _words_each(keys: Tensor, numbers: Sequence[int]) -> list[Tensor]:
    """Return for each key of the last dimension its number of words, as `_words` does."""
    blocks = [-(-number // 4) for number in numbers]
    count = torch.cat([torch.arange(each, dtype=torch.int64, device=keys.device) for each in blocks])
    parts = [keys[..., place : place + 1].expand(*keys.shape[:-1], each) for place, each in enumerate(blocks)]
    k = torch.cat(parts, dim=-1)
    zero = _zero(k)
    words = philox((zero + count, zero, zero, zero), k & _LOW, (k >> 32) & _LOW)
    flat = torch.stack(words, dim=-1).flatten(-2)
    cut = flat.split([4 * each for each in blocks], dim=-1)
    return [part[..., :number] for part, number in zip(cut, numbers, strict=True)]


def _cut(drawn: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    parts = drawn.split([math.prod(shape) for shape in shapes.values()], dim=-1)
    lead = drawn.shape[:-1]
    return {name: part.reshape((*lead, *shape)) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}


def permutation(k: Tensor, length: int) -> Tensor:
    """Return a random order of 0 .. length-1 for each key."""
    words = _words(k, 2 * length)
    return torch.argsort((words[..., :length] << 31) | (words[..., length:] >> 1), dim=-1, stable=True)
