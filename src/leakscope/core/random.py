"""Random numbers as a pure function of a key: Philox 4x32-10 in plain integer tensor operations.

A key is an int64 scalar tensor (one trial) or a vector of them (many trials). `fold` derives a new key from a key and a
purpose or a counter; `uniform`, `normal` and `permutation` draw from one. Nothing here has state, so a draw is the same on
CPU and GPU, alone or in a batch, traced or not, and under `vmap` each trial draws from its own key. (Integers agree bit
for bit everywhere; normals go through float64 logarithms and cosines and are then rounded to the asked dtype.)

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.core.errors import InputError

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_ROUNDS = 10


def key(seed: int | Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """Return the key of one seed (a scalar) or of many (a vector)."""
    values = [seed] if isinstance(seed, int) else list(seed)
    if any(not 0 <= s < 2**63 for s in values):
        raise InputError(f"a seed must lie in [0, 2**63), got {next(s for s in values if not 0 <= s < 2**63)}")
    made = torch.tensor(values, dtype=torch.int64, device=device)
    return made[0] if isinstance(seed, int) else made


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
    """Return 0 for every key, as a value of the key: from plain constants a compiler would count in 32 bits."""
    return k & 0


def fold(k: Tensor, data: str | int | Tensor) -> Tensor:
    """Return a new key made from a key and a purpose (text) or a counter (number, or one per key)."""
    kind = 1 if isinstance(data, str) else 2
    plain = zlib.crc32(data.encode()) if isinstance(data, str) else data
    # filled in place: a number that comes from the host could not be part of a recording
    number = plain if isinstance(plain, Tensor) else torch.full((), plain, dtype=torch.int64, device=k.device)
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
    """Return standard normal numbers of shape `k.shape + shape`, by Box and Muller."""
    number = math.prod(shape)
    words = _words(k, 2 * number).to(torch.float64)
    radius = (-2 * torch.log((words[..., :number] + 1) * 2.0**-32)).sqrt()
    angle = words[..., number:] * (2.0**-32 * 2 * math.pi)
    return (radius * torch.cos(angle)).to(dtype).reshape((*k.shape, *shape))


def permutation(k: Tensor, length: int) -> Tensor:
    """Return a random order of 0 .. length-1 for each key."""
    words = _words(k, 2 * length)
    return torch.argsort((words[..., :length] << 31) | (words[..., length:] >> 1), dim=-1, stable=True)
