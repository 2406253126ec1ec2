"""Tests against the last round's model and against other clients: the change of the weights, of the loss, and a hash to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from leakscope.core.errors import InputError
from leakscope.scanning.dense_rows import largest
from leakscope.scanning.findings import Reading


def jump(received: Mapping[str, Tensor], previous: Mapping[str, Tensor], parameters: Sequence[str]) -> Reading:
    """Return the largest change of a parameter over its size last round, or over that of the model's typical weights if it was smaller.

    Running statistics are left out: those of a fresh network jump in the first round.
    """
    before = {name: previous[name].float() for name in parameters if previous[name].numel()}
    squares, numbers = sum(float(v.square().sum()) for v in before.values()), sum(v.numel() for v in before.values())
    typical = (squares / max(numbers, 1)) ** 0.5

    def change(name: str, old: Tensor) -> float:
        size = max(float(old.norm()), typical * old.numel() ** 0.5)
        return float((received[name].float() - old).norm()) / size if size else 0.0

    return largest(Reading(change(name, old), name) for name, old in before.items())


def check_same(received: Mapping[str, Tensor], other: Mapping[str, Tensor], what: str = "previous") -> None:
    """Refuse weights that are not of the network that was received; `what` names them."""
    for name in {**received, **other}:
        shapes = [tuple(each[name].shape) if name in each else "nothing" for each in (received, other)]
        if shapes[0] != shapes[1]:
            raise InputError(f"{what} is of another network: {name} is {shapes[1]} in it and {shapes[0]} in the model")


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all names, types, shapes and numbers, the same on every machine."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()
