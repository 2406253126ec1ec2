"""Reading JSON and safetensors files from untrusted sources, under limits; nothing in a file is executed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from leakscope.core.errors import InputError

if TYPE_CHECKING:
    from leakscope.core.tree import Tree

MOST_TEXT = 1 << 20
MOST_HEADER = 8 << 20
MOST_BYTES = 4 << 30
MOST_TENSORS = 100_000
MOST_RANK = 16
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
PICKLES = (b"\x80", b"PK\x03\x04", b"(dp", b"(lp", b"cposix")


@contextmanager
def foreign_content(directory: Path) -> Iterator[None]:
    """Turn the errors of numbers and tensors that do not fit together into one line: a run may come from anyone."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {_line(error)}"
        raise InputError(f"{directory} holds values that do not fit together ({reason})") from error


def plain_file(directory: Path, name: object, kind: str) -> Path:
    """Return the path of a regular file directly in `directory`; refuse names that lead elsewhere, links and devices."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        raise InputError(f"{directory}: {kind} must name a file of this directory, got {name!r:.80}")
    path = directory / name
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is a link or no plain file; captures are plain files")
    return path


def read_text(path: Path) -> dict[str, object]:
    """Return the JSON object in a file; refuse one that is too long, too deeply nested, repeats a name or holds NaN."""
    data = read_bytes(path, MOST_TEXT)
    try:
        content = json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once
        )
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable JSON ({_line(error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a file of at most `most` bytes."""
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{path} has {size:,} bytes, more than the {most:,} allowed")
        with path.open("rb") as file:
            return file.read(most + 1)[:most]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def read_tensors(path: Path, *, sha256: str | None = None, most: int = MOST_BYTES) -> Tree:
    """Return the tensors of a safetensors file, all finite; `sha256` is the expected hash of the file, if known."""
    data = read_bytes(path, most)
    _check_header(path, data)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(f"{path} is not as it was written: its SHA-256 differs")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is no valid safetensors file ({_line(error)})") from None
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{path}: {name!r:.80} holds NaN or infinity")
    return tensors


def _check_header(path: Path, data: bytes) -> None:
    """Check the header (8 bytes of length, then JSON: name -> dtype, shape, offsets) before the library reads the file."""
    if len(data) < 8:
        raise InputError(f"{path} is no safetensors file: it has {len(data)} bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(MOST_HEADER, len(data) - 8):
        if data.startswith(PICKLES):
            raise InputError(f"{path} is a pickle or a torch.save file; only safetensors is read, pickles can run code")
        raise InputError(
            f"{path}: the header claims {length:,} bytes; the file has {len(data) - 8:,}, and {MOST_HEADER:,} are allowed"
        )
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the header is not readable JSON ({_line(error)})") from None
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise InputError(f"{path}: the header must be an object of at most {MOST_TENSORS:,} tensors")
    header.pop("__metadata__", None)
    room = len(data) - 8 - length
    total = sum(_size(path, name, entry, room) for name, entry in header.items())
    if total != room:
        raise InputError(f"{path}: the header describes {total:,} bytes of numbers, the file holds {room:,}")


def _size(path: Path, name: str, entry: object, room: int) -> int:
    """Return the bytes of a tensor, after checking its header entry."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, place = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise InputError(f"{path}: {name!r:.80} has dtype {dtype!r:.40}, which is none of {', '.join(BYTES)}")
    if not _wholes(shape) or len(shape) > MOST_RANK:
        raise InputError(f"{path}: {name!r:.80} has no readable shape ({shape!r:.40})")
    if not _wholes(place) or len(place) != 2 or not place[0] <= place[1] <= room:
        raise InputError(f"{path}: {name!r:.80} lies outside the file ({place!r:.40})")
    size = math.prod(shape) * BYTES[dtype]
    if size != place[1] - place[0]:
        raise InputError(
            f"{path}: {name!r:.80} of shape {shape!r:.80} needs {size} bytes, the header gives it {place[1] - place[0]}"
        )
    return size


def _wholes(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a list of non-negative integers (booleans excluded)."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**48 for n in value)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name occurs twice")
    return mapping


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:120]
