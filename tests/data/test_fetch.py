from __future__ import annotations

import gzip
import hashlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leakscope.core.errors import InputError
from leakscope.data.fetch import fetch
from leakscope.data.loading import load
from leakscope.data.sources import SOURCES, Download

BODY = bytes(i * 7 % 251 for i in range(300_000))
OTHER = b"the second file"


@dataclass
class Mirror:
    """A server on this machine: what it holds, how it misbehaves, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"one.bin": BODY, "two.bin": OTHER})
    ranges: bool = True
    length: bool = True
    cut: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wish = self.path.rsplit("/", 1)[1], self.headers.get("Range")
            mirror.asked.append((name, wish))
            body = mirror.files.get(name)
            if body is None:
                self.send_error(404)
                return
            start = int(wish.removeprefix("bytes=").rstrip("-")) if wish and mirror.ranges else 0
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if mirror.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start : mirror.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serve two files that a data set called toy consists of."""
    mirror = Mirror()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(mirror))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    mirror.url = f"http://127.0.0.1:{server.server_address[1]}/data"
    downloads = tuple(
        Download(f"{mirror.url}/{name}", hashlib.md5(body, usedforsecurity=False).hexdigest())
        for name, body in mirror.files.items()
    )
    monkeypatch.setitem(SOURCES, "toy", replace(SOURCES["mnist"], downloads=downloads))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield mirror
    server.shutdown()
    server.server_close()
    thread.join()


def complete(folder: Path) -> bool:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files == {"one.bin": BODY, "two.bin": OTHER}


def test_all_files_arrive_and_progress_is_told(mirror: Mirror, tmp_path: Path) -> None:
    told: list[tuple[int, int | None, str]] = []
    folder = fetch("toy", lambda *report: told.append(report), directory=tmp_path)
    assert folder == tmp_path / "toy"
    assert complete(folder)
    for name, body in mirror.files.items():
        done = [d for d, _, file in told if file == name]
        assert done[0] == 0
        assert done[-1] == len(body)
        assert done == sorted(done)
        assert {total for _, total, file in told if file == name} == {len(body)}
    assert len(told) > 4


