"""What trials that run on this machine print, from their folders.

It is redacted as it is read, as `labledger logs` does. Of each output that somebody looks at, the
end is kept in memory: a trial that prints without end takes no more. Nothing is written.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labledger import clock
from labledger.api.trial_logs import redactor_of_trial, required_secrets
from labledger.errors import SecretsUnknown
from labledger.files.untrusted_files import UntrustedFile
from labledger.ledger.reader import LedgerReader
from labledger.trial.contract import PHASE_NAMES, trial_folder
from labledger.trial.evidence.redaction import RedactedStream, Redactor

CHUNK = 256 << 10
"""How many bytes one answer has, and how many of a live output are kept."""
_MAX_OUTPUTS = 64
_MAX_BEHIND = 4 * CHUNK
"""What is further behind the end of a file is passed over, not read."""
_LAST_LINES, _MAX_LINE = 5, 400
_ASK_AGAIN_S = 5.0
"""For how long it stays unknown what the secrets of a trial are, before the engine is asked again.
"""


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
        """The phase that has begun last; `preparing` before the first; None without a folder."""
        if not self.state.is_dir():
            return None
        for phase in reversed(PHASE_NAMES):
            with suppress(OSError):
                (self.state / f"{phase}.stdout").lstat()
                return phase
        return "preparing"


class _LiveOutput:
    """The end of one output of an attempt, redacted, and how far its file was read."""

    def __init__(self, attempt: Attempt, name: str, redactor: Redactor) -> None:
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
            if size - self._position > _MAX_BEHIND:
                self._pass_over(size - CHUNK - self._redactor.margin)
                file.seek(self._position)
                # A secret may have begun before what is read: no part of it is shown.
                margin = file.read(self._redactor.margin)
                self._stream.write(margin)
                self._position += len(margin)
            file.seek(self._position)
            content = file.read(_MAX_BEHIND)
        self._position += len(content)
        self.shown += self._stream.write(content)
        if len(self.shown) > 2 * CHUNK:
            self.passed_over += len(self.shown) - CHUNK
            del self.shown[:-CHUNK]

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
        self._lock = threading.Lock()
        self._outputs: OrderedDict[tuple[Attempt, str], _LiveOutput] = OrderedDict()
        self._unknown: dict[Attempt, tuple[float, SecretsUnknown]] = {}

    def read(
        self, reader: LedgerReader, attempt: Attempt, name: str, start: int
    ) -> tuple[bytes, int, int]:
        """Return what an output has from `start` on, where that begins, and where it ends.

        `start` counts the bytes that were shown; a start before those that are kept begins with
        them. Raises `UnsafeFile`, and `SecretsUnknown`.
        """
        with self._lock:
            output = self._output(reader, attempt, name)
            output.read_on()
            start = min(max(start, output.passed_over), output.end)
            offset = start - output.passed_over
            content = bytes(output.shown[offset : offset + CHUNK])
        return content, start, start + len(content)

    def last_lines(self, reader: LedgerReader, attempt: Attempt, phase: str) -> list[str]:
        """Return the last lines that a phase printed. Raises as `read` does."""
        content, _, _ = self.read(reader, attempt, f"{phase}.stdout", 1 << 60)
        with self._lock:
            content = bytes(self._outputs[attempt, f"{phase}.stdout"].shown[-8192:])
        lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")[-_LAST_LINES:]
        return [line[-_MAX_LINE:] for line in lines] if content else []

    def _output(self, reader: LedgerReader, attempt: Attempt, name: str) -> _LiveOutput:
        key = (attempt, name)
        if key not in self._outputs:
            self._outputs[key] = _LiveOutput(attempt, name, self._redactor(reader, attempt))
            while len(self._outputs) > _MAX_OUTPUTS:
                self._outputs.popitem(last=False)
        self._outputs.move_to_end(key)
        return self._outputs[key]

    def _redactor(self, reader: LedgerReader, attempt: Attempt) -> Redactor:
        known = next((o._redactor for (a, _), o in self._outputs.items() if a == attempt), None)
        if known is not None:
            return known
        until, error = self._unknown.get(attempt, (0.0, None))
        if error is not None and clock.monotonic() < until:
            raise error
        required = required_secrets(reader, attempt.run_id)
        try:
            return redactor_of_trial(
                reader, attempt.run_id, attempt.schedule_idx, attempt.number, required
            )
        except SecretsUnknown as error:
            if len(self._unknown) > _MAX_OUTPUTS:
                self._unknown.clear()
            self._unknown[attempt] = clock.monotonic() + _ASK_AGAIN_S, error
            raise
