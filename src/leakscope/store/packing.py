"""Named tensors as the bytes of a safetensors file, made for training that waits for them.

The file is 8 bytes with the length of a header, the header (JSON: name -> dtype, shape, place) and the numbers, in which the
wide types come first so that all lie aligned. Written here and not by the library because the library's call costs several
times as much as all that it writes when tensors are small; a test reads what is made with the library.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.core.tree import Tree

ALIGNED = 8
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors as the bytes of a safetensors file, the SHA-256 of them, and the shape of each tensor."""

    data: bytes
    sha256: str
    shapes: Mapping[str, list[int]]


def pack(tree: Tree, what: str) -> Packed:
    """Return tensors as they are written; refuse NaN, infinity and types that no capture holds. `what` names them then."""
    order = sorted(tree.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, dict[str, object]] = {}
    numbers: list[bytes] = []
    place = 0
    for name, value in order:
        part = _numbers(value, f"{what} {name!r:.80}")
        entry: dict[str, object] = {
            "dtype": _dtype(value),
            "shape": list(value.shape),
            "data_offsets": [place, place + len(part)],
        }
        header[name], place = entry, place + len(part)
        numbers.append(part)
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % ALIGNED)
    data = b"".join((len(head).to_bytes(8, "little"), head, *numbers))
    return Packed(data, hashlib.sha256(data).hexdigest(), {name: list(value.shape) for name, value in tree.items()})


def _numbers(value: Tensor, where: str) -> bytes:
    """Return the numbers of a tensor, little end first."""
    import numpy as np
    import torch

    if _dtype(value) is None:
        raise InputError(f"{where} is {value.dtype}; a capture holds {', '.join(NAMES)}")
    flat = value.detach().cpu().reshape(-1)
    if flat.dtype is torch.bfloat16:  # which numpy does not have
        finite, plain = bool(flat.isfinite().all()), flat.view(torch.int16).numpy()
    else:
        plain = flat.numpy()
        finite = bool(np.isfinite(plain).all())
    if not finite:
        raise InputError(f"{where} holds NaN or infinity")
    return (plain if sys.byteorder == "little" else plain.byteswap()).tobytes()


def _dtype(value: Tensor) -> str | None:
    """Return what safetensors calls the type of a tensor; None for one that captures do not hold."""
    return NAMES.get(str(value.dtype).removeprefix("torch."))
