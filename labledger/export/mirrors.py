"""The files of a run folder: JSONL mirrors, `chain.jsonl` and the experiment.

All are copies that can be rebuilt from the ledger. A mirror holds one canonical JSON record per
line, in schedule order: the same bytes for the same ledger, appended commit by commit or rebuilt at
once.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from labledger import fault_points
from labledger.errors import LedgerError
from labledger.files.durable_files import (
    Fence,
    make_folder,
    set_aside,
    sync_folder,
    write_file,
)
from labledger.files.output_files import open_output
from labledger.ledger.database.run_info import RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import MAX_LINE_BYTES, ONLY_IF_ANY, SlotRecords

if TYPE_CHECKING:
    from labledger.ledger.checking.slot_checks import Piece

CHAIN_PATH = Path("chain.jsonl")
"""The file with the run's creation and digests, which an import of mirrors needs too."""


def create_run_folder(folder: Path, run: RunInfo) -> None:
    """Create the folder of a run, closed to other users, and the copies that it does not have.

    If the experiment was extended, the copies of its newest revision replace the earlier ones.
    """
    make_folder(folder)
    folder.chmod(0o700)
    copies = {
        "experiment.yaml": run.authored.encode(),
        "resolved.json": _indented_json(run.resolved),
    }
    for name, content in copies.items():
        if run.parts or not (folder / name).exists():
            write_file(folder / name, content)


def _indented_json(document: JsonObject) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def write_chain(
    reader: LedgerReader, run_id: str, out: Path | BinaryIO, fence: Fence = nullcontext
) -> None:
    """Regenerate `chain.jsonl` from the ledger, into a stream or, atomically, into a file."""
    with open_output(out, fence) as handle:
        handle.writelines(line for _, line in _chain_lines(reader, run_id))


def compare_chain(reader: LedgerReader, run_id: str, run_dir: Path) -> Difference | None:
    """Return where the file first differs from the ledger, or None. Older runs may have none."""
    path = run_dir / CHAIN_PATH
    return first_difference(path, _chain_lines(reader, run_id)) if path.exists() else None


