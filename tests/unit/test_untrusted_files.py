"""Reading files that a container wrote."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from labledger.files.untrusted_files import UnsafeFile, UntrustedFile, head_chunks, read_optional
from labledger.records.canonical_json import sha256_hex
from labledger.records.outcomes import Reason


def refused(folder: Path, name: str = "out", cap: int = 100) -> UnsafeFile:
    """Return the error of every way of reading."""
    for method in ("read", "sha256"):
        with pytest.raises(UnsafeFile):
            getattr(UntrustedFile(folder, name), method)(cap)
    with pytest.raises(UnsafeFile) as caught:
        head(folder, name, cap)
    return caught.value


def head(folder: Path, name: str, size: int) -> bytes | None:
    with UntrustedFile(folder, name).opened() as file:
        return None if file is None else b"".join(head_chunks(file, size))


def test_plain_files(tmp_path: Path) -> None:
    """A regular file is read to the last byte that the cap allows."""
    (tmp_path / "out").write_bytes(b"x" * 100)
    file = UntrustedFile(tmp_path, "out")
    assert file.read(100) == b"x" * 100
    assert head(tmp_path, "out", 10) == b"x" * 10
    assert file.sha256(100) == sha256_hex(b"x" * 100)
    assert UntrustedFile(tmp_path, "none").read(100) is None
    assert head(tmp_path, "none", 100) is None
    assert UntrustedFile(tmp_path, "none").sha256(100) is None


def test_large_files(tmp_path: Path) -> None:
    """A file beyond the cap is refused, by its size or by its real content."""
    (tmp_path / "out").write_bytes(b"x" * 101)
    for method in ("read", "sha256"):
        with pytest.raises(UnsafeFile) as caught:
            getattr(UntrustedFile(tmp_path, "out"), method)(100)
        assert caught.value.reason is Reason.OUTPUT_TOO_LARGE
        assert "out has 101 bytes" in caught.value.message, "refused by its size, not by reading"
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert read_optional(tmp_path, "sparse", 100)[0] is None
    assert head(tmp_path, "sparse", 100) == bytes(100)
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(UnsafeFile):
        head(tmp_path, "endless", 100)
    lying = UntrustedFile(Path("/proc/self"), "environ")  # The size is 0, and there is content.
    with pytest.raises(UnsafeFile):
        lying.read(1)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
        ("folder", "a folder"),
        ("fifo", "FIFO"),
        ("socket", "socket"),
        ("hard link", "2 names"),
    ],
)
def test_what_is_no_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    """A path that is not a regular file is refused with its kind, without following or waiting."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "target"
    target.write_text("secret")
    out = tmp_path / "out"
    match kind:
        case "link":
            out.symlink_to(target)
        case "dangling":
            out.symlink_to("nowhere")
        case "folder":
            out.mkdir()
        case "fifo":
            os.mkfifo(out)
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind("out")
        case _:
            out.hardlink_to(target)
    refusal = refused(tmp_path)
    assert refusal.reason is Reason.OUTPUT_UNSAFE
    assert word in refusal.message
    content, problem = read_optional(tmp_path, "out", 100)
    assert content is None
    assert problem == refusal.message


def test_devices() -> None:
    """A device is not opened."""
    assert "a device" in refused(Path("/dev"), "zero").message


def test_folder_that_became_a_link(tmp_path: Path) -> None:
    """The folder itself is not followed if it is a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "out").write_text("x")
    (tmp_path / "folder").symlink_to("real")
    assert "folder cannot be opened" in refused(tmp_path / "folder").message
    assert "folder cannot be opened" in refused(tmp_path / "none").message


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_swap_between_looking_and_opening(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced after the check is refused, and its replacement is not opened."""
    out = tmp_path / "out"
    out.write_text("harmless")
    (tmp_path / "secret").write_text("secret")
    look, opened = os.fstat, os.open
    reopened: list[str] = []

    def look_and_swap(handle: int) -> os.stat_result:
        seen = look(handle)
        if not reopened:
            reopened.append("swapped")
            out.unlink()
            os.mkfifo(out) if kind == "fifo" else out.symlink_to("secret")
        return seen

    def open_noted(path: str, *args: int, **settings: int) -> int:
        reopened.append(str(path))
        return opened(path, *args, **settings)

    monkeypatch.setattr(os, "fstat", look_and_swap)
    with pytest.raises(UnsafeFile, match="has 0 names"):
        UntrustedFile(tmp_path, "out").read(100)
    reopened.clear()
    monkeypatch.setattr(os, "open", open_noted)
    with pytest.raises(UnsafeFile, match="a FIFO" if kind == "fifo" else "a symbolic link"):
        UntrustedFile(tmp_path, "out").read(100)
    assert reopened == [str(tmp_path), "out"]
