"""A local server for the page of a growing run: `/` polls `/state` and reloads `/page` when more chunks have landed."""

from __future__ import annotations

import contextlib
import html
import json
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from leakscope.core.errors import InputError
from leakscope.report.page import render, sha256_source
from leakscope.report.page_data import Page
from leakscope.report.run_page import page_of_run
from leakscope.store import Run
from leakscope.store.untrusted import foreign_content

HOST = "127.0.0.1"
EVERY = 2000
SECONDS = 10.0  # without a byte, after which a connection ends
MOST_CONNECTIONS = 32
SCRIPT = f"""
let seen = null;
async function look() {{
  try {{
    const state = await (await fetch("/state", {{cache: "no-store"}})).json();
    document.getElementById("state").textContent = state.words;
    if (seen !== null && seen !== state.chunks) document.getElementById("page").src = "/page?" + state.chunks;
    seen = state.chunks;
  }} catch (error) {{
    document.getElementById("state").textContent = "the server has ended";
  }}
}}
look(); setInterval(look, {EVERY});
"""
STYLE = (
    "html,body{margin:0;height:100%;background:Canvas;color:CanvasText;font:14px system-ui}#state{padding:4px 12px}"
    "iframe{border:0;width:100%;height:calc(100% - 28px)}"
)


def page_of_directory(directory: Path, *, command: str) -> Page:
    """Return the page of the run in a directory, with the class names of available data sets."""
    from leakscope.report.row_tables import row_tables
    from leakscope.scenario.encodings import class_names_of

    run = Run.open(directory)
    with foreign_content(directory):
        page = page_of_run(run, command=command, class_names=class_names_of(run.cells()))
        return replace(page, rows=row_tables(run))


def make_server(directory: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for the page of a run on 127.0.0.1; the caller starts and closes it."""
    run = Run.open(directory)
    if not 0 <= port < 2**16:
        raise InputError(f"--port must lie in 0..65535, got {port}")
    handler = type("Handler", (_Handler,), {"live": _Live(run)})
    try:
        return _Server((HOST, port), handler)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}); --port 0 takes a free one") from None


class _Server(ThreadingHTTPServer):
    """A server of at most `MOST_CONNECTIONS`: one more is refused and ends the oldest, so that idle ones keep nobody out for long."""

    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: dict[object, None] = {}

    def verify_request(self, request: object, client_address: object) -> bool:
        del client_address
        oldest = next(iter(tuple(self.connections)), None)
        if len(self.connections) >= MOST_CONNECTIONS and isinstance(oldest, socket.socket):
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
            return False
        self.connections[request] = None
        return True

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        self.connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a connection broke, and the terminal belongs to whoever started the server."""


class _Live:
    """The page as of the last landed chunk, rebuilt only when there are more."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lock = threading.Lock()
        self.rendered: tuple[int, bytes] | None = None

    def chunks(self) -> int:
        return len(self.run.chunks())

    def page(self) -> bytes:
        with self.lock:
            number = self.chunks()
            if self.rendered is None or self.rendered[0] != number:
                page = page_of_directory(self.run.directory, command=f"leakscope serve {self.run.directory}")
                self.rendered = (number, render(page).encode())
            return self.rendered[1]

    def state(self) -> bytes:
        chunks = self.run.chunks()
        trials = sum(int(str(chunk["trials"])) for chunk in chunks)
        return json.dumps(
            {"chunks": len(chunks), "words": f"{trials} trials in {len(chunks)} chunks are finished"}
        ).encode()

    def frame(self) -> bytes:
        title = html.escape(f"leakscope: {self.run.directory.name}")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
            f'<body><div id="state" role="status">…</div><iframe id="page" title="{title}" src="/page"></iframe>'
            f"<script>{SCRIPT}</script></body></html>"
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    live: _Live
    timeout = SECONDS
    server_version = "leakscope"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._host_is_ours():
            return
        try:
            self._respond(self.path.split("?")[0])
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # a run that was removed or damaged may fail in any way while its page is made
            self.send_error(500, "the run cannot be shown", f"{type(error).__name__}: {error}")

    def _respond(self, path: str) -> None:
        if path == "/":
            policy = (
                f"default-src 'none'; style-src 'sha256-{sha256_source(STYLE)}'; script-src 'sha256-{sha256_source(SCRIPT)}'; "
                "connect-src 'self'; frame-src 'self'"
            )
            self._answer(self.live.frame(), "text/html; charset=utf-8", policy)
        elif path == "/page":
            self._answer(self.live.page(), "text/html; charset=utf-8")
        elif path == "/state":
            self._answer(self.live.state(), "application/json")
        else:
            self.send_error(404, "not found; the page is at /")

    def _host_is_ours(self) -> bool:
        """Refuse any other Host header, so that no foreign web page can read results through a name that resolves here."""
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}"):
            return True
        self.send_error(403, "this server answers to 127.0.0.1 only")
        return False

    def _answer(self, body: bytes, kind: str, policy: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to whoever started the server."""
