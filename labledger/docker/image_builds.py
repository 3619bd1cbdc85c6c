"""Obtain one image: pull it, or have the engine build it from a context, so that it can be stopped.

The engine's own builder is used, and BuildKit, by `buildkit`, for what only that can build. An
engine that loses the connection of a build kills and removes the build's container, which is how a
build is stopped. Preflight runs several of these at a time, each in a thread with its own engine.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labledger.docker.engine import Engine
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.images.build_context import BuildContext, ContextChanged, UnusableContext
from labledger.images.image_names import LABEL

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The builder marks errors with colours."""
_CONNECT_TIMEOUT_S = 60
_MARGIN_S = 10
"""How much longer than its time limit a silent build is waited for, if nobody stops it."""


class BuildFailed(LabLedgerError):
    """The engine could not pull or build the image."""


class Stopped(Exception):
    """The image was not obtained, because another thread stopped it."""


class Interruption:
    """Stops a call of the engine from another thread, by ending its connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.is_requested = False

    def request(self) -> None:
        """Stop the call. It ends at once if its answer has begun, else when that begins."""
        with self._lock:
            self.is_requested = True
            self._end_response()

    @contextmanager
    def watch(self, client: APIClient) -> Iterator[None]:
        """Make the calls of a client in this block stoppable. Raises `Stopped` if one was."""
        from urllib3.exceptions import HTTPError

        hooks = client.hooks["response"]
        hooks.append(self._began)
        try:
            self.check()
            yield
            self.check()
        except HTTPError as error:  # The library reads answers without converting it.
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
        """Make a process stoppable in this block. Raises `Stopped` if it was."""
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
            # Its connection may be closed already, or be of a kind that cannot be shut down.
            with suppress(OSError, ValueError):
                self._response.raw.shutdown()


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """A build of an image by the engine."""

    ref: str
    source: BuildContext
    digest: str
    """The digest of `source`; the image's label."""
    timeout_s: float


def pull_image(engine: Engine, ref: str, interruption: Interruption) -> Iterator[str]:
    """Pull an image and yield what the engine says. Raises `BuildFailed` and `Stopped`."""
    with engine.api(f"pull image {ref}") as client, interruption.watch(client):
        for message in client.pull(ref, stream=True, decode=True):
            yield _output(message)


def build_image(engine: Engine, build: EngineBuild, interruption: Interruption) -> Iterator[str]:
    """Build an image, name and label it, and yield the builder's output as it comes.

    Nothing gets the image's name unless the build succeeds. Raises `BuildFailed` if it fails or if
    the context is not what its digest says, and `Stopped`.
    """
    try:
        with (
            engine.api(f"build image {build.ref}") as client,
            interruption.watch(client),
        ):
            for message in client.build(
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
            ):
                yield _output(message)
    except (ContextChanged, UnusableContext) as error:
        raise BuildFailed(str(error)) from error


def image_label(engine: Engine, ref: str) -> str | None:
    """Return the digest of what a local image was built from, or None if it does not say."""
    with engine.api(f"inspect image {ref}") as client:
        config: Mapping[str, Any] = client.inspect_image(ref).get("Config") or {}  # type: ignore[no-untyped-call]
    label = (config.get("Labels") or {}).get(LABEL)
    return None if label is None else str(label)


def _until_stopped(chunks: Iterator[bytes], interruption: Interruption) -> Iterator[bytes]:
    for chunk in chunks:
        interruption.check()
        if chunk:  # An empty one would end the upload.
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
