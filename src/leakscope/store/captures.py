"""Captured updates: what a real server saw of one client in one round, as two safetensors files and a JSON file.

    round-00003-client-7.json            the description; written last, so a capture exists whole or not at all
    round-00003-client-7.safetensors     what the client sent
    before-1f0c...e2.safetensors         the weights it received; one file for all clients that received the same

Captures are read as untrusted input: see `untrusted`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leakscope.core.errors import InputError
from leakscope.core.short_repr import short_repr
from leakscope.store.disk import PART, clear_errors
from leakscope.store.untrusted import plain_file, read_tensors, read_text

if TYPE_CHECKING:
    from torch import Tensor

    from leakscope.core.tree import Tree

FORMAT = "leakscope capture 1"
FIELDS = {
    "format", "round", "client", "partition", "examples", "shares", "config", "parameters", "before", "sent",
}  # fmt: skip
SHARES = ("weights", "gradient")
SUFFIX = ".safetensors"
CLIENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_COUNT = 2**48

Plain = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capture:
    """One client's update of one round: the weights it received (`before`) and what it sent (new weights, or a gradient)."""

    round: int
    client: str
    before: Tree
    sent: Tree
    shares: str = "weights"
    partition: int | None = None  # None: the client did not say
    examples: int | None = None
    config: Mapping[str, Plain] = field(default_factory=dict)  # what the server sent to the client

    __repr__ = short_repr

    @property
    def name(self) -> str:
        """Return the stem of its file names."""
        return f"round-{self.round:05}-client-{self.client}"


# -- writing


def write_capture(directory: Path, capture: Capture, before: Packed | None = None) -> int:
    """Write a capture atomically and return the bytes added; `before` is `pack_before(capture)`, packed once for many clients."""
    check_capture(capture, capture.name)
    given, sent = before or pack_before(capture), pack(capture.sent, f"{capture.name}: sent")
    shared = f"before-{given.sha256}{SUFFIX}"
    text = _lines(_about(capture, shared, given, sent))
    stem = f"{directory}{os.sep}{capture.name}"
    added = len(sent.data) + len(text)
    with clear_errors(directory, f"{capture.name} is not kept"):
        if not os.path.exists(directory / shared):
            directory.mkdir(parents=True, exist_ok=True)
            _put(f"{directory}{os.sep}{shared}", given.data)
            added += len(given.data)
        _write(stem + SUFFIX, sent.data)  # not referenced until the JSON exists
        _put(stem + ".json", text)
    return added


def pack_before(capture: Capture) -> Packed:
    """Return the weights that a client received, in file format."""
    return pack(capture.before, f"{capture.name}: before")


def _put(path: str, data: bytes) -> None:
    """Write a file atomically but without fsync, because training waits; after a power cut the SHA-256 rejects a short file."""
    _write(path + PART, data)
    try:
        os.replace(path + PART, path)
    except BaseException:
        os.unlink(path + PART)
        raise


def _write(path: str, data: bytes) -> None:
    """Write a new file in the place of an old one or of a planted link; remove it if that fails."""
    Path(path).unlink(missing_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(data)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def _lines(about: Mapping[str, object]) -> bytes:
    """Return a JSON object with one field per line: readable, and faster than indented JSON."""
    fields = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in about.items())
    return "{{\n {}\n}}\n".format(",\n ".join(fields)).encode()


def _about(capture: Capture, shared: str, before: Packed, sent: Packed) -> dict[str, object]:
    return {
        "format": FORMAT,
        "round": capture.round,
        "client": capture.client,
        "partition": capture.partition,
        "examples": capture.examples,
        "shares": capture.shares,
        "config": dict(capture.config),
        "parameters": before.shapes,
        "before": {"file": shared, "sha256": before.sha256},
        "sent": {"file": f"{capture.name}{SUFFIX}", "sha256": sent.sha256},
    }


# -- reading


def list_captures(directory: Path) -> list[Path]:
    """Return the JSON files of a directory of captures, by round and client; an empty directory is an error."""
    if not directory.is_dir():
        raise InputError(f"{directory} is no directory of captures")
    paths = sorted(path for path in directory.glob("*.json") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"{directory} contains no capture (a .json file with two safetensors files)")
    return paths


def read_capture(path: Path) -> Capture:
    """Return the capture that a JSON file describes, fully checked."""
    path = plain_file(path.parent, path.name, "the capture")
    about = read_text(path)
    if about.get("format") != FORMAT:
        raise InputError(f"{path} is no capture: 'format' must be {FORMAT!r}, got {about.get('format')!r:.60}")
    if unknown := sorted(set(about) ^ FIELDS):
        raise InputError(
            f"{path}: a capture has the fields {', '.join(sorted(FIELDS))}; {unknown[0]!r:.60} is at fault"
        )
    tensors = {part: _tensors(path, part, about[part]) for part in ("before", "sent")}
    capture = Capture(
        round=cast(int, about["round"]),
        client=cast(str, about["client"]),
        partition=cast(int | None, about["partition"]),
        examples=cast(int | None, about["examples"]),
        shares=cast(str, about["shares"]),
        config=cast(Mapping[str, Plain], about["config"]),
        before=tensors["before"],
        sent=tensors["sent"],
    )
    check_capture(capture, str(path))
    if about["parameters"] != {name: list(value.shape) for name, value in capture.before.items()}:
        raise InputError(f"{path}: 'parameters' does not say what 'before' holds")
    if path.stem != capture.name:
        raise InputError(f"{path} holds {capture.name}: it was renamed or copied from elsewhere")
    return capture


