"""Files of an image below a trial's folder: read from a tar, merged, restored."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from labledger.files.tars import PieceStream
from labledger.trial.life.image_files import KeptFiles

Member = tuple[str, bytes | None, dict[str, object]]
"""The name of a member, its content, and attributes of its header."""


def folder(name: str, **attributes: object) -> Member:
    return name, None, {"type": tarfile.DIRTYPE, "mode": 0o755} | attributes


def link(name: str, target: str) -> Member:
    return name, None, {"type": tarfile.SYMTYPE, "linkname": target, "mode": 0o777}


def file(name: str, content: bytes = b"of image", **attributes: object) -> Member:
    return name, content, attributes


def unpacked(tmp_path: Path, *members: Member, path: str = "/tests") -> KeptFiles:
    """Return the folder that is kept from a tar of the engine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", encoding="utf-8") as archive:
        for name, content, attributes in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content or b""), 0o644
            for key, value in attributes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content or b""))
    kept = KeptFiles.at(tmp_path, path)
    assert kept.unpack(PieceStream(iter([buffer.getvalue()]))) is kept.exists()
    return kept


def write_task_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of task")
    path.chmod(0o644)


def listing(top: Path) -> dict[str, str]:
    """Return the entries below a folder: contents, `-> TARGET`, and `/` for folders."""
    texts = {}
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            texts[name] = f"-> {path.readlink()}"
        else:
            texts[name] = "/" if path.is_dir() else path.read_text()
    return texts


def test_a_folder_of_an_image(tmp_path: Path) -> None:
    """Files, folders, links and hard links are copied."""
    kept = unpacked(
        tmp_path,
        folder("tests/"),
        file("tests/a"),
        folder("tests/sub"),
        file("tests/sub/run", mode=0o755),
        link("tests/out", "/etc/passwd"),
        ("tests/twin", None, {"type": tarfile.LNKTYPE, "linkname": "tests/a"}),
    )
    assert listing(kept.content) == {
        "a": "of image",
        "out": "-> /etc/passwd",
        "sub": "/",
        "sub/run": "of image",
        "twin": "of image",
    }
    assert os.access(kept.content / "sub/run", os.X_OK)
    assert kept.facts() == {}


def test_any_user_of_a_container_can_read_them(tmp_path: Path) -> None:
    """Folders have 755 and files 644 or 755, whatever this user's umask."""
    task = tmp_path / "task"
    write_task_file(task / "new/x")
    before = os.umask(0o077)
    try:
        kept = unpacked(tmp_path, folder("tests"), folder("tests/a"), file("tests/a/b"))
        kept.under(task, tmp_path / "merged")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "merged").rglob("*")}
    assert modes == {"a": 0o755, "b": 0o644, "new": 0o755, "x": 0o644}
    assert (tmp_path / "merged").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "members",
    [
        [],
        [folder("tests")],
        [file("tests")],
        [link("tests", "/etc"), file("tests/a")],
        [folder("tests/deep"), file("tests/deep/a")],
    ],
)
def test_nothing_there(tmp_path: Path, members: list[Member]) -> None:
    """An empty folder, or a path that is not a folder, keeps nothing."""
    assert not unpacked(tmp_path, *members).exists()


def test_a_hostile_tar(tmp_path: Path) -> None:
    """Nothing is written outside, through a link, twice or beneath a file. Devices are left out."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "secret").write_text("not to be copied")
    kept = unpacked(
        tmp_path,
        folder("tests"),
        link("tests/away", str(tmp_path / "outside")),
        file("tests/away/x"),
        file("tests/../../escaped"),
        file("tests//double/../../escaped"),
        file("/escaped"),
        file("other/escaped"),
        file("tests/a"),
        file("tests/a", b"again"),
        file("tests/a/beneath"),
        file("tests/without/folder"),
        ("tests/device", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("tests/pipe", None, {"type": tarfile.FIFOTYPE}),
        ("tests/hard", None, {"type": tarfile.LNKTYPE, "linkname": "../secret"}),
        ("tests/hard2", None, {"type": tarfile.LNKTYPE, "linkname": "tests/away"}),
        ("tests/hard3", None, {"type": tarfile.LNKTYPE, "linkname": str(tmp_path / "secret")}),
    )
    assert listing(kept.content) == {"a": "of image", "away": f"-> {tmp_path / 'outside'}"}
    assert list((tmp_path / "outside").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image_files", "outside", "secret"]


def test_a_damaged_tar(tmp_path: Path) -> None:
    """A truncated tar is an error, because the image may hold more."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("tests")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        info = tarfile.TarInfo("tests/a")
        info.size = 5000
        archive.addfile(info, io.BytesIO(bytes(5000)))
    with pytest.raises((tarfile.TarError, EOFError)):
        KeptFiles.at(tmp_path, "/tests").unpack(PieceStream(iter([buffer.getvalue()[:2000]])))


