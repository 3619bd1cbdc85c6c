"""A Docker engine that belongs to a test: it can be stopped, restarted and starved of disk."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trial_kit import BUSYBOX

PATIENCE_S = 30


class OwnEngine:
    """A `dockerd` with folders and a socket of its own, and with labledger's smallest image."""

    def __init__(self, folder: Path, sockets: Path, root: Path) -> None:
        self.address = f"unix://{sockets / 'engine.sock'}"
        self._folder = folder
        self._sockets = sockets
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folder = self._folder
        words = ["dockerd", "--host", self.address, "--data-root", self._root]
        words += ["--exec-root", self._sockets / "exec", "--pidfile", folder / "pid"]
        words += ["--bridge", "none", "--iptables=false", "--ip-masq=false"]
        words += ["--shutdown-timeout", "1"]
        with (folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while self.docker("version", check=False).returncode != 0:
            if time.monotonic() > deadline:
                pytest.fail(f"dockerd did not answer: {(folder / 'dockerd.log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the engine, as its service would be; its containers end with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command = ["docker", "--host", self.address, *words]
        return subprocess.run(command, capture_output=True, check=check)

    def load_image(self) -> None:
        """Give it the image that the machine's engine has."""
        saved = subprocess.run(["docker", "save", BUSYBOX], stdout=subprocess.PIPE, check=True)
        command = ["docker", "--host", self.address, "load"]
        subprocess.run(command, input=saved.stdout, stdout=subprocess.DEVNULL, check=True)

    def clear(self) -> None:
        """Leave no process, mount or folder of it behind."""
        if self._process is not None:
            names = self.docker("ps", "-aq", check=False).stdout.decode().split()
            if names:
                self.docker("rm", "-f", *names, check=False)
        self.stop()
        for place in self._mounts():
            subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self._root, ignore_errors=True)

    def _mounts(self) -> list[str]:
        """What it has left mounted, the innermost first."""
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return [place for place in reversed(mounts) if place.startswith(f"{self._root}/")]


@contextlib.contextmanager
def own_engine(folder: Path, root: Path | None = None) -> Iterator[OwnEngine]:
    """An engine that runs with folders below `folder`; its storage is at `root`. Needs root."""
    folder.mkdir(exist_ok=True)
    # A socket's path may only be short.
    with tempfile.TemporaryDirectory(prefix="engine-") as sockets:
        made = OwnEngine(folder, Path(sockets), root or folder / "root")
        try:
            made.start()
            made.load_image()
            yield made
        finally:
            made.clear()
