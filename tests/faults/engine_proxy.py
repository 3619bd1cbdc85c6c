"""A way to the Docker engine that a test can cut: a socket that passes everything on, or not."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


class EngineProxy:
    """Listens at `address`. While it is cut, nobody is answered and no connection lasts."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self._path = path
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.mend()

    def mend(self) -> None:
        """Answer again."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Go away, as an engine that is stopped does: mid-answer, with the socket file gone."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._path.unlink()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(ENGINE)
            with self._lock:
                self._open |= {near, far}
            answers = threading.Thread(target=_pass, args=(far, near))
            answers.start()
            _pass(near, far)
            answers.join()
            with self._lock:
                self._open -= {near, far}


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def engine_proxy(path: Path) -> Iterator[EngineProxy]:
    proxy = EngineProxy(path)
    try:
        yield proxy
    finally:
        proxy.cut()