def test_the_cache_is_the_default_place(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_CACHE", str(tmp_path / "cache"))
    assert fetch("toy") == tmp_path / "cache" / "toy"
    assert complete(tmp_path / "cache" / "toy")


def test_sound_files_are_not_fetched_again_and_damaged_ones_are(mirror: Mirror, tmp_path: Path) -> None:
    folder = fetch("toy", directory=tmp_path)
    mirror.asked.clear()
    fetch("toy", directory=tmp_path)
    assert mirror.asked == []
    (folder / "one.bin").write_bytes(BODY[:-1] + b"!")
    fetch("toy", directory=tmp_path)
    assert mirror.asked == [("one.bin", None)]
    assert complete(folder)


def test_a_cut_download_goes_on_where_it_stopped(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut = 100_000
    with pytest.raises(InputError, match="100000 of 300000 bytes"):
        fetch("toy", directory=tmp_path)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["one.bin.part"]
    mirror.cut = None
    mirror.asked.clear()
    told: list[int] = []
    folder = fetch("toy", lambda done, total, file: told.append(done), directory=tmp_path)
    assert mirror.asked == [("one.bin", "bytes=100000-"), ("two.bin", None)]
    assert told[0] == 100_000
    assert complete(folder)


def test_a_server_that_ignores_ranges_sends_all_again(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one.bin.part").write_bytes(b"x" * 299_999)
    mirror.ranges = False
    assert complete(fetch("toy", directory=tmp_path))
    assert mirror.asked[0] == ("one.bin", "bytes=299999-")


def test_a_part_that_is_whole_already_needs_no_server(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one.bin.part").write_bytes(BODY)
    assert complete(fetch("toy", directory=tmp_path))
    assert mirror.asked == [("two.bin", None)]


def test_a_part_longer_than_the_file_is_begun_again(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one.bin.part").write_bytes(BODY + b"more")
    assert complete(fetch("toy", directory=tmp_path))
    assert mirror.asked[:2] == [("one.bin", "bytes=300004-"), ("one.bin", None)]


def test_a_server_that_tells_no_length(mirror: Mirror, tmp_path: Path) -> None:
    mirror.length = False
    totals: set[int | None] = set()
    assert complete(fetch("toy", lambda done, total, file: totals.add(total), directory=tmp_path))
    assert totals == {None}
    (tmp_path / "toy" / "one.bin").unlink()
    mirror.cut = 1000
    with pytest.raises(InputError, match="checksum"):
        fetch("toy", directory=tmp_path)


def test_a_wrong_checksum_deletes_the_file(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["one.bin"] = BODY[:-1] + b"!"
    with pytest.raises(InputError, match=r"one.bin: checksum .*deleted"):
        fetch("toy", directory=tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_a_resumed_file_with_a_bad_beginning_is_deleted_and_then_comes_whole(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one.bin.part").write_bytes(b"bad")
    with pytest.raises(InputError, match="checksum"):
        fetch("toy", directory=tmp_path)
    assert complete(fetch("toy", directory=tmp_path))


def test_a_file_that_the_server_does_not_have(mirror: Mirror, tmp_path: Path) -> None:
    del mirror.files["two.bin"]
    with pytest.raises(InputError, match=r"two.bin: .*404"):
        fetch("toy", directory=tmp_path)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["one.bin"]


def test_a_mirror_with_the_same_files(mirror: Mirror, tmp_path: Path) -> None:
    assert complete(fetch("toy", base_url=f"{mirror.url}/elsewhere/", directory=tmp_path))


def test_what_was_fetched_can_be_loaded(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = gzip.compress(struct.pack(">IIII", 0x0803, 2, 3, 3) + bytes(range(18)))
    labels = gzip.compress(struct.pack(">II", 0x0801, 2) + b"\x07\x02")
    downloads = []
    for download in SOURCES["mnist"].downloads:
        body = mirror.files[download.name] = pictures if "images" in download.name else labels
        downloads.append(replace(download, md5=hashlib.md5(body, usedforsecurity=False).hexdigest()))
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], downloads=tuple(downloads)))
    fetch("mnist", base_url=mirror.url, directory=tmp_path)
    data = load("mnist", tmp_path)
    assert data.y_test.tolist() == [7, 2]
    assert data.x_train.ravel().tolist() == list(range(18))


def test_offline_is_one_clear_line(mirror: Mirror, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening: refuses every connection
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(InputError, match=f"cannot reach {address}") as caught:
            fetch("toy", base_url=address, directory=tmp_path)
    assert "\n" not in str(caught.value)
    assert "refused" in str(caught.value)


@pytest.mark.parametrize("address", ["file:///etc", "ftp://127.0.0.1", "nonsense"])
def test_only_http_is_fetched(mirror: Mirror, tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match="start with http"):
        fetch("toy", base_url=address, directory=tmp_path)


def test_a_directory_that_cannot_be_written(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file"):
        fetch("toy", directory=tmp_path / "file")


@pytest.mark.parametrize("name", ["fashion_mnist", "svhn"])
def test_what_cannot_be_fetched_says_why(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"'{name}' .*fashion_mnist_full, mnist"):
        fetch(name, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_downloads_is_well_formed() -> None:
    for name, source in SOURCES.items():
        for download in source.downloads:
            assert re.fullmatch(r"https?://[^ ]+/[^/ ]+", download.url), name
            assert re.fullmatch(r"[0-9a-f]{32}", download.md5), name
        if source.downloads:  # what is written last makes the folder count as complete
            last = source.downloads[-1].name
            assert any(f"{form.path}/{form.marker}".rstrip("/") == f"{name}/{last}" for form in source.forms), name
