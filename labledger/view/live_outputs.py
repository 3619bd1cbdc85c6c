"""What trials that run on this machine print, from their folders.

It is redacted as it is read, as `labledger logs` does. Of each output that somebody looks at, the
end is kept in memory: a trial that prints without end takes no more. Nothing is written. No output
waits for another one, and none for a Docker engine that does not answer.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from labledger import clock
from labledger.api.trial_logs import redactor_of_trial, required_secrets
from labledger.errors import EngineUnavailable, SecretsUnknown
from labledger.files.untrusted_files import UntrustedFile
from labledger.ledger.reader import LedgerReader
from labledger.trial.contract import PHASE_NAMES, trial_folder
from labledger.trial.evidence.redaction import RedactedStream, Redactor

PREPARING = "preparing"
CHUNK = 256 << 10
"""How many bytes one answer has, and how many of a live output are kept."""
_TAIL = 8 << 10
"""How many are kept of one of which only the last lines are shown."""
_MAX_OUTPUTS, _MAX_TAILS = 64, 1000
"""How many outputs are kept; a page of a run shows the last lines of 200 trials."""
_MAX_BEHIND = 4
"""What is more than so many times what is kept behind the end of a file is passed over, not read.
"""
_LAST_LINES, _MAX_LINE = 5, 400
_ASK_AGAIN_S = 5.0
"""For how long it stays unknown what the secrets of a trial are, before the engine is asked again.
"""
_ENGINE_TIMEOUT_S, _ENGINE_AGAIN_S = 5, 15.0
"""How long the engine is waited for, and for how long after that it is not asked for any trial."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Newest(Generic[_K, _V]):
    """The values that were used last. For any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def add(self, key: _K, value: _V) -> _V:
        """Keep a value, unless there is one of that key. Return the one that is kept."""
        with self._lock:
            value = self._values.setdefault(key, value)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return value


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt whose folder may be on this machine."""

    run_id: str
    schedule_idx: int
    number: int
    run_folder: Path

    @property
    def state(self) -> Path:
        """The folder in which its outputs are."""
        return trial_folder(self.run_folder, self.schedule_idx, self.number) / "state"

    @property
    def phase(self) -> str | None:
        """The phase that has begun last; `PREPARING` before the first; None without a folder."""
        if not self.state.is_dir():
            return None
        for phase in reversed(PHASE_NAMES):
            with suppress(OSError):
                (self.state / f"{phase}.stdout").lstat()
                return phase
        return PREPARING

    @property
    def has_begun(self) -> bool:
        """Whether its container has begun its first phase, as far as this machine knows."""
        return self.phase not in (None, PREPARING)


class _LiveOutput:
    """The end of one output of an attempt, redacted, and how far its file was read."""

    def __init__(
        self, attempt: Attempt, name: str, redactor: Redactor, kept_bytes: int = CHUNK
    ) -> None:
        self._kept_bytes = kept_bytes
        self.lock = threading.Lock()
        """Held by who reads on, and by who reads what is shown."""
        self._file = UntrustedFile(attempt.state, name)
        self._redactor = redactor
        self._stream = RedactedStream(redactor)
        self._position = 0
        self.shown = bytearray()
        self.passed_over = 0
        """How many bytes were shown before those that are kept."""

    def read_on(self) -> None:
        """Read what was written since, the end of it if it is much. Raises `UnsafeFile`."""
        with self._file.opened() as file:
            if file is None:
                return
            size = os.fstat(file.fileno()).st_size
            most = _MAX_BEHIND * self._kept_bytes
            if size - self._position > most:
                self._pass_over(size - self._kept_bytes - self._redactor.margin)
                file.seek(self._position)
                # A secret may have begun before what is read: no part of it is shown.
                margin = file.read(self._redactor.margin)
                self._stream.write(margin)
                self._position += len(margin)
            file.seek(self._position)
            content = file.read(most)
        self._position += len(content)
        self.shown += self._stream.write(content)
        if len(self.shown) > 2 * self._kept_bytes:
            self.passed_over += len(self.shown) - self._kept_bytes
            del self.shown[: -self._kept_bytes]

    def _pass_over(self, position: int) -> None:
        self.passed_over += len(self.shown) + position - self._position
        self._position = position
        self.shown.clear()
        self._stream = RedactedStream(self._redactor)

    @property
    def end(self) -> int:
        return self.passed_over + len(self.shown)


