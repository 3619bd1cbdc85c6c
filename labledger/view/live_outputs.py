"""Live outputs of trials that run on this machine, read from their folders.

Outputs are redacted as they are read. Only the end of each viewed output is kept in memory, so that
a trial that prints without end takes no more. No output waits for another output, or for a Docker
engine that does not answer.
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
"""The maximum size of one answer, and how much of a live output is kept, in bytes."""
_TAIL = 8 << 10
"""How many bytes are kept of an output that only shows its last lines."""
_MAX_OUTPUTS, _MAX_TAILS = 64, 1000
"""How many outputs are kept; a page of a run shows the last lines of 200 trials."""
_MAX_BEHIND = 4
"""If more than this many times the kept size is unread, reading skips to near the end."""
_LAST_LINES, _MAX_LINE = 5, 400
_ASK_AGAIN_S = 5.0
"""How long to wait before asking the engine again for a trial's unknown secrets, in seconds."""
_ENGINE_TIMEOUT_S, _ENGINE_AGAIN_S = 5, 15.0
"""The time limit of a request to the engine, and how long to leave it alone after a timeout."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Newest(Generic[_K, _V]):
    """The most recently used values. Thread-safe."""

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
        """Keep a value unless the key has one already. Return the kept value."""
        with self._lock:
            value = self._values.setdefault(key, value)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return value


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """An attempt whose folder may be on this machine."""

    run_id: str
    schedule_idx: int
    number: int
    run_folder: Path

    @property
    def state(self) -> Path:
        """The folder of its outputs."""
        return trial_folder(self.run_folder, self.schedule_idx, self.number) / "state"

    @property
    def phase(self) -> str | None:
        """The phase that started last; `PREPARING` before the first; None without a folder."""
        if not self.state.is_dir():
            return None
        for phase in reversed(PHASE_NAMES):
            with suppress(OSError):
                (self.state / f"{phase}.stdout").lstat()
                return phase
        return PREPARING

    @property
    def has_begun(self) -> bool:
        """Whether its first phase has started, as far as this machine knows."""
        return self.phase not in (None, PREPARING)


class LiveOutput:
    """The redacted end of one output of an attempt, and the read position in its file."""

    def __init__(
        self, attempt: LiveAttempt, name: str, redactor: Redactor, kept_bytes: int = CHUNK
    ) -> None:
        self._kept_bytes = kept_bytes
        self.lock = threading.Lock()
        """Protects `read_on` and access to `shown`."""
        self._file = UntrustedFile(attempt.state, name)
        self._redactor = redactor
        self._stream = RedactedStream(redactor)
        self._position = 0
        self.shown = bytearray()
        self.passed_over = 0
        """How many bytes of the output precede the kept ones."""

    def read_on(self) -> None:
        """Read new output; if there is much of it, only its end. Raises `UnsafeFile`."""
        with self._file.opened() as file:
            if file is None:
                return
            size = os.fstat(file.fileno()).st_size
            most = _MAX_BEHIND * self._kept_bytes
            if size - self._position > most:
                self._pass_over(size - self._kept_bytes - self._redactor.margin)
                file.seek(self._position)
                # A secret may start before this position. Do not show any part of it.
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
    """The live outputs that open pages show. Thread-safe."""

    def __init__(self) -> None:
        self._outputs: _Newest[tuple[LiveAttempt, str], LiveOutput] = _Newest(_MAX_OUTPUTS)
        self._tails: _Newest[tuple[LiveAttempt, str], LiveOutput] = _Newest(_MAX_TAILS)
        self._redactors = _Redactors()

    def read(
        self, reader: LedgerReader, attempt: LiveAttempt, name: str, start: int
    ) -> tuple[bytes, int, int]:
        """Return a part of an output from the byte `start` on, its first and its end position.

        Positions count redacted bytes. If `start` precedes the kept bytes, the part begins with the
        first kept byte. Raises `UnsafeFile` and `SecretsUnknown`.
        """
        output = self._outputs.get((attempt, name))
        if output is None:
            redactor = self._redactors.get(reader, attempt)
            output = self._outputs.add((attempt, name), LiveOutput(attempt, name, redactor))
        with output.lock:
            output.read_on()
            start = min(max(start, output.passed_over), output.end)
            offset = start - output.passed_over
            content = bytes(output.shown[offset : offset + CHUNK])
        return content, start, start + len(content)

    def last_lines(self, reader: LedgerReader, attempt: LiveAttempt, phase: str) -> list[str]:
        """Return the last lines that a phase printed. Raises the same errors as `read`."""
        name = f"{phase}.stdout"
        tail = self._tails.get((attempt, name))
        if tail is None:
            redactor = self._redactors.get(reader, attempt)
            tail = self._tails.add((attempt, name), LiveOutput(attempt, name, redactor, _TAIL))
        with tail.lock:
            tail.read_on()
            content = bytes(tail.shown[-_TAIL:])
        lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")[-_LAST_LINES:]
        return [line[-_MAX_LINE:] for line in lines] if content else []


class _Redactors:
    """The redactor of each attempt, made once from the secrets in its container.

    One thread at a time asks the engine for the secrets. Other threads do not wait, and withhold
    the outputs of further trials in the meantime. After a timeout, the engine is left alone for a
    while.
    """

    def __init__(self) -> None:
        self._made: _Newest[LiveAttempt, Redactor] = _Newest(_MAX_TAILS)
        self._asking = threading.Lock()
        self._unknown: dict[LiveAttempt, tuple[float, SecretsUnknown]] = {}
        """For each attempt with unknown secrets: when to ask again, and the error."""
        self._engine_again_at = 0.0

    def get(self, reader: LedgerReader, attempt: LiveAttempt) -> Redactor:
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
            raise SecretsUnknown("labledger is asking the engine for the secrets of other trials")
        try:
            return self._made.add(attempt, self._ask(reader, attempt, required))
        finally:
            self._asking.release()

    def _ask(
        self, reader: LedgerReader, attempt: LiveAttempt, required: Collection[str]
    ) -> Redactor:
        if clock.monotonic() < self._engine_again_at:
            silent = SecretsUnknown(
                "the output may show secrets, and the Docker engine, which knows them, does not "
                "answer"
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

    def _note_unknown(self, attempt: LiveAttempt, until: float, error: SecretsUnknown) -> None:
        if len(self._unknown) > _MAX_TAILS:
            self._unknown.clear()
        self._unknown[attempt] = until, error
