"""Obtain several images at a time before a run, each within its time limit and with a log.

`ImageBuilds.obtain_all` pulls or builds in a few threads, reports progress as run events in the
thread that called it, and stops everything at Ctrl-C, at a stop request, and when an error leaves
it. Logs are bounded. `image_supply` decides which images are obtained.
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
    """How an image is built whose Dockerfile the engine's own builder cannot build."""

    needs: str
    """The lines that need it."""
    client: str = ""
    """The path of the `docker` command that uses it."""
    problem: str | None = None
    """Why it cannot be built; None if it can."""


@dataclass(frozen=True, slots=True)
class WantedImage:
    """An image to obtain."""

    build: EngineBuild
    may_pull: bool
    """Whether a registry is asked before the image is built."""
    buildkit: BuildKitUse | None = None
    """How BuildKit builds it; None if the engine's own builder does."""


@dataclass(frozen=True, slots=True)
class ObtainedImage:
    """What became of a wanted image."""

    ref: str
    log: Path
    seconds: float
    was_pulled: bool = False
    error: str | None = None
    """Why it is not there; None if it is."""
    last_lines: tuple[str, ...] = ()
    """The end of a failed build's output, as untrusted as any output."""


class ImageBuilds:
    """Obtains images, with logs in the lab folder."""

    def __init__(self, lab: LabFolder, on_event: Listener, stop: StopRequest) -> None:
        self._lab = lab
        self._on_event = on_event
        self._stop = stop
        self._tasks: list[_Task] = []

    def obtain_all(self, wanted: Sequence[WantedImage]) -> list[ObtainedImage]:
        """Pull or build images and return what became of each, in the same order.

        Raises `ImageBuildsStopped` at a stop request, when everything has been stopped, and
        `OSError` if there can be no log.
        """
        self._lab.create()
        self._lab.builds.mkdir(exist_ok=True)
        queue: SimpleQueue[_Task] = SimpleQueue()
        self._tasks = [
            _Task(image, _log_path(self._lab.builds, image.build.ref)) for image in wanted
        ]
        for task in self._tasks:
            queue.put(task)
        # Daemons, so that an engine that does not answer cannot keep the process.
        count = min(MAX_AT_ONCE, len(wanted))
        threads = [threading.Thread(target=_work, args=(queue,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            with on_signals(self._stop):
                self._watch(threads)
        finally:
            for task in self._tasks:
                task.interruption.request()
            deadline = clock.monotonic() + _STOP_TIMEOUT_S
            for thread in threads:
                thread.join(max(0.0, deadline - clock.monotonic()))
        return [task.obtained() for task in self._tasks]

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        """Report progress and enforce time limits until every thread has ended."""
        while any(thread.is_alive() for thread in threads):
            if self._stop.level:
                raise ImageBuildsStopped
            clock.sleep(_POLL_S)
            for task in self._tasks:
                self._report(task)
                if task.is_too_long():
                    task.timed_out = True
                    task.interruption.request()
        for task in self._tasks:
            self._report(task)

    def _report(self, task: _Task) -> None:
        began = task.began
        if began is None or task.was_reported:
            return
        now = clock.monotonic()
        facts = {"image": task.wanted.build.ref, "log": str(task.log.path)}
        if task.reported_at is None:
            task.reported_at = now
            limit = task.wanted.build.timeout_s
            self._on_event(run_event("image_build_started", timeout_s=limit, **facts))
        if task.ended is not None:
            task.was_reported = True
            obtained = task.obtained()
            self._on_event(
                run_event(
                    "image_build_ended",
                    seconds=round(obtained.seconds, 3),
                    was_pulled=obtained.was_pulled,
                    error=obtained.error,
                    **facts,
                )
            )
        elif now - task.reported_at >= _PROGRESS_S:
            task.reported_at = now
            seconds, line = round(now - began, 3), task.log.last_line
            self._on_event(run_event("image_build_progress", seconds=seconds, line=line, **facts))


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
        return (*self._lines, *([self._unfinished] if self._unfinished else []))

    def follow(self, texts: Iterator[str]) -> None:
        """Write texts as they come."""
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


@dataclass
class _Task:
    """An image while it is being obtained, shared by the thread that does it and the watcher."""

    wanted: WantedImage
    log_path: Path
    interruption: Interruption = field(default_factory=Interruption)
    began: float | None = None
    ended: float | None = None
    was_pulled: bool = False
    timed_out: bool = False
    error: str | None = None
    reported_at: float | None = None
    was_reported: bool = False

    def __post_init__(self) -> None:
        self.log = _Log(self.log_path)

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
        except Stopped:
            limit = self.wanted.build.timeout_s
            took_too_long = f"not finished within {limit:g} s (timeout_s)"
            self.error = took_too_long if self.timed_out else "stopped"
        except LabLedgerError as error:
            self.error = error.message
        except Exception as error:  # Nothing else would report it.
            self.error = f"{type(error).__name__}: {error}"
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
            raise BuildFailed(f"{client} has built it, and the engine does not have it: {_BUILDER}")

    def _pull(self, engine: Engine) -> bool:
        try:
            self.log.follow(pull_image(engine, self.wanted.build.ref, self.interruption))
        except LabLedgerError as error:
            self.log.follow(iter([f"{error.message}\n"]))
            return False
        return True

    def obtained(self) -> ObtainedImage:
        began = self.began if self.began is not None else clock.monotonic()
        ended = self.ended if self.ended is not None else clock.monotonic()
        error = self.error if self.ended is not None else self.error or "stopped"
        return ObtainedImage(
            self.wanted.build.ref,
            self.log.path,
            ended - began,
            self.was_pulled,
            error,
            self.log.last_lines if error else (),
        )


def _work(queue: SimpleQueue[_Task]) -> None:
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