def test_files_of_the_task_come_over_them(tmp_path: Path) -> None:
    """Folders are merged, and other files of the task replace the image's files."""
    kept = unpacked(
        tmp_path,
        folder("tests"),
        file("tests/kept"),
        file("tests/replaced"),
        folder("tests/sub"),
        file("tests/sub/kept"),
        folder("tests/becomes-file"),
        file("tests/becomes-file/x"),
        file("tests/becomes-folder"),
        link("tests/link", "/"),
        link("tests/link2", "kept"),
    )
    task = tmp_path / "task"
    for name in ("replaced", "sub/new", "becomes-file", "becomes-folder/x", "link/etc/x", "link2"):
        write_task_file(task / name)
    kept.under(task, tmp_path / "merged")
    assert listing(tmp_path / "merged") == {
        "becomes-file": "of task",
        "becomes-folder": "/",
        "becomes-folder/x": "of task",
        "kept": "of image",
        "link": "/",
        "link/etc": "/",
        "link/etc/x": "of task",
        "link2": "of task",
        "replaced": "of task",
        "sub": "/",
        "sub/kept": "of image",
        "sub/new": "of task",
    }


def test_permissions_come_back(tmp_path: Path) -> None:
    """Copies get the image's permissions; files of the task do not."""
    odd = "it's an $odd name"
    kept = unpacked(
        tmp_path,
        folder("tests"),
        folder("tests/open", mode=0o1777),
        file("tests/open/closed", mode=0o600),
        file(f"tests/{odd}", mode=0o4711),
        file("tests/replaced", mode=0o600),
        folder("tests/link", mode=0o700),
        file("tests/link/x", mode=0o600),
        *(file(f"tests/many{n:03}", mode=0o640) for n in range(250)),
    )
    task, merged = tmp_path / "task", tmp_path / "merged"
    task.mkdir()
    (task / "replaced").write_text("")
    (task / "link").symlink_to("open")
    names = kept.under(task, merged)
    script = "\n".join(kept.restoring_lines(str(merged), names, 125))
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
    modes = {
        path.relative_to(merged).as_posix(): path.stat().st_mode & 0o7777
        for path in merged.rglob("*")
        if not path.name.startswith("many") and not path.is_symlink()
    }
    assert modes == {"open": 0o1777, "open/closed": 0o600, odd: 0o4711, "replaced": 0o644}
    assert {path.stat().st_mode & 0o777 for path in merged.glob("many*")} == {0o640}


def test_owners_come_back_before_permissions(tmp_path: Path) -> None:
    """Files come before folders, so that only root can replace them by links until then."""
    kept = unpacked(
        tmp_path,
        folder("tests"),
        folder("tests/a", uid=7, gid=8),
        folder("tests/a/b", mode=0o777),
        file("tests/a/b/c", uid=7, gid=8, mode=0o640),
        link("tests/l", "a"),
    )
    lines = list(kept.restoring_lines("/tests", kept.facts(), 125))
    assert lines == [
        "chown -h -- 7:8 /tests/a/b/c || exit 125",
        "chmod -- 640 /tests/a/b/c || exit 125",
        "chmod -- 777 /tests/a/b || exit 125",
        "chown -h -- 7:8 /tests/a || exit 125",
        "chmod -- 755 /tests/a || exit 125",
    ]
