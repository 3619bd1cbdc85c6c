"""Small folders as tars, read on this host."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from labledger.files import tars


def names(folder: Path) -> list[str]:
    tar = tars.small_tar(folder, "top")
    assert tar is not None
    with tarfile.open(fileobj=tar) as archive:
        return archive.getnames()


def test_members_are_in_the_order_of_an_engine(tmp_path: Path) -> None:
    """A folder comes before its content, and entries are sorted by the bytes of their names."""
    (tmp_path / "a").mkdir()
    for name in ("a/b", "a-b", "é", b"\xff"):
        path = os.fsencode(tmp_path) + b"/" + os.fsencode(name)
        Path(os.fsdecode(path)).write_text("x")
    entries = names(tmp_path)
    assert entries == ["top", "top/a", "top/a/b", "top/a-b", "top/é", "top/\udcff"]


def test_contents_modes_times_and_links(tmp_path: Path) -> None:
    """A file keeps its content, permissions and time, and links are not followed."""
    (tmp_path / "program").write_text("content")
    (tmp_path / "program").chmod(0o751)
    os.utime(tmp_path / "program", (5, 1234.5))
    (tmp_path / "link").symlink_to("/etc")
    tar = tars.small_tar(tmp_path, "top")
    assert tar is not None
    with tarfile.open(fileobj=tar) as archive:
        program, link = archive.getmember("top/program"), archive.getmember("top/link")
        content = archive.extractfile(program)
        assert content is not None
        assert content.read() == b"content"
    assert (program.mode, program.mtime) == (0o751, 1234)
    assert (link.issym(), link.linkname) == (True, "/etc")


def hard_link(folder: Path) -> None:
    (folder / "a").write_text("x")
    (folder / "b").hardlink_to(folder / "a")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def many(folder: Path) -> None:
    (folder / "below").mkdir()
    for number in range(tars.MAX_ENTRIES):
        (folder / "below" / str(number)).touch()


def large(folder: Path) -> None:
    for name in ("a", "b"):
        with (folder / name).open("wb") as file:
            file.truncate(tars.MAX_BYTES // 2 + 1)


def gone(folder: Path) -> None:
    folder.rmdir()


@pytest.mark.parametrize("make", [hard_link, pipe, many, large, gone])
def test_the_engine_reads_every_other_folder(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Hard links, special files and large folders are left to the engine."""
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    assert tars.small_tar(folder, "top") is None


def test_a_deep_folder(tmp_path: Path) -> None:
    """Folders may be nested as deeply as one path can name."""
    path = tmp_path
    for _ in range(800):
        path /= "d"
    path.mkdir(parents=True)
    assert len(names(tmp_path)) == 801
