"""Pull an image, or build it with the engine or with BuildKit, so that another thread can stop it.

The engine stops a build when its connection closes. BuildKit requires a `docker` command with
buildx, or one before version 23. The command gets the context as a tar, and a signal stops its
build.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from labledger.engine.build_context import LABEL, BuildContext, ContextChanged, UnusableContext
from labledger.engine.docker_config import reading_credentials
from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.host_programs import environment, programs_named

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The builder marks errors with colors."""
_CONNECT_TIMEOUT_S = 60
_MARGIN_S = 10
"""How many seconds beyond its time limit a silent build may take."""


class BuildFailed(LabLedgerError):
    """The engine could not pull or build the image."""


class Stopped(Exception):
    """Another thread stopped the pull or the build."""


class Interruption:
    """Stops a call of the engine from another thread by closing its connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.is_requested = False

    def request(self) -> None:
        """Stop the call: at once if its answer has begun, otherwise when it begins."""
        with self._lock:
            self.is_requested = True
            self._end_response()

    @contextmanager
    def watch(self, client: APIClient) -> Iterator[None]:
        """Make a client's calls in this block stoppable. Raises `Stopped` if one was stopped."""
        from urllib3.exceptions import HTTPError

        hooks = client.hooks["response"]
        hooks.append(self._began)
        try:
            self.check()
            yield
            self.check()
        # The library does not convert this error while it reads an answer.
        except HTTPError as error:
            self.check()
            raise EngineUnavailable(f"the connection to the engine broke: {error}") from error
        except Exception:
            self.check()
            raise
        finally:
            hooks.remove(self._began)
            with self._lock:
                if self._response is not None:
                    self._response.close()
                self._response = None

    @contextmanager
    def watch_process(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Make a process stoppable in this block. Raises `Stopped` if it was stopped."""
        with self._lock:
            self._process = process
            if self.is_requested:
                self._end_response()
        try:
            yield
        finally:
            with self._lock:
                self._process = None
        self.check()

    def check(self) -> None:
        """Raise `Stopped` if the call was stopped."""
        if self.is_requested:
            raise Stopped

    def _began(self, response: Response, *_: Any, **__: Any) -> None:
        with self._lock:
            self._response = response
            if self.is_requested:
                self._end_response()

    def _end_response(self) -> None:
        if self._process is not None:
            self._process.terminate()
        if self._response is not None:
            # The connection may be closed already, or may not support a shutdown.
            with suppress(OSError, ValueError):
                self._response.raw.shutdown()


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """A build of an image by the engine."""

    ref: str
    source: BuildContext
    digest: str
    """The digest of `source`, which becomes the image's label."""
    timeout_s: float


def pull_image(engine: Engine, ref: str, interruption: Interruption) -> Iterator[str]:
    """Pull an image and yield the engine's messages. Raises `BuildFailed` and `Stopped`."""
    action = f"pull image {ref}"
    with engine.api(action) as client, interruption.watch(client):
        with reading_credentials(action):
            messages = client.pull(ref, stream=True, decode=True)
        for message in messages:
            yield _output(message)


def build_image(engine: Engine, build: EngineBuild, interruption: Interruption) -> Iterator[str]:
    """Build, name and label an image, and yield the builder's output as it comes.

    No image gets the name unless the build succeeds. Raises `Stopped`, and `BuildFailed`, also if
    the context does not match its digest.
    """
    action = f"build image {build.ref}"
    try:
        with engine.api(action) as client, interruption.watch(client):
            with reading_credentials(action):
                messages = client.build(
                    fileobj=_until_stopped(build.source.chunks(build.digest), interruption),  # type: ignore[arg-type]
                    custom_context=True,
                    dockerfile=build.source.dockerfile,
                    tag=build.ref,
                    target=build.source.target,
                    buildargs=dict(build.source.args or {}),
                    labels={LABEL: build.digest},
                    rm=True,
                    forcerm=True,
                    decode=True,
                    timeout=(_CONNECT_TIMEOUT_S, build.timeout_s + _MARGIN_S),  # type: ignore[arg-type]
                )
            for message in messages:
                yield _output(message)
    except (ContextChanged, UnusableContext) as error:
        raise BuildFailed(str(error)) from error


def image_label(engine: Engine, ref: str) -> str | None:
    """Return the digest of a local image's build context, or None if the image has no label."""
    with engine.api(f"inspect image {ref}") as client:
        config: Mapping[str, Any] = client.inspect_image(ref).get("Config") or {}  # type: ignore[no-untyped-call]
    label = (config.get("Labels") or {}).get(LABEL)
    return None if label is None else str(label)


def _until_stopped(chunks: Iterator[bytes], interruption: Interruption) -> Iterator[bytes]:
    for chunk in chunks:
        interruption.check()
        if chunk:  # An empty chunk would end the upload.
            yield chunk


def _output(message: Any) -> str:
    """Return the text of one message of the engine. Raises `BuildFailed` for an error."""
    if "error" in message:
        raise BuildFailed(str(message["error"]))
    if "stream" in message:
        return _COLOURS.sub("", str(message["stream"]))
    if "status" in message:
        words = (message.get("id"), message["status"], message.get("progress"))
        return " ".join(str(word) for word in words if word) + "\n"
    return ""


_BUILT_IN_UNTIL = 23
"""The first version of the `docker` command without a built-in BuildKit client."""
_VERSION = re.compile(r"version (\d+)\.")
_PROBE_TIMEOUT_S = 20
_ENVIRONMENT = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
_RECENT_ENGINE = 23
"""The first engine whose BuildKit knows Dockerfile 1.4."""


@lru_cache(maxsize=1)
def find_client() -> str | None:
    """Return the first `docker` command of this machine that can use BuildKit, or None."""
    return next(filter(_has_buildkit, programs_named("docker")), None)


def _has_buildkit(command: str) -> bool:
    try:
        if _buildkit_output(command, "buildx", "version") is not None:
            return True
        version = _VERSION.search(_buildkit_output(command, "--version") or "")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return version is not None and int(version[1]) < _BUILT_IN_UNTIL


def _buildkit_output(*words: str) -> str | None:
    ended = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S
    )
    return ended.stdout if ended.returncode == 0 else None


def knows_recent_dockerfiles(engine_version: str) -> bool:
    """Return whether an engine's BuildKit knows Dockerfile 1.4 without fetching it."""
    major = engine_version.partition(".")[0]
    return not major.isdigit() or int(major) >= _RECENT_ENGINE


def build_with_client(client: str, build: EngineBuild, interruption: Interruption) -> Iterator[str]:
    """Build an image as `build_image` does, and yield the client's output.

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
        env=environment() | _ENVIRONMENT,
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
        # The caller has stopped reading the output.
        process.kill()
        process.wait()
        upload.join()
        process.stdout.close()
    if upload.problem is not None:
        raise BuildFailed(upload.problem)
    if status != 0:
        raise BuildFailed(f"`{shlex.join([client, 'build'])}` ended with status {status}")


class _Upload(threading.Thread):
    """Sends a build context to the client, and ends the client if the context has changed."""

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
            pass  # The client has ended, and reports why.
        finally:
            with suppress(OSError):
                stdin.close()
