"""Files that are replaced as a whole, and iterables in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from labledger.errors import LabLedgerError
from labledger.files.durable_files import (
    delete_unfinished,
    replace_file,
    write_file,
)
from labledger.files.output_files import open_output, replace_output
from labledger.ledger.database.connection import batched


@contextmanager
def lost() -> Iterator[None]:
    """The fence of a process that no longer owns the file."""
    raise LabLedgerError("the run is another process's")
    yield


def test_replacing_a_file_as_a_whole(tmp_path: Path) -> None:
    """A file is replaced at once; a failure keeps the old file and leaves nothing else."""
    path = tmp_path / "new" / "file.json"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]
    folder = tmp_path / "folder"
    (folder / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        write_file(folder, b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "new"]


def test_what_a_killed_process_has_left_of_a_file_is_deleted(tmp_path: Path) -> None:
    """Leftovers of a killed process are deleted, and similarly named files are not."""
    path, other = tmp_path / "7-1.notes", tmp_path / "17-1.notes"
    for file in (path, other):
        write_file(file, b"whole")
        file.with_name(f".{file.name}.0123456789abcdef").write_bytes(b"wh")
    delete_unfinished(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".17-1.notes.0123456789abcdef",
        "17-1.notes",
        "7-1.notes",
    ]
    delete_unfinished(tmp_path / "missing" / "file")


def test_what_is_not_owned_is_not_replaced(tmp_path: Path) -> None:
    """If the fence raises or the block fails, the old content stays and nothing else is left."""
    path = tmp_path / "file.json"
    path.write_bytes(b"old")
    for replace in (replace_file, replace_output):
        with pytest.raises(LabLedgerError, match="another process"), replace(path, lost) as file:
            file.write(b"new")
        with pytest.raises(TypeError, match="bytes-like"), replace(path) as file:
            file.writelines([b"half", "text"])  # type: ignore[list-item]
        assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_modes_of_files(tmp_path: Path) -> None:
    """Files of a lab are private; an output keeps the mode of the file that it replaces."""
    lab = tmp_path / ".lab"
    (lab / "runs" / "folder").mkdir(parents=True)
    (lab / "ledger.sqlite").touch()
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    outputs = [lab / "runs" / "new", lab / "runs" / "folder", tmp_path / "old", tmp_path / "new"]
    for path in outputs:
        with replace_output(path) as file:
            file.write(b"x")
    umask = (tmp_path / "new").stat().st_mode & 0o777
    assert [path.stat().st_mode & 0o777 for path in outputs] == [0o600, 0o600, 0o640, umask]
    assert umask & 0o600 == 0o600
    assert [path.is_dir() for path in (lab / "runs").glob("folder.set-aside-*")] == [True]
    write_file(tmp_path / "note", b"x")
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o600


def test_batches() -> None:
    """Every item is in one batch, in order, and is read only when its batch is needed."""
    items = iter(range(7))
    batches = batched(items, 3)
    assert next(batches) == [0, 1, 2]
    assert next(items) == 3
    assert list(batches) == [[4, 5, 6]]
    assert list(batched([], 3)) == []


def test_an_output_is_a_file_or_a_stream(tmp_path: Path) -> None:
    """A path becomes a file once all is written; a stream gets the same bytes and stays open."""
    path, stream = tmp_path / "out", BytesIO()
    for out in (path, str(path), stream):
        with open_output(out) as handle:
            handle.write(b"rows")
            assert out is stream or not path.exists()
        path.unlink(missing_ok=out is stream)
    assert stream.getvalue() == b"rows"
