"""How a connection to the engine learns the version of its API."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable


@contextmanager
def engine(ping_headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A server that knows only these two questions: its address, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_ping = self.path == "/_ping"
            body = b"OK" if is_ping else b'{"ApiVersion": "1.30"}'
            self.send_response(200 if is_ping or self.path == "/version" else 404)
            for name, value in (ping_headers if is_ping else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("headers", "version", "questions"),
    [
        ({"Api-Version": "1.31"}, "1.31", ["/_ping"]),
        ({}, "1.30", ["/_ping", "/version"]),
    ],
)
def test_a_ping_says_the_version(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], version: str, questions: list[str]
) -> None:
    """An engine is asked for `/version`, which takes it longer, only if its ping does not say."""
    with engine(headers) as (address, asked):
        monkeypatch.setenv("DOCKER_HOST", address)
        connection = Engine().connect()
        try:
            with connection.api("ask") as client:
                assert client.api_version == version
        finally:
            connection.close()
    assert asked == questions


def test_an_engine_that_is_silent_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes a connection and does not answer is waited for as long as is said."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EngineUnavailable):
            Engine(timeout_s=1).connect()
