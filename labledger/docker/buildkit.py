"""Build an image with BuildKit, by the `docker` command.

BuildKit needs a client of its own, which the Python library is not. A `docker` command has it if it
has the plugin buildx, or is older than 23. It gets the same context as the engine's own builder, as
a tar. Ended by a signal, it stops its build.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from labledger.docker.image_builds import BuildFailed, EngineBuild, Interruption
from labledger.images.build_context import ContextChanged, UnusableContext
from labledger.images.image_names import LABEL

_BUILT_IN_UNTIL = 23
"""The first version of the command that has no client of its own."""
_VERSION = re.compile(r"version (\d+)\.")
_PROBE_TIMEOUT_S = 20
_ENVIRONMENT = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
_RECENT_ENGINE = 23
"""The first engine whose BuildKit knows Dockerfile 1.4."""


@lru_cache(maxsize=1)
def find_client() -> str | None:
    """Return the first `docker` command of this machine that can use BuildKit; None without one."""
    commands = (Path(folder) / "docker" for folder in os.get_exec_path())
    usable = (str(command) for command in commands if os.access(command, os.X_OK))
    return next(filter(_has_buildkit, dict.fromkeys(usable)), None)


def _has_buildkit(command: str) -> bool:
    try:
        if _output(command, "buildx", "version") is not None:
            return True
        version = _VERSION.search(_output(command, "--version") or "")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return version is not None and int(version[1]) < _BUILT_IN_UNTIL


def _output(*words: str) -> str | None:
    ended = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S
    )
    return ended.stdout if ended.returncode == 0 else None


def knows_recent_dockerfiles(engine_version: str) -> bool:
    """Return whether the BuildKit of an engine knows Dockerfile 1.4 without fetching it."""
    major = engine_version.partition(".")[0]
    return not major.isdigit() or int(major) >= _RECENT_ENGINE


def build_with_client(client: str, build: EngineBuild, interruption: Interruption) -> Iterator[str]:
    """Build an image as `build_image` does, and yield the output of the client.

    Raises `BuildFailed` and `Stopped`.
    """
    source = build.source
    words = [client, "build", "--progress=plain", "-t", build.ref, "-f", source.dockerfile]
    words += ["--label", f"{LABEL}={build.digest}"]
    words += ["--target", source.target] if source.target else []
    args = (source.args or {}).items()
    words += [word for key, value in args for word in ("--build-arg", f"{key}={value}")]
    process = subprocess.Popen(
        [*words, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **_ENVIRONMENT},
        start_new_session=True,
    )
    upload = _Upload(process, build)
    upload.start()
    assert process.stdout is not None
    try:
        with interruption.watch_process(process):
            for line in process.stdout:
                yield line.decode("utf-8", "replace")
            status = process.wait()
    finally:
        # Nobody reads its output any more.
        process.kill()
        process.wait()
        upload.join()
        process.stdout.close()
    if upload.problem is not None:
        raise BuildFailed(upload.problem)
    if status != 0:
        raise BuildFailed(f"`{shlex.join([client, 'build'])}` ended with status {status}")


class _Upload(threading.Thread):
    """Sends the context of a build to the client, and ends the client if it has changed."""

    def __init__(self, process: subprocess.Popen[bytes], build: EngineBuild) -> None:
        super().__init__(daemon=True, name=f"context of {build.ref}")
        self.problem: str | None = None
        self._process = process
        self._build = build

    def run(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            for chunk in self._build.source.chunks(self._build.digest):
                stdin.write(chunk)
            stdin.flush()
        except (ContextChanged, UnusableContext) as error:
            self.problem = str(error)
            self._process.kill()
        except OSError:
            pass  # The client has ended, and says why.
        finally:
            with suppress(OSError):
                stdin.close()
