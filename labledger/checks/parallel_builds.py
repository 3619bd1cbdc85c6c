"""Obtain several images at a time before a run, each within its time limit and with a log.

`obtain_images` pulls or builds in a few threads, and reports progress as run events in the calling
thread. It stops everything at Ctrl-C, at a stop request, and when an error leaves it. Logs are
bounded. `image_supply` chooses the images.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from labledger import clock
from labledger.engine.engine import Engine
from labledger.engine.image_builds import (
    BuildFailed,
    EngineBuild,
    Interruption,
    Stopped,
    build_image,
    build_with_client,
    image_label,
    pull_image,
)
from labledger.errors import ImageBuildsStopped, LabLedgerError
from labledger.execution.run_events import Listener, StopRequest, on_signals, run_event
from labledger.files.lab_folder import LabFolder

MAX_AT_ONCE = 3
"""How many images are obtained at the same time."""

_BUILDER = (
    "the builder that buildx uses keeps it; choose the engine's by `docker buildx use default`"
)

_MAX_LOG_BYTES = 16 << 20
_TAIL_LINES = 20
_TAIL_CHARACTERS = 300
_POLL_S = 0.1
_PROGRESS_S = 1.0
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class BuildKitUse:
    """How BuildKit builds an image whose Dockerfile the engine's own builder cannot build."""

    needs: str
    """The lines of the Dockerfile that need BuildKit."""
    client: str = ""
    """The path of the `docker` command that uses it."""
    problem: str | None = None
    """Why it cannot be built; None if it can."""


@dataclass(frozen=True, slots=True)
class WantedImage:
    """An image to obtain."""

    build: EngineBuild
    may_pull: bool
    """Whether to try a registry before building the image."""
    buildkit: BuildKitUse | None = None
    """How BuildKit builds it; None if the engine's own builder does."""