def read_captures(directory: Path, *, most: int | None = None) -> list[Capture]:
    """Return at most `most` captures of a directory by round and client; the first bad one is an error."""
    return [read_capture(path) for path in list_captures(directory)[:most]]


def _tensors(path: Path, part: str, entry: object) -> Tree:
    if not isinstance(entry, dict) or set(entry) != {"file", "sha256"}:
        raise InputError(f"{path}: {part!r} must be an object with 'file' and 'sha256'")
    if not isinstance(entry["sha256"], str) or not SHA256.fullmatch(entry["sha256"]):
        raise InputError(f"{path}: {part!r} needs a SHA-256 of 64 hexadecimal digits")
    file = plain_file(path.parent, entry["file"], f"{part!r} of {path.name}")
    return read_tensors(file, sha256=entry["sha256"])


# -- what must hold


def check_capture(capture: Capture, where: str) -> None:
    """Refuse a capture with invalid fields or parts that do not match; `pack` and `read_tensors` check that values are finite."""
    _whole(where, "round", capture.round)
    for name in ("partition", "examples"):
        if getattr(capture, name) is not None:
            _whole(where, name, getattr(capture, name))
    if not isinstance(capture.client, str) or not CLIENT.fullmatch(capture.client):
        raise InputError(f"{where}: 'client' must be 1 to 64 letters, digits, - or _, got {capture.client!r:.80}")
    if capture.shares not in SHARES:
        raise InputError(f"{where}: 'shares' must be one of {', '.join(SHARES)}, got {capture.shares!r:.80}")
    if not isinstance(capture.config, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str | int | float | bool) for name, value in capture.config.items()
    ):
        raise InputError(f"{where}: 'config' must hold texts, numbers and truth values under names")
    if not capture.sent:
        raise InputError(f"{where}: nothing was sent")
    for name, value in capture.sent.items():
        got = capture.before.get(name)
        if got is None or got.shape != value.shape:  # types may differ: the average of integers is a float
            had = "nothing" if got is None else str(tuple(got.shape))
            raise InputError(f"{where}: sent {name!r:.80} is {tuple(value.shape)}, before there was {had} of that name")


def check_model(capture: Capture, shapes: Mapping[str, tuple[int, ...]], model: str, *, needed: frozenset[str]) -> None:
    """Refuse a capture of another model: `shapes` are those of parameters and buffers, `needed` must have been sent."""
    for name, value in capture.before.items():
        if name not in shapes:
            raise InputError(f"{capture.name} is from another model: {model} has no {name!r:.80}")
        if tuple(value.shape) != tuple(shapes[name]):
            raise InputError(
                f"{capture.name} is from another model: {name!r:.80} is {tuple(value.shape)}, "
                f"in {model} it is {tuple(shapes[name])}"
            )
    if missing := sorted(needed - set(capture.sent)):
        raise InputError(
            f"{capture.name} is from another model, or part of it was not sent: it lacks {missing[0]!r:.80}"
        )


def _whole(where: str, name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < MOST_COUNT:
        raise InputError(f"{where}: {name!r} must be a whole number of at least 0, got {value!r:.80}")


ALIGNED = 8
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors as the bytes of a safetensors file, their SHA-256, and the shape of each tensor."""

    data: bytes
    sha256: str
    shapes: Mapping[str, list[int]]

    __repr__ = short_repr


def pack(tree: Tree, what: str) -> Packed:
    """Return tensors in file format; refuse NaN, infinity and unsupported types. `what` names them in errors."""
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
    """Return the values of a tensor as little-endian bytes."""
    import numpy as np
    import torch

    if _dtype(value) is None:
        raise InputError(f"{where} is {value.dtype}; a capture holds {', '.join(NAMES)}")
    flat = value.detach().cpu().reshape(-1)
    if flat.dtype is torch.bfloat16:  # not in numpy
        finite, plain = bool(flat.isfinite().all()), flat.view(torch.int16).numpy()
    else:
        plain = flat.numpy()
        finite = bool(np.isfinite(plain).all())
    if not finite:
        raise InputError(f"{where} holds NaN or infinity")
    return (plain if sys.byteorder == "little" else plain.byteswap()).tobytes()


def _dtype(value: Tensor) -> str | None:
    """Return the safetensors name of a tensor's type; None if captures do not support it."""
    return NAMES.get(str(value.dtype).removeprefix("torch."))
