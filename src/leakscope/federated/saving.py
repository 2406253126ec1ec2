"""The state of a federation as two files of one round: the server's part, and what clients keep private.

Private heads, codes and the state of defences (a residual is an unsent gradient) are only in the second file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from leakscope.core.errors import InputError
from leakscope.core.tree import Tree, fill, flat_names
from leakscope.federated.federation import State

KEY = "leakscope"

T = TypeVar("T")


def pack(state: State, about: Mapping[str, object]) -> bytes:
    """Return the server's part of a state as the bytes of a safetensors file, with `about` (plain data) as metadata."""
    return _packed((state.weights, state.buffers), {**about, "rounds": state.rounds})


def pack_private(state: State) -> bytes | None:
    """Return the private part of all clients as the bytes of a separate file; None if there is none."""
    private = (state.private, state.memory)
    return _packed(private, {"rounds": state.rounds}) if flat_names(private) else None


def unpack(data: bytes, like: State, private: bytes | None = None) -> tuple[State, dict[str, object]]:
    """Return the state of `pack` and `pack_private`, and the metadata; `like` is a state of the same federation."""
    (weights, buffers), about = _unpacked(data, (like.weights, like.buffers), like)
    rounds = about.pop("rounds")
    parts = (like.private, like.memory)
    if flat_names(parts):
        if private is None:
            raise InputError("the saved state lacks the clients' private state: its private file is missing")
        parts, beside = _unpacked(private, parts, like)
        if beside["rounds"] != rounds:
            raise InputError(f"the saved state is of round {rounds}, its private file of round {beside['rounds']}")
    return State(int(str(rounds)), weights, buffers, *parts), about


def _packed(parts: object, about: Mapping[str, object]) -> bytes:
    from safetensors.torch import save

    flat = {name: value.detach().cpu().contiguous().clone() for name, value in flat_names(parts).items()}
    return save(flat, metadata={KEY: json.dumps(dict(about))})


def _unpacked(data: bytes, parts: T, like: State) -> tuple[T, dict[str, object]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][KEY])
        values, _ = load(data), int(about["rounds"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a readable state of a federation ({' '.join(str(error).split())[:120]})") from None
    names = flat_names(parts)
    if _shapes(names) != _shapes(values):
        raise InputError("the saved state belongs to another federation: its tensors have other names or shapes")
    device = next(iter(like.weights.values())).device
    return fill(parts, [values[name].to(device) for name in names]), about


def _shapes(tree: Tree) -> dict[str, object]:
    return {name: (value.shape, value.dtype) for name, value in tree.items()}
