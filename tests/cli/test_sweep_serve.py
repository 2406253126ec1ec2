"""`leakscope serve`: the page of a run while it grows, for this machine alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import TINY, leakscope, write
from leakscope.report.serving import MOST_CONNECTIONS, make_server


class Served:
    """A run, its scenario, and a server of its page."""

    def __init__(self, where: Path) -> None:
        self.file, self.run = where / "s.yaml", where / "r"
        self.grow(1)
        self.server = make_server(self.run, 0)
        self.port = int(self.server.server_address[1])

    def grow(self, trials: int) -> None:
        scenario: dict[str, Any] = {**TINY, "name": "growing", "trials": trials}
        output = leakscope("run", write(self.file, scenario), "--out", self.run, "-q", "--engine", "serial")
        assert output.code == 0

    def get(self, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, str]:
        """Return status, body and policy of an answer."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        line.putrequest(method, path, skip_host=True)
        line.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
        line.endheaders()
        answer = line.getresponse()
        body = answer.read().decode()
        line.close()
        return answer.status, body, answer.headers.get("Content-Security-Policy", "")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def test_the_frame_and_the_page_are_served(served: Served) -> None:
    status, frame, policy = served.get("/")
    assert status == 200
    assert 'src="/page"' in frame
    assert "default-src 'none'" in policy
    status, page, _ = served.get("/page?3")
    assert status == 200
    assert "growing" in page
    assert served.get("/", host=f"localhost:{served.port}")[0] == 200


def test_the_state_and_the_page_change_as_chunks_land(served: Served) -> None:
    before = json.loads(served.get("/state")[1])
    page = served.get("/page")[1]
    assert served.get("/page")[1] == page  # made once
    served.grow(2)
    after = json.loads(served.get("/state")[1])
    assert after["chunks"] == before["chunks"] + 1
    assert after["words"] != before["words"]
    assert served.get("/page")[1] != page


@pytest.mark.parametrize("path", ["/", "/page", "/state"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_any_other_host_is_refused(served: Served, path: str, host: str) -> None:
    status, body, _ = served.get(path, host=host.format(port=served.port))
    assert status == 403
    assert "growing" not in body


@pytest.mark.parametrize("path", ["/records.sqlite", "/../s.yaml", "/page/", "/favicon.ico", "/%2e%2e/s.yaml"])
def test_there_is_nothing_else(served: Served, path: str) -> None:
    assert served.get(path)[0] == 404


def test_nothing_can_be_sent(served: Served) -> None:
    assert served.get("/", method="POST")[0] == 501
    assert served.get("/", method="DELETE")[0] == 501


def test_only_this_machine_can_connect(served: Served) -> None:
    assert served.server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", served.port), timeout=5)  # another address of this very machine


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_bad_port_is_one_clear_line(served: Served, port: str) -> None:
    output = leakscope("serve", served.run, "--port", port)
    assert (output.code, output.out) == (2, "")
    assert re.search(r"--port .*0\.\.65535", output.err)


def test_a_port_in_use_is_one_clear_line(served: Served) -> None:
    output = leakscope("serve", served.run, "--port", served.port)
    assert (output.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith(f"leakscope: port {served.port} ")
    assert "--port 0" in line


@pytest.mark.slow
def test_idle_connections_keep_nobody_out(served: Served) -> None:
    before, most, deadline = threading.active_count(), 0, time.monotonic() + 20
    idle = []
    for _ in range(3 * MOST_CONNECTIONS):
        idle.append(socket.create_connection(("127.0.0.1", served.port), timeout=30))
        most = max(most, len(served.server.connections))
    status = 0
    while status != 200 and time.monotonic() < deadline:
        try:
            status = served.get("/state")[0]
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
    assert status == 200
    assert 1 < most <= MOST_CONNECTIONS
    while threading.active_count() > before + MOST_CONNECTIONS:  # a refused connection's thread ends a moment later
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for line in idle:
        line.close()


def test_a_connection_that_says_nothing_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    handler: Any = served.server.RequestHandlerClass
    assert 0 < handler.timeout <= 30
    monkeypatch.setattr(handler, "timeout", 0.2)
    for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line:
            line.sendall(sent)
            assert line.recv(1) == b""


def test_a_run_that_fails_is_an_answer_and_no_traceback(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> bytes:
        raise RuntimeError("the run is gone: \u2603")

    monkeypatch.setattr("leakscope.report.serving._Live.state", fail)
    monkeypatch.setattr("leakscope.report.serving._Live.page", lambda _: b"x" * 10**8)
    assert served.get("/state")[0] == 500
    reset = struct.pack("ii", 1, 0)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line:  # hangs up while it is answered
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        line.sendall(f"GET /page HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert line.recv(1)
    monkeypatch.undo()
    assert served.get("/state")[0] == 200
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.slow
def test_the_command_says_where_and_ctrl_c_ends_it_in_peace(served: Served) -> None:
    words = [sys.executable, "-u", "-m", "leakscope", "serve", str(served.run), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:")
        assert str(served.run) in line
        port = int(line.split(":")[2].split("/")[0])
        answer = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        answer.request("GET", "/state")
        assert answer.getresponse().status == 200
        answer.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out == "ended\n"
