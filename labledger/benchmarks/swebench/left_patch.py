"""Read the patch and the notes of `patch.sh` from the tar of artifacts that a grader got.

A patch that is too large for a prediction is not kept in memory. Only its size and its largest file
are determined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from tarfile import TarFile, TarInfo

from labledger.files.tars import PieceStream, content_of, each_member, open_stream
from labledger.files.untrusted_files import PREDICTION_CAP
from labledger.text.figures import format_size

PATCH_NAME = "model.patch"
NOTES_NAME = "patch_notes"

_NOTES_CAP = 1 << 16
_MAX_NAMED = 5
"""The most left-out repositories that are named."""
_HEAD_BYTES = 600
"""The most bytes of a line that are examined, enough for a line with a file's name."""
_FILE_HEAD = b"diff --git "


@dataclass(frozen=True, slots=True)
class LeftPatch:
    """The patch of a trial, and the notes about it."""

    content: bytes | None = None
    """The patch; None if there is none, or if it is too large."""
    too_large: str | None = None
    """A sentence with its size and its largest file, if it is too large."""
    failed: str | None = None
    """Git's reason why `patch.sh` could not make a patch."""
    removed: str | None = None
    """The path that the agent removed and that a patch needs."""
    left_out: tuple[str, ...] = ()
    """The repositories inside the repository. Their files are not in the patch."""

    @property
    def left_out_text(self) -> str | None:
        """A sentence about left-out repositories; None without any."""
        if not self.left_out:
            return None
        more = len(self.left_out) - _MAX_NAMED
        named = ", ".join(self.left_out[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"the patch has no files of repositories inside the repository: {named}"


def read_left_patch(artifacts: Iterable[bytes] | None) -> LeftPatch:
    """Return the patch in a tar of artifacts, given in pieces; an empty one without a tar."""
    if artifacts is None:
        return LeftPatch()
    content: bytes | None = None
    too_large: str | None = None
    notes = b""
    with open_stream(PieceStream(iter(artifacts))) as tar:
        for member in each_member(tar):
            name = PurePosixPath(member.name).name
            if not member.isreg():
                continue
            if name == PATCH_NAME and member.size > PREDICTION_CAP:
                too_large = _size_text(tar, member)
            elif name == PATCH_NAME:
                content = b"".join(content_of(tar, member))
            elif name == NOTES_NAME and member.size <= _NOTES_CAP:
                notes = b"".join(content_of(tar, member))
    noted = list(_noted(notes))
    first = dict(reversed(noted))
    left_out = dict.fromkeys(text for kind, text in noted if kind == "left_out")
    return LeftPatch(content, too_large, first.get("failed"), first.get("removed"), tuple(left_out))


def _noted(notes: bytes) -> Iterator[tuple[str, str]]:
    for line in notes.decode("utf-8", "replace").split("\n"):
        kind, tab, text = line.partition("\t")
        if tab and text.strip():
            yield kind, text.strip()


def _size_text(tar: TarFile, member: TarInfo) -> str:
    text = (
        f"the patch has {format_size(member.size)} ({member.size:,} bytes), and a prediction may "
        f"have {format_size(PREDICTION_CAP)}"
    )
    name, size = _largest_file(content_of(tar, member))
    return (
        text if name is None else f"{text}; the largest file in it is {name}, {format_size(size)}"
    )


def _largest_file(pieces: Iterable[bytes]) -> tuple[str | None, int]:
    """Return the largest file of a patch, and its bytes; None without any file."""
    name: str | None = None
    largest: str | None = None
    size = most = 0
    for head, length in _lines(pieces):
        if head.startswith(_FILE_HEAD):
            name, size = _name_in(head), 0
        size += length
        if name is not None and size > most:
            largest, most = name, size
    return largest, most


def _name_in(head: bytes) -> str:
    """Return the file's name after the change in a line `diff --git a/NAME b/NAME`."""
    text = head.removeprefix(_FILE_HEAD).decode("utf-8", "replace").strip()
    if text.endswith('"'):
        return text.rpartition(' "b/')[2].removesuffix('"')
    return text.rpartition(" b/")[2]


def _lines(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the beginning and the length of each line."""
    head, length = b"", 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for part in ended:
            yield head + part[: _HEAD_BYTES - len(head)], length + len(part) + 1
            head, length = b"", 0
        head += rest[: _HEAD_BYTES - len(head)]
        length += len(rest)
    if length:
        yield head, length
