"""Captured updates: what a real server saw of one client in one round, as two safetensors files and a JSON text.

    round-00003-client-7.json            what it is; written last and whole, so a capture is there whole or not at all
    round-00003-client-7.safetensors     what the client sent
    before-1f0c...e2.safetensors         the weights the client got; one file for all clients that got the same

Whoever reads captures need not trust who wrote them: names of other directories, links, pickles, headers that lie, shapes
that do not fit and numbers that are not finite are refused in one line each (see `untrusted`).
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
from typing import TYPE_CHECKING, Any

from leakscope.core.errors import InputError
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
    """One client's update of one round: the weights it got (`before`) and what it sent (new weights, or a gradient).

    `partition` and `examples` are None where the client did not tell. `config` is what the server told the client.
    """

    round: int
    client: str
    before: Tree
    sent: Tree
    shares: str = "weights"
    partition: int | None = None
    examples: int | None = None
    config: Mapping[str, Plain] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its files, without an ending."""
        return f"round-{self.round:05}-client-{self.client}"


# -- writing


def write_capture(directory: Path, capture: Capture, before: Packed | None = None) -> int:
    """Write a capture, whole or not at all, and return the bytes that were added to the directory.

    `before` is `pack_before(capture)`, for whoever writes many captures of the same weights.
    """
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
        _write(stem + SUFFIX, sent.data)  # nothing refers to it before the JSON is there, whole
        _put(stem + ".json", text)
    return added


def pack_before(capture: Capture) -> Packed:
    """Return the weights that a client got, as they are written."""
    return pack(capture.before, f"{capture.name}: before")


def _put(path: str, data: bytes) -> None:
    """Write a file, whole or not at all, without waiting for the disk: training waits for this.

    A power cut may leave a file short; its SHA-256 in the JSON then refuses it.
    """
    _write(path + PART, data)
    try:
        os.replace(path + PART, path)
    except BaseException:
        os.unlink(path + PART)
        raise


def _write(path: str, data: bytes) -> None:
    """Write a file; leave none behind if that fails."""
    try:
        with open(path, "wb") as file:
            file.write(data)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def _lines(about: Mapping[str, Any]) -> bytes:
    """Return a JSON object with a line for each field: to be read by eye, and quick (an indented one is not)."""
    fields = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in about.items())
    return "{{\n {}\n}}\n".format(",\n ".join(fields)).encode()


def _about(capture: Capture, shared: str, before: Packed, sent: Packed) -> dict[str, Any]:
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
    """Return the JSON files of a directory of captures, by round and client; refuse a directory without any."""
    if not directory.is_dir():
        raise InputError(f"{directory} is no directory of captures")
    paths = sorted(path for path in directory.glob("*.json") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"{directory} holds no capture (a .json file beside safetensors files)")
    return paths


def read_capture(path: Path) -> Capture:
    """Return the capture that a JSON file describes, after checking everything about it."""
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
        round=about["round"],
        client=about["client"],
        partition=about["partition"],
        examples=about["examples"],
        shares=about["shares"],
        config=about["config"],
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
    """Return the captures of a directory by round and client, at most so many; the first bad one is refused."""
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
    """Refuse a capture whose fields make no sense or whose parts do not fit each other.

    That its numbers are finite is checked where they are packed and where they are read.
    """
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
        if (
            got is None or got.shape != value.shape
        ):  # types may differ: an average of whole numbers is handed out as floats
            had = "nothing" if got is None else str(tuple(got.shape))
            raise InputError(f"{where}: sent {name!r:.80} is {tuple(value.shape)}, before there was {had} of that name")


def check_model(capture: Capture, shapes: Mapping[str, tuple[int, ...]], model: str, *, needed: frozenset[str]) -> None:
    """Refuse a capture from another model: `shapes` are those of parameters and buffers, `needed` must have been sent."""
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
