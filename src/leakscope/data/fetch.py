"""Downloading the official files: streamed, resumed, checked, and moved into place atomically."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.core.registry import lookup
from leakscope.data.files import one_line
from leakscope.data.loading import cache_directory
from leakscope.data.sources import SOURCES, Download

Progress = Callable[[int, int | None, str], None]
_CHUNK = 1 << 16
_SECONDS = 30.0


def fetch(
    name: str,
    progress: Progress = lambda *_: None,
    base_url: str | None = None,
    directory: Path | str | None = None,
) -> Path:
    """Download the official files of a data set and return their folder, `directory`/`name`; the cache if no `directory` is given.

    Complete files are not fetched again; partial ones are resumed. `progress(done_bytes, total_bytes_or_None, file_name)` is
    called after every block. `base_url` names a mirror with the same files.
    """
    source = lookup(SOURCES, name, "data set")
    if not source.downloads:
        why = "it comes with the package" if source.bundled else f"get it from {source.origin}"
        can = ", ".join(other for other, s in SOURCES.items() if s.downloads)
        raise InputError(f"data set {name!r} cannot be fetched: {why} (fetchable: {can})")
    folder = (Path(directory) if directory is not None else cache_directory()) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in source.downloads:
            url = download.url if base_url is None else f"{base_url.rstrip('/')}/{download.name}"
            _fetch_file(url, download, folder / download.name, progress)
    except OSError as error:  # network errors are already InputErrors: this is the disk
        raise InputError(f"cannot write to {folder}: {one_line(error)}") from error
    return folder


def _fetch_file(url: str, download: Download, target: Path, progress: Progress) -> None:
    """Fetch `target` unless a file with the right checksum exists; resume a partial one."""
    if target.exists() and _md5(target) == download.md5:
        progress(target.stat().st_size, target.stat().st_size, target.name)
        return
    part = target.with_name(f"{target.name}.part")
    if not (part.exists() and _md5(part) == download.md5):
        _stream(url, part, progress)
    digest = _md5(part)
    if digest != download.md5:
        part.unlink()
        raise InputError(f"{url}: checksum must be md5 {download.md5}, got {digest}; deleted, fetch it again")
    os.replace(part, target)


def _stream(url: str, part: Path, progress: Progress) -> None:
    """Append the rest of the file to `part`, or rewrite it if the server does not resume."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"a download address must start with http:// or https://, got {url}")
    have = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, have)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise InputError(f"cannot fetch {url}: the server answers {error.code} {error.reason}") from error
        part.unlink()  # longer than the file: start again
        return _stream(url, part, progress)
    with response:
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if response.status == 206 and continues else 0  # a server may ignore the range and send everything
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        done = _write(url, response, part, start, total, progress)
    if total is not None and done < total:
        raise InputError(f"{url}: cut off after {done} of {total} bytes; fetch again to continue")
    return None


def _open(url: str, have: int) -> http.client.HTTPResponse:
    """Return the server's response, requesting the rest of a partial file; being offline is an InputError."""
    request = urllib.request.Request(url, headers={"User-Agent": "leakscope", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)  # URLError wraps the cause
        raise InputError(f"cannot reach {url}: {one_line(cause)}; check the network connection") from error
    return response


def _write(
    url: str, response: http.client.HTTPResponse, part: Path, start: int, total: int | None, progress: Progress
) -> int:
    """Write the response body into `part` from byte `start` on and return the file's length."""
    done, name = start, part.name.removesuffix(".part")
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        progress(done, total, name)
        while block := _receive(url, response, done):
            file.write(block)
            done += len(block)
            progress(done, total, name)
    return done


def _receive(url: str, response: http.client.HTTPResponse, done: int) -> bytes:
    """Return the next block of the body."""
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: cut off after {done} bytes: {one_line(error)}; fetch again to continue") from error


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