def obtain_images(
    lab: LabFolder, wanted: Sequence[WantedImage], on_event: Listener, stop: StopRequest
) -> list[ImageTask]:
    """Pull or build images, with logs in the lab folder; return the task of each, in order.

    Raises `ImageBuildsStopped` after a stop request, once everything has stopped, and `OSError` if
    a log cannot be written.
    """
    lab.create()
    lab.builds.mkdir(exist_ok=True)
    tasks = [ImageTask(image, _Log(_log_path(lab.builds, image.build.ref))) for image in wanted]
    queue: SimpleQueue[ImageTask] = SimpleQueue()
    for task in tasks:
        queue.put(task)
    # Daemons, so that an engine that does not answer cannot keep the process.
    count = min(MAX_AT_ONCE, len(wanted))
    threads = [threading.Thread(target=_work, args=(queue,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        with on_signals(stop):
            _watch(tasks, threads, on_event, stop)
    finally:
        for task in tasks:
            task.interruption.request()
        deadline = clock.monotonic() + _STOP_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - clock.monotonic()))
    return tasks


def _watch(
    tasks: Sequence[ImageTask],
    threads: Sequence[threading.Thread],
    on_event: Listener,
    stop: StopRequest,
) -> None:
    """Report progress and enforce time limits until every thread has ended."""
    while any(thread.is_alive() for thread in threads):
        if stop.level:
            raise ImageBuildsStopped
        clock.sleep(_POLL_S)
        for task in tasks:
            _report(task, on_event)
            if task.is_too_long():
                task.timed_out = True
                task.interruption.request()
    for task in tasks:
        _report(task, on_event)


def _report(task: ImageTask, on_event: Listener) -> None:
    began = task.began
    if began is None or task.was_reported:
        return
    now = clock.monotonic()
    facts = {"image": task.ref, "log": str(task.log.path)}
    if task.reported_at is None:
        task.reported_at = now
        limit = task.wanted.build.timeout_s
        on_event(run_event("image_build_started", timeout_s=limit, **facts))
    if task.ended is not None:
        task.was_reported = True
        on_event(
            run_event(
                "image_build_ended",
                seconds=round(task.seconds, 3),
                was_pulled=task.was_pulled,
                error=task.error,
                **facts,
            )
        )
    elif now - task.reported_at >= _PROGRESS_S:
        task.reported_at = now
        seconds, line = round(now - began, 3), task.log.last_line
        on_event(run_event("image_build_progress", seconds=seconds, line=line, **facts))


class _Log:
    """A log of bounded size: its beginning, and the last lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes_left = _MAX_LOG_BYTES
        self._left_out = 0
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._unfinished = ""

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        unfinished = self._unfinished.strip()
        return unfinished or next((line for line in reversed(self._lines) if line.strip()), "")

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of the output, which is untrusted."""
        return (*self._lines, *([self._unfinished] if self._unfinished else []))

    def follow(self, texts: Iterator[str]) -> None:
        """Write texts as they arrive."""
        with self.path.open("ab") as handle:
            for text in texts:
                content = text.encode("utf-8", "replace")
                handle.write(content[: self._bytes_left])
                handle.flush()
                self._left_out += max(0, len(content) - self._bytes_left)
                self._bytes_left = max(0, self._bytes_left - len(content))
                self._add_lines(text)
            if self._left_out:
                end = "\n".join(self.last_lines)
                note = f"\n[{self._left_out:,} bytes left out; the last lines were:]\n{end}\n"
                handle.write(note.encode("utf-8", "replace"))

    def _add_lines(self, text: str) -> None:
        *lines, rest = re.split(r"\r\n|\n|\r", self._unfinished + text)
        self._lines.extend(line[:_TAIL_CHARACTERS] for line in lines)
        self._unfinished = rest[:_TAIL_CHARACTERS]


_ENGINE_HINT = "`labledger doctor` checks the engine; then try again"
_NOT_THE_DOCKERFILE = re.compile(
    r"error getting credentials|docker-credential-|unauthorized|authentication required|"
    r"no basic auth credentials|pull access denied|x509:|tls: |certificate signed by",
    re.IGNORECASE,
)
_FAILED_STEP = re.compile(r"did not complete successfully|returned a non-zero code")
"""A builder's message about a step of the Dockerfile whose command failed."""


def blames_registry(error: str, last_lines: Sequence[str]) -> bool:
    """Return whether a builder's error is about credentials or certificates of a registry.

    Only lines of the builder itself count, not the output of a step.
    """
    builder_lines = [error, *(line for line in last_lines if line.startswith(("ERROR", "error")))]
    if any(map(_FAILED_STEP.search, builder_lines)):
        return False
    return any(map(_NOT_THE_DOCKERFILE.search, builder_lines))


@dataclass
class ImageTask:
    """The work on one image, shared by its thread and the watcher."""

    wanted: WantedImage
    log: _Log
    interruption: Interruption = field(default_factory=Interruption)
    began: float | None = None
    ended: float | None = None
    was_pulled: bool = False
    timed_out: bool = False
    error: str | None = "stopped"
    """Why the image is missing; None if it was obtained."""
    hint: str | None = None
    """Advice if the engine, a certificate or credentials were at fault, not the Dockerfile."""
    reported_at: float | None = None
    was_reported: bool = False

    @property
    def ref(self) -> str:
        return self.wanted.build.ref

    @property
    def seconds(self) -> float:
        """How long it took; 0 before it has ended."""
        if self.began is None or self.ended is None:
            return 0.0
        return self.ended - self.began

    def is_too_long(self) -> bool:
        if self.began is None or self.ended is not None:
            return False
        return clock.monotonic() - self.began > self.wanted.build.timeout_s

    def run(self) -> None:
        """Obtain the image. Every error is recorded, none raised."""
        self.began = clock.monotonic()
        try:
            with closing(Engine()) as engine:
                self.was_pulled = self.wanted.may_pull and self._pull(engine)
                if not self.was_pulled:
                    self._build(engine)
            self.error = None
        except Stopped:
            if self.timed_out:
                limit = self.wanted.build.timeout_s
                self.error = f"not finished within {limit:g} s (timeout_s)"
        except BuildFailed as error:
            self.error = error.message
        except LabLedgerError as error:
            self.error = error.message
            self.hint = error.hint or _ENGINE_HINT
        except Exception as error:  # Nothing else would report the error.
            self.error, self.hint = f"{type(error).__name__}: {error}", _ENGINE_HINT
        finally:
            self.ended = clock.monotonic()

    def _build(self, engine: Engine) -> None:
        wanted = self.wanted
        if wanted.buildkit is None:
            self.log.follow(build_image(engine, wanted.build, self.interruption))
            return
        if wanted.buildkit.problem is not None:
            raise BuildFailed(wanted.buildkit.problem)
        client = wanted.buildkit.client
        self.log.follow(build_with_client(client, wanted.build, self.interruption))
        if engine.image_id(wanted.build.ref) is None or (
            image_label(engine, wanted.build.ref) != wanted.build.digest
        ):
            raise BuildFailed(f"{client} has built it, but the engine does not have it: {_BUILDER}")

    def _pull(self, engine: Engine) -> bool:
        try:
            self.log.follow(pull_image(engine, self.ref, self.interruption))
        except LabLedgerError as error:
            self.log.follow(iter([f"{error.message}\n"]))
            return False
        return True


def _work(queue: SimpleQueue[ImageTask]) -> None:
    while True:
        try:
            task = queue.get_nowait()
        except Empty:
            return
        if not task.interruption.is_requested:
            task.run()


def _log_path(folder: Path, ref: str) -> Path:
    """Return a new name for the log of an image, and create the file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", ref)[:100]
    stamp = clock.now().strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        suffix = "" if number == 1 else f"-{number}"
        path = folder / f"{name}-{stamp}{suffix}.log"
        try:
            path.open("xb").close()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"too many logs of {ref} in {folder}")
