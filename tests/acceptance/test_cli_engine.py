"""The Docker engine goes away while trials run."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from experiments import HOLDING, HOLDS_CAREFUL, PASSING, RIGHT, EngineLog, Project

pytestmark = pytest.mark.docker


class Gateway:
    """A socket that passes everything on to the real engine, until it is closed."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                self._sockets += [client, engine]
                engine.connect(engine_socket())
                for pair in ((client, engine), (engine, client)):
                    self._threads.append(threading.Thread(target=_pass_on, args=pair))
                    self._threads[-1].start()

    def close(self) -> None:
        """Cut every connection; return when nothing of it is left."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        for held in self._sockets:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for held in (self._listener, *self._sockets):
            held.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def engine_socket() -> str:
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


def test_a_run_survives_its_engine(
    tmp_path: Path,
    image_ids: dict[str, str],
    engine_log: EngineLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dispatch stops with the reason, exit code 3; with the engine back, nothing is run again."""
    project = Project(tmp_path, {"a": HOLDS_CAREFUL, "b": RIGHT}, max_concurrency=2)
    gateway = Gateway(tmp_path / "engine.sock")
    with monkeypatch.context() as patched:
        patched.setenv("DOCKER_HOST", gateway.address)
        coordinator = project.run("orphaned", *HOLDING)
    with closing(coordinator):
        coordinator.until("trial_finished", times=3)
        gateway.close()
        assert coordinator.finish() == 3, coordinator.stderr
    ended = coordinator.events[-1]
    assert (ended["complete"], ended["stopped"], ended["exit_code"]) == (False, False, 3)
    assert ended["trouble"]
    assert "warning" in coordinator.kinds()
    assert list(project.running("orphaned")) == [(0, 1)]

    with closing(project.resume("orphaned", *PASSING)) as resumed:
        resumed.until("slot_dispatched")
        project.open_gate("orphaned", 0)
        assert resumed.finish() == 0, resumed.stderr
    assert [status for _, status in project.rows("orphaned")["slots"]] == ["completed"] * 4
    assert engine_log.starts(project, "orphaned") == {(idx, 1): 1 for idx in range(4)}
    project.check_whole("orphaned")
