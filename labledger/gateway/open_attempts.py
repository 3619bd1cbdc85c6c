"""The list of open attempts on the disk, and what closed ones used, by run and variant.

It is a file of JSON lines. A gateway that starts again finds the open attempts in it; what
they used is in their journals. An attempt that is opened again is no longer counted as closed. An
incomplete last line is ignored. The file is written anew at each start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.files.durable_files import replace_file
from labledger.gateway.status import CallTotals
from labledger.records import JsonObject

SCHEMA = "labledger.gateway_attempts.v1"
_KEPT_S = 90 * 86_400.0
"""For how long after its last attempt was closed it is known what a variant used."""

_RECENT = 2000
"""How many closed attempts are remembered one by one, so that they may be opened again."""

Variant = tuple[str, str]
"""A run and a variant of it, by their ids."""


@dataclass
class ClosedTotals:
    """What the closed attempts of a variant used."""

    totals: CallTotals = field(default_factory=CallTotals)
    at: str = ""
    """When the last of them was closed."""


class OpenAttempts:
    """The list. Only the process that holds the gateway's lock may write it."""

    def __init__(self, path: Path) -> None:
        """Read the list and write it anew. Raises `OSError`, and `LabLedgerError`."""
        self._path = path
        self.folders: dict[Path, Variant] = {}
        self.closed: dict[Variant, ClosedTotals] = {}
        self._recent: dict[Path, tuple[Variant, CallTotals]] = {}
        """What the attempts used that were closed last; `closed` has it, too."""
        for number, line in enumerate(_lines(path), 1):
            try:
                self._read(json.loads(line), number)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise LabLedgerError(
                    f"could not read the open attempts of the gateway: {path}, line {number}: "
                    f"{error}",
                    hint="remove the file; what closed attempts used is then not known for caps",
                ) from None
        before = clock.later(clock.utc_now(), -_KEPT_S)
        in_use = set(self.folders.values())
        self.closed = {k: v for k, v in self.closed.items() if k in in_use or v.at > before}
        with replace_file(path) as file:
            file.writelines(_line(row) for row in self._rows())
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _rows(self) -> list[JsonObject]:
        rows: list[JsonObject] = [{"schema_version": SCHEMA}]
        for variant, closed in self.closed.items():
            earlier = closed.totals
            for folder, (of, totals) in self._recent.items():
                if of == variant:
                    earlier = earlier.plus(totals, -1)
                    rows.append(_closed_row(folder, variant, totals, closed.at))
            rows.append(_closed_row(None, variant, earlier, closed.at))
        rows += (_opened_row(folder, variant) for folder, variant in self.folders.items())
        return rows

    def _read(self, row: JsonObject, number: int) -> None:
        if number == 1:
            if row.get("schema_version") != SCHEMA:
                raise ValueError(f"found the version {row.get('schema_version')!r}")
            return
        variant = (row["run_id"], row["variant_id"])
        if row["event"] == "opened":
            self._reopen(Path(row["folder"]))
            self.folders[Path(row["folder"])] = variant
        elif row["event"] == "closed":
            folder = None if row["folder"] is None else Path(row["folder"])
            self._add(folder, variant, CallTotals.from_json(row["totals"]), row["at"])
        elif row["event"] == "lost":
            self.folders.pop(Path(row["folder"]))
        else:
            raise ValueError(f"found the event {row['event']!r}")

    def _add(self, folder: Path | None, variant: Variant, totals: CallTotals, at: str) -> None:
        closed = self.closed.setdefault(variant, ClosedTotals())
        closed.totals, closed.at = closed.totals.plus(totals), at
        if folder is not None:
            self.folders.pop(folder, None)
            self._recent[folder] = (variant, totals)
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]

    def _reopen(self, folder: Path) -> tuple[Variant, CallTotals] | None:
        recent = self._recent.pop(folder, None)
        if recent is not None:
            closed = self.closed[recent[0]]
            closed.totals = closed.totals.plus(recent[1], -1)
        return recent

    def note_opened(self, folder: Path, variant: Variant) -> tuple[Variant, CallTotals] | None:
        """Write, durably, that an attempt is open. Raises `OSError`.

        Returns what it used, and for which variant, if it was closed before: that is in its journal
        and no longer counted as closed.
        """
        self._append(_opened_row(folder, variant))
        self.folders[folder] = variant
        return self._reopen(folder)

    def note_closed(self, folder: Path, totals: CallTotals) -> None:
        """Write, durably, that an attempt is closed, and what it used. Raises `OSError`."""
        variant, at = self.folders[folder], clock.utc_now()
        self._append(_closed_row(folder, variant, totals, at))
        self._add(folder, variant, totals, at)

    def note_lost(self, folder: Path) -> None:
        """Write, durably, that an attempt cannot be served any more. Raises `OSError`."""
        run_id, variant_id = self.folders.pop(folder)
        row = {"event": "lost", "folder": str(folder)}
        self._append({**row, "run_id": run_id, "variant_id": variant_id})

    def _append(self, row: JsonObject) -> None:
        line = _line(row)
        size = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) != len(line):
            os.ftruncate(self._descriptor, size)
            raise OSError(28, os.strerror(28), str(self._path))
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _line(row: Mapping[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _opened_row(folder: Path, variant: Variant) -> JsonObject:
    return {
        "event": "opened",
        "folder": str(folder),
        "run_id": variant[0],
        "variant_id": variant[1],
    }


def _closed_row(folder: Path | None, variant: Variant, totals: CallTotals, at: str) -> JsonObject:
    return {
        "event": "closed",
        "folder": None if folder is None else str(folder),
        "run_id": variant[0],
        "variant_id": variant[1],
        "totals": totals.as_json(),
        "at": at,
    }


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    lines = text.split("\n")
    return lines[:-1]