def _chain_lines(reader: LedgerReader, run_id: str) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of the file, each with its origin for messages."""
    for record in reader.chain_records(run_id):
        yield f"its {record['type']} record", canonical_json.dump_bytes(record) + b"\n"


PATHS = {
    "predictions": Path("benchmark/predictions.jsonl"),
    "scores": Path("benchmark/scores.jsonl"),
    "evidence": Path("evidence/evidence_records.jsonl"),
    "trials": Path("facts/trials.jsonl"),
    "metrics": Path("facts/metrics_long.jsonl"),
    "events": Path("facts/events.jsonl"),
}
"""The mirrors that every run has: their files in the run folder, by the kind of their records."""

ALL_PATHS = {**PATHS, "model_calls": Path("facts/model_calls.jsonl")}
"""All mirrors. A run has a mirror of `ONLY_IF_ANY` from its first such record on."""


def _paths(reader: LedgerReader, run_id: str, folder: Path) -> dict[str, Path]:
    """Return the mirrors that a run has, or should have, in a folder."""
    paths = {kind: folder / relative for kind, relative in ALL_PATHS.items()}
    return {
        kind: path
        for kind, path in paths.items()
        if not _may_be_missing(kind, path) or any(reader.record_lines(run_id, kind))
    }


def _may_be_missing(kind: str, path: Path) -> bool:
    """Return whether a mirror does not exist and its kind is optional."""
    return kind in ONLY_IF_ANY and not os.path.lexists(path)


_BLOCK_BYTES = 1 << 16


class MirrorWriter:
    """Appends each commit's records to the mirrors in a run folder. Requires `repair` first.

    Two processes may append at once: an owner that was suspended in the middle of a write, and a
    new owner. So each record has an offset that follows from the ledger, and both write the same
    bytes. `repair` truncates or replaces a mirror only within `fence`, which raises if this process
    has lost the run. A failed write truncates its own part, unless more was appended after it.
    """

    def __init__(self, run_dir: Path, fence: Fence = nullcontext) -> None:
        self.run_dir = run_dir
        self._fence = fence
        self._mirrors: dict[str, _Mirror] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for mirror in self._mirrors.values():
            os.close(mirror.descriptor)
        self._mirrors.clear()

    def repair(self, reader: LedgerReader, run_id: str) -> None:
        """Append what each mirror lacks, and open it for appending.

        Compares only the last slot of each file. Removes an incomplete last line, appends missing
        lines, and rebuilds a file that is not a mirror of this run or has a hole. Renames anything
        that is not a regular file, such as a folder, link or FIFO of that name. Raises
        `LabLedgerError`.
        """
        self.close()
        for kind, path in _paths(reader, run_id, self.run_dir).items():
            with _file_errors_reported(path):
                make_folder(path.parent)
                with self._fence():
                    set_aside(path)
                mirror = _Mirror.open(path)
                with self._fence():
                    mirror.truncate_incomplete_line()
                missing = _missing_records(mirror, reader, run_id, kind)
                if missing is None:
                    os.close(mirror.descriptor)
                    rebuild(reader, run_id, kind, path, self._fence)
                    mirror = _Mirror.open(path)
                else:
                    mirror.append_all(missing)
                self._mirrors[kind] = mirror

    def append(self, records: SlotRecords) -> None:
        """Append the records of one commit: whole lines, usually in one write per file.

        Raises `LedgerError` if a file cannot be written; it then still ends in a whole line, and
        the next `repair` appends what is missing.
        """
        if self._mirrors:
            self._begin_mirrors(records)
        for kind, mirror in self._mirrors.items():
            lines = records.lines(kind)
            with _file_errors_reported(mirror.path):
                if not isinstance(lines, tuple):
                    # Too many for one write. If it is interrupted, `repair` appends the rest.
                    mirror.append_all((records.schedule_idx, line) for line in lines)
                elif lines:
                    content = _as_bytes(lines)
                    if fault_points.fault_is_set("inside_mirror_line", records.schedule_idx):
                        os.pwrite(mirror.descriptor, content[: len(content) // 2], mirror.end)
                        fault_points.fault_point("inside_mirror_line", records.schedule_idx)
                    mirror.write_whole(content)

    def _begin_mirrors(self, records: SlotRecords) -> None:
        """Create the mirrors of `ONLY_IF_ANY` for which these are the first records."""
        for kind in ONLY_IF_ANY - self._mirrors.keys():
            if records.lines(kind):
                path = self.run_dir / ALL_PATHS[kind]
                with _file_errors_reported(path):
                    set_aside(path)
                    self._mirrors[kind] = _Mirror.open(path)

    def sync(self) -> None:
        """Make everything appended so far durable. Raises `LedgerError`.

        If a sync fails, the mirror is deleted, and the next `repair` writes it again. Otherwise the
        file would keep showing content that the disk lacks, and a later sync would succeed.
        """
        for mirror in self._mirrors.values():
            with _file_errors_reported(mirror.path):
                try:
                    os.fsync(mirror.descriptor)
                except OSError:
                    with self._fence():
                        mirror.path.unlink(missing_ok=True)
                    raise
                sync_folder(mirror.path.parent)


def rebuild(
    reader: LedgerReader, run_id: str, kind: str, out: Path | BinaryIO, fence: Fence = nullcontext
) -> None:
    """Regenerate a mirror from the ledger, into a stream or, atomically, into a file."""
    with open_output(out, fence) as handle:
        for _, line in reader.record_lines(run_id, kind):
            handle.write(line.encode() + b"\n")


def rebuild_all(reader: LedgerReader, run_id: str, folder: Path) -> list[Path]:
    """Regenerate every mirror under `folder`, laid out as in a run folder. Return the files."""
    paths = _paths(reader, run_id, folder)
    for kind, path in paths.items():
        rebuild(reader, run_id, kind, path)
    return list(paths.values())


def compare(
    reader: LedgerReader,
    run_id: str,
    run_dir: Path,
    verified: Mapping[str, Sequence[Piece]] | None = None,
) -> list[Difference]:
    """Return the first difference of each mirror in a run folder that differs from the ledger.

    `verified` has the pieces of each mirror that verified records make. Other mirrors are compared
    with the ledger line by line, which takes much longer.
    """
    differences = (
        first_difference(path, _with_labels(reader.record_lines(run_id, kind)))
        for kind, path in _paths_to_compare(reader, run_id, run_dir, verified)
    )
    return [difference for difference in differences if difference is not None]


def _paths_to_compare(
    reader: LedgerReader,
    run_id: str,
    run_dir: Path,
    verified: Mapping[str, Sequence[Piece]] | None,
) -> Iterator[tuple[str, Path]]:
    """Yield the mirrors that do not consist of verified pieces, with their kinds."""
    if verified is None:
        yield from _paths(reader, run_id, run_dir).items()
        return
    for kind, relative in ALL_PATHS.items():
        path, pieces = run_dir / relative, verified.get(kind, ())
        is_whole = _may_be_missing(kind, path) and not any(piece.size for piece in pieces)
        if not is_whole and not consists_of(path, pieces):
            yield kind, path


def _with_labels(records: Iterator[tuple[int, str]]) -> Iterator[tuple[str, bytes]]:
    return ((f"slot {idx}", line.encode() + b"\n") for idx, line in records)


@dataclass(slots=True)
class _Mirror:
    """A mirror that is being written."""

    path: Path
    descriptor: int
    end: int
    """The offset at which the next record goes."""

    @classmethod
    def open(cls, path: Path) -> _Mirror:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        return cls(path, descriptor, os.fstat(descriptor).st_size)

    def truncate_incomplete_line(self) -> None:
        """Remove the incomplete last line that an interrupted write may leave."""
        size = os.fstat(self.descriptor).st_size
        self.end = _end_of_last_line(self.descriptor, size)
        if self.end < size:
            os.ftruncate(self.descriptor, self.end)

    def append_all(self, records: Iterator[tuple[int, str]]) -> None:
        """Append records in writes of at least a block, each of whole lines."""
        lines: list[str] = []
        size = 0
        for _, line in records:
            lines.append(line)
            size += len(line)
            if size >= _BLOCK_BYTES:
                self.write_whole(_as_bytes(lines))
                lines, size = [], 0
        if lines:
            self.write_whole(_as_bytes(lines))

    def write_whole(self, content: bytes) -> None:
        """Append whole lines; if only a part can be written, truncate the file again."""
        # If a person has shortened the file, this leaves no hole in it.
        start = min(self.end, os.fstat(self.descriptor).st_size)
        written = 0
        try:
            while written < len(content):
                written += os.pwrite(self.descriptor, content[written:], start + written)
        except OSError:
            if os.fstat(self.descriptor).st_size == start + written:
                os.ftruncate(self.descriptor, start)
            raise
        self.end = start + len(content)


def _missing_records(
    mirror: _Mirror, reader: LedgerReader, run_id: str, kind: str
) -> Iterator[tuple[int, str]] | None:
    """Return the records that a mirror lacks after its last complete line.

    None if the lines of its last slot differ from the ledger.
    """
    descriptor, end = mirror.descriptor, mirror.end
    if _has_hole(descriptor, end):
        return None
    if end == 0:
        return reader.record_lines(run_id, kind)
    last_idx = _slot_of(_line_before(descriptor, end)[1])
    if last_idx is None:
        return None
    start = end
    while start > 0:
        before, line = _line_before(descriptor, start)
        if _slot_of(line) != last_idx:
            break
        start = before
    records = reader.record_lines(run_id, kind, last_idx)
    return _skip_existing(descriptor, start, end, records)


def _has_hole(descriptor: int, size: int) -> bool:
    """Return whether the file contains zero bytes: a part that was not on disk at a power cut."""
    return any(
        b"\0" in os.pread(descriptor, _BLOCK_BYTES, offset)
        for offset in range(0, size, _BLOCK_BYTES)
    )


def _skip_existing(
    descriptor: int, start: int, end: int, records: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str]] | None:
    """Return `records` without those that the file has from `start` on; None if they differ."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(start)
        while file.tell() < end:
            _, line = next(records, (None, ""))
            expected = line.encode() + b"\n"
            if expected != file.readline(len(expected)):
                return None
    return records


