"""Reading files, with every error reported as one clear line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from leakscope.core.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


def one_line(error: object) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if it is gzip; missing, unreadable and broken files raise InputError."""
    if path.is_dir():
        raise InputError(f"{path}: a file is needed, this is a directory")
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield raw
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read to its end: {one_line(error)}") from error


def read_up_to(stream: IO[bytes], limit: int) -> bytes:
    """Return the rest of a stream, at most `limit` bytes; a wrong header cannot make this allocate more."""
    blocks: list[bytes] = []
    left = limit
    while left > 0 and (block := stream.read(min(left, _CHUNK))):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def directory(path: Path) -> Path:
    """Return `path` if it is a directory, else raise."""
    if not path.is_dir():
        raise InputError(f"{path}: {'a directory is needed, this is a file' if path.exists() else 'no such directory'}")
    return path