class LiveOutputs:
    """The live outputs that somebody looks at. For any thread."""

    def __init__(self) -> None:
        self._outputs: _Newest[tuple[Attempt, str], _LiveOutput] = _Newest(_MAX_OUTPUTS)
        self._tails: _Newest[tuple[Attempt, str], _LiveOutput] = _Newest(_MAX_TAILS)
        self._redactors = _Redactors()

    def read(
        self, reader: LedgerReader, attempt: Attempt, name: str, start: int
    ) -> tuple[bytes, int, int]:
        """Return what an output has from `start` on, where that begins, and where it ends.

        `start` counts the bytes that were shown; a start before those that are kept begins with
        them. Raises `UnsafeFile`, and `SecretsUnknown`.
        """
        output = self._outputs.get((attempt, name))
        if output is None:
            redactor = self._redactors.get(reader, attempt)
            output = self._outputs.add((attempt, name), _LiveOutput(attempt, name, redactor))
        with output.lock:
            output.read_on()
            start = min(max(start, output.passed_over), output.end)
            offset = start - output.passed_over
            content = bytes(output.shown[offset : offset + CHUNK])
        return content, start, start + len(content)

    def last_lines(self, reader: LedgerReader, attempt: Attempt, phase: str) -> list[str]:
        """Return the last lines that a phase printed. Raises as `read` does."""
        name = f"{phase}.stdout"
        tail = self._tails.get((attempt, name))
        if tail is None:
            redactor = self._redactors.get(reader, attempt)
            tail = self._tails.add((attempt, name), _LiveOutput(attempt, name, redactor, _TAIL))
        with tail.lock:
            tail.read_on()
            content = bytes(tail.shown[-_TAIL:])
        lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")[-_LAST_LINES:]
        return [line[-_MAX_LINE:] for line in lines] if content else []


class _Redactors:
    """What redacts the outputs of each attempt, made once: the engine says what its secrets are.

    One thread asks the engine at a time, and no other one waits for it: meanwhile the outputs of
    further trials are withheld. An engine that does not answer is left alone for a while.
    """

    def __init__(self) -> None:
        self._made: _Newest[Attempt, Redactor] = _Newest(_MAX_TAILS)
        self._asking = threading.Lock()
        self._unknown: dict[Attempt, tuple[float, SecretsUnknown]] = {}
        """Until when it stays unknown what the secrets of an attempt are, and why it is."""
        self._engine_again_at = 0.0

    def get(self, reader: LedgerReader, attempt: Attempt) -> Redactor:
        """Return the redactor of an attempt. Raises `SecretsUnknown`."""
        redactor = self._made.get(attempt)
        if redactor is not None:
            return redactor
        until, error = self._unknown.get(attempt, (0.0, None))
        if error is not None and clock.monotonic() < until:
            raise error
        required = required_secrets(reader, attempt.run_id)
        if not required:
            return self._made.add(attempt, Redactor({}))
        if not self._asking.acquire(blocking=False):
            raise SecretsUnknown("the engine is being asked what the secrets of the trials are")
        try:
            return self._made.add(attempt, self._ask(reader, attempt, required))
        finally:
            self._asking.release()

    def _ask(self, reader: LedgerReader, attempt: Attempt, required: Collection[str]) -> Redactor:
        if clock.monotonic() < self._engine_again_at:
            silent = SecretsUnknown(
                "the output may show secrets, and the Docker engine, which says what they are, "
                "does not answer"
            )
            self._note_unknown(attempt, self._engine_again_at, silent)
            raise silent
        try:
            return redactor_of_trial(
                reader,
                attempt.run_id,
                attempt.schedule_idx,
                attempt.number,
                required,
                _ENGINE_TIMEOUT_S,
            )
        except SecretsUnknown as error:
            until = clock.monotonic() + _ASK_AGAIN_S
            if isinstance(error.__cause__, EngineUnavailable):
                until = self._engine_again_at = clock.monotonic() + _ENGINE_AGAIN_S
            self._note_unknown(attempt, until, error)
            raise

    def _note_unknown(self, attempt: Attempt, until: float, error: SecretsUnknown) -> None:
        if len(self._unknown) > _MAX_TAILS:
            self._unknown.clear()
        self._unknown[attempt] = until, error