def _slot_of(line: bytes) -> int | None:
    """Return the slot that a line of a mirror is about; None for anything else."""
    try:
        idx = json.loads(line)["schedule_idx"]
        return idx if isinstance(idx, int) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _end_of_last_line(descriptor: int, size: int) -> int:
    """Return the offset after the last line end; 0 if there is none."""
    position = size
    while position > 0:
        start = max(0, position - _BLOCK_BYTES)
        line_end = os.pread(descriptor, position - start, start).rfind(b"\n")
        if line_end >= 0:
            return start + line_end + 1
        position = start
    return 0


def _line_before(descriptor: int, end: int) -> tuple[int, bytes]:
    """Return the offset at which the line that ends at offset `end` starts, and the line.

    If the line is longer than any record, only its first byte is returned.
    """
    start = _end_of_last_line(descriptor, end - 1)
    size = end - start
    return start, os.pread(descriptor, size if size <= MAX_LINE_BYTES else 1, start)


def _as_bytes(lines: list[str] | tuple[str, ...]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


@contextmanager
def _file_errors_reported(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into a `LedgerError` about this mirror."""
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"could not write the mirror {path}: {error.strerror}",
            hint="nothing is lost: the ledger holds the records, and resuming completes the mirror",
        ) from error


# -- comparing files of a run folder with the ledger

_MAX_READ_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line of a file that differs from the ledger."""

    path: Path
    line: int
    """The first line that differs, counted from 1; 0 if there is no file."""
    message: str


class NotRegularError(ValueError):
    """A folder, FIFO, device or huge file has the name of a file to read."""


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read, without waiting for a writer if it is a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes | None:
    """Return a file's content, or None if there is no such file.

    Raises `OSError`, and `NotRegularError` if it is not a regular file of at most 64 MiB.
    """
    try:
        with _open_regular(path) as handle:
            content = handle.read(_MAX_READ_BYTES + 1)
            if len(content) > _MAX_READ_BYTES:
                raise NotRegularError(f"has more than {_MAX_READ_BYTES >> 20} MiB")
            return content
    except FileNotFoundError:
        return None


def consists_of(path: Path, pieces: Iterable[Piece]) -> bool:
    """Return whether a file certainly consists of these pieces; False if it cannot be read."""
    try:
        with _open_regular(path) as handle:
            for piece in pieces:
                hasher = hashlib.sha256()
                bytes_left = piece.size
                while bytes_left and (block := handle.read(min(bytes_left, _BLOCK_BYTES))):
                    hasher.update(block)
                    bytes_left -= len(block)
                if bytes_left or hasher.hexdigest() != piece.sha256:
                    return False
            return not handle.read(1)
    except (OSError, NotRegularError):
        return False


def first_difference(path: Path, expected: Iterable[tuple[str, bytes]]) -> Difference | None:
    """Return where a file first differs from `expected`, or None if it does not.

    `expected` yields, for each line, its origin in the ledger, for messages, and the line.
    """
    number = 0
    try:
        with _open_regular(path) as handle:
            for number, (origin, line) in enumerate(expected, 1):
                # A longer line of the file is never read whole.
                if handle.readline(len(line)) != line:
                    return Difference(path, number, f"differs from the ledger at {origin}")
            if handle.read(1):
                return Difference(path, number + 1, "has more than the ledger")
    except FileNotFoundError:
        return Difference(path, 0, "is missing")
    except NotRegularError as error:
        return Difference(path, 0, str(error))
    except OSError as error:
        return Difference(path, number, f"cannot be read: {error.strerror}")
    return None
