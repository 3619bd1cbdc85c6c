"""Apply patches that `patches` made, to restore the text files of a workspace.

A patch is stored evidence and not trusted. Callers ask for files by name, so names in the patch
are never used as paths, and callers check each result against the expected digest. Used by
`restored_workspace`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator

from labledger.workspace import patches

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@\n")
_NO_NEWLINE = b"\\ No newline at end of file\n"


class PatchMismatch(Exception):
    """A patch does not match the file that it should change."""


def pieces_by_name(patch: bytes, names: Iterable[str]) -> dict[str, list[bytes]]:
    """Return the lines that a patch has for each of `names` that it changes as a text."""
    by_header = {patches.header(name).encode(): name for name in names}
    by_name: dict[str, list[bytes]] = {}
    lines: list[bytes] = []
    for line in io.BytesIO(patch):
        # No line inside a hunk begins with any of these.
        if line.startswith((patches.HEADER, b"Binary files ", b"# ")):
            lines = []
            if (name := by_header.get(line)) is not None:
                by_name[name] = lines
        else:
            lines.append(line)
    return by_name


def apply_piece(piece: list[bytes], old: bytes) -> bytes:
    """Return a file's content after its piece of a patch. Raises `PatchMismatch`."""
    before = list(io.BytesIO(old))
    after: list[bytes] = []
    position = 0
    for start, changes in _hunks(piece):
        if not position <= start <= len(before):
            raise PatchMismatch
        after += before[position:start]
        position = start
        for sign, line in changes:
            if sign == b"+":
                after.append(line)
                continue
            if position == len(before) or before[position] != line:
                raise PatchMismatch
            if sign == b" ":
                after.append(line)
            position += 1
    return b"".join(after + before[position:])


def _hunks(piece: list[bytes]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    """Yield each hunk: the old line, from 0, before which it begins, and its lines with signs."""
    changes: list[tuple[bytes, bytes]] | None = None
    start = 0
    for line in piece:
        if match := _HUNK.fullmatch(line):
            if changes is not None:
                yield start, changes
            # A hunk that changes no line of the old file names the one before it.
            start = int(match[1]) - (match[2] is None or int(match[2]) > 0)
            changes = []
        elif changes is None:
            continue  # Modes and names.
        elif line == _NO_NEWLINE and changes:
            sign, text = changes[-1]
            changes[-1] = sign, text.removesuffix(b"\n")
        elif line[:1] in {b" ", b"-", b"+"}:
            changes.append((line[:1], line[1:]))
        else:
            raise PatchMismatch
    if changes is not None:
        yield start, changes
