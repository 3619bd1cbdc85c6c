"""Write files that appear under their names as a whole, and are durable when they do.

A reader sees the old or the new content, never a part. Use these functions for every file of a lab
that must survive a crash, except the ledger and appended mirrors. `write_content` alone does not
make its files durable.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

_NAMELESS_REFUSED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""The errors of `open` on a file system that cannot create files without a name."""

Fence = Callable[[], AbstractContextManager[object]]
"""Returns a context that raises on entry if this process no longer owns the written files."""


def write_file(path: Path, content: bytes) -> None:
    """Write or replace `path` as a whole. On `OSError`, `path` is unchanged."""
    with replace_file(path) as handle:
        handle.write(content)


@contextmanager
def replace_file(
    path: Path, fence: Fence = nullcontext, *, mode: int = 0o600
) -> Iterator[BinaryIO]:
    """Yield a file that gets the name `path`, within `fence`, when the block ends without error.

    Creates missing folders above it. The umask reduces `mode`. On `OSError`, `path` is unchanged.
    """
    with new_file(path.parent, f".{path.name}.", mode=mode) as handle:
        yield handle
        publish(handle, path, fence)


def delete_unfinished(path: Path) -> None:
    """Delete the hidden files that killed writers of `path` left."""
    for part in path.parent.iterdir() if path.parent.is_dir() else ():
        if part.name.startswith(f".{path.name}."):
            part.unlink(missing_ok=True)


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that gets the new name `path`, durable, when the block ends without error.

    Until then it has no name, so that nothing remains if this process is killed. On a file system
    without such files, it has a hidden name in the same folder. Raises `FileExistsError` if the
    name exists by then, and `OSError`.
    """
    make_folder(path.parent)
    descriptor = open_nameless(path.parent)
    if descriptor is None:
        with new_file(path.parent, f".{path.name}.") as handle:
            yield handle
            refuse_existing(path)
            publish(handle, path)
        return
    with os.fdopen(descriptor, "w+b") as handle:
        yield handle
        handle.flush()
        os.fsync(descriptor)
        # Python asks the kernel to follow the link only if a folder is given, too.
        os.link(_open_path(descriptor), path, src_dir_fd=descriptor, follow_symlinks=True)
        sync_folder(path.parent)


def open_nameless(folder: Path) -> int | None:
    """Open a new file without a name in `folder`; None if the system cannot create or name it."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NAMELESS_REFUSED:
            return None
        raise
    if Path(_open_path(descriptor)).is_symlink():
        return descriptor
    os.close(descriptor)
    return None


def _open_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def refuse_existing(path: Path) -> None:
    """Raise `FileExistsError` if anything exists at `path`."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


@contextmanager
def new_file(folder: Path, prefix: str = "", *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yield a new file in `folder`, which is created if missing. `publish` names it.

    If the block ends with an error, the file is deleted.
    """
    make_folder(folder)
    path = folder / f"{prefix}{secrets.token_hex(8)}"
    try:
        with open(path, "xb", opener=partial(os.open, mode=mode)) as handle:
            yield handle
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def publish(handle: BinaryIO, path: Path, fence: Fence = nullcontext) -> None:
    """Make a `new_file` durable and rename it, within `fence`, to `path`."""
    handle.flush()
    os.fsync(handle.fileno())
    with fence():
        Path(handle.name).replace(path)
    sync_folder(path.parent)


def set_aside(path: Path) -> None:
    """Rename a folder, link, FIFO or device at `path`, to make room for a regular file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.rename(path.with_name(f"{path.name}.set-aside-{secrets.token_hex(4)}"))


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, with durable names."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            # Another process may have created it first.
            if not folder.is_dir():
                reason = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from None
        sync_folder(folder.parent)


@contextmanager
def filled_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder, which gets the name `target` when the block ends without error.

    Until then, it has a hidden name beside `target`. It is removed if the block raises, or if
    another process creates `target` first, with the same content. Files in it are not made
    durable. Raises `OSError`.
    """
    # Imported late: it takes longer than a small query.
    import shutil

    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        unfinished.mkdir()
        yield unfinished
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Make everything in a folder and in its subfolders durable, with all names."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names of the entries of `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- contents of files that are created or copied


@dataclass(frozen=True, slots=True)
class LinkTo:
    """A symbolic link to write instead of a file. It is written unchanged and never followed."""

    target: str


@dataclass(frozen=True, slots=True)
class EmptyFolder:
    """An empty folder to make instead of a file."""


FileContent = bytes | Path | LinkTo | EmptyFolder
"""The content of a file, the path of a file to copy, a link, or an empty folder.

A copy keeps its executable bit.
"""

_CHUNK = 1 << 20


def write_content(target: Path, content: FileContent) -> None:
    """Write a new file, link or folder. Raises `FileExistsError` and `OSError`."""
    if isinstance(content, LinkTo):
        target.symlink_to(content.target)
        return
    if isinstance(content, EmptyFolder):
        target.mkdir()
        return
    file = target.open("xb")
    try:
        with file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                file.writelines(file_pieces(content))
        if _is_executable(content):
            target.chmod(target.stat().st_mode | 0o111)
    except BaseException:
        target.unlink()
        raise


def file_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises `OSError`."""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            yield piece


def content_digest(content: bytes | Path) -> str:
    """Return the SHA-256 (hex) of a content. Raises `OSError`."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(content: FileContent) -> str:
    """Return a text that identifies the result of `write_content`. Raises `OSError`."""
    if isinstance(content, LinkTo):
        return f"{content_digest(os.fsencode(content.target))} link"
    if isinstance(content, EmptyFolder):
        return "folder"
    digest = content_digest(content)
    return f"{digest} executable" if _is_executable(content) else digest


def content_on_disk(path: Path) -> FileContent | None:
    """Return the content that `write_content` may have written at a path; None without any."""
    if path.is_symlink():
        return LinkTo(os.readlink(path))  # noqa: PTH115
    if path.is_dir():
        return None if any(path.iterdir()) else EmptyFolder()
    return path if path.is_file() else None


def _is_executable(content: bytes | Path) -> bool:
    return isinstance(content, Path) and bool(content.stat().st_mode & 0o111)
