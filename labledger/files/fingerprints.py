"""Fingerprints of folders show whether anything in them was touched, without reading the files.

A fingerprint has the inode, mode, owner, size and times of each entry. Replacing a file and putting
it back changes an inode or a ctime, which users cannot set. Only a changed clock could hide such a
change.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labledger import clock

_STEP_NS = 50_000_000
"""Longer than the resolution of any file system's times, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The digest of the file system's facts about files and folders."""

    digest: str
    is_settled: bool
    """False after a change so recent that a further change might have the same times."""
    entries: int
    """The number of files, links and folders."""


def fingerprint(tops: Iterable[Path], alone: Iterable[Path] = ()) -> Fingerprint:
    """Return the fingerprint of `tops` with all entries, and of `alone` without their entries.

    Does not follow links. A missing path is part of the fingerprint. Raises `OSError`.
    """
    digest = hashlib.sha256()
    newest = entries = 0
    for top, status in _all(tops, alone):
        if status is None:
            digest.update(b"missing\n")
            continue
        entries += 1
        newest = max(newest, status.st_ctime_ns, status.st_mtime_ns)
        facts = (
            top,
            *(status.st_ino, status.st_mode, status.st_uid, status.st_gid),
            *(status.st_size, status.st_mtime_ns, status.st_ctime_ns),
        )
        digest.update(repr(facts).encode("utf-8", "surrogateescape") + b"\n")
    is_settled = newest + _STEP_NS < clock.unix_time() * 1e9
    return Fingerprint(digest.hexdigest(), is_settled, entries)


def _all(
    tops: Iterable[Path], alone: Iterable[Path]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield the names below the tops, with the file system's facts about each."""
    for path in alone:
        yield "", _status(path)
    for top in tops:
        status = _status(top)
        yield "", status
        if status is not None and stat.S_ISDIR(status.st_mode):
            for child, below in entries_below(str(top)):
                yield child[len(str(top)) :], below


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def entries_below(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder, in an order that depends only on the names."""
    with os.scandir(top) as children:
        entries = sorted(children, key=lambda child: child.name)
    for child in entries:
        status = child.stat(follow_symlinks=False)
        yield child.path, status
        if stat.S_ISDIR(status.st_mode):
            yield from entries_below(child.path)
