"""Files that appear whole or not at all, and still stand after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PART = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write; it takes the place of `path` when the block ends well, and vanishes when it does not.

    The bytes go to `path` + '.part' first and reach the disk before the rename, the rename before this returns.
    """
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk: without this a rename may be lost in a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
