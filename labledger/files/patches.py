"""Make a unified diff of an agent's changes, and apply such a patch again.

Size and effort are limited. Files that a diff cannot represent are named in it and listed as
`unpatchable`, so that a tar can hold them. A stored patch is not trusted: its names are never used
as paths, and callers must check each restored file.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labledger.files.untrusted_files import MIB, UnsafeFile, UntrustedFile
from labledger.files.workspace_listing import Entry, Listing
from labledger.files.workspace_seed import Seed

MAX_PATCHED = 256 * 1024
"""A file with more bytes is named in the patch, but not compared line by line."""
PATCH_CAP = 1 * MIB
_MAX_SEED_BYTES = 64 * MIB
"""The most bytes of the seed's files that are held in memory. Others are not compared."""

MAX_FILE_PAIRS = 4_000_000
_MAX_PAIRS = 4 * MAX_FILE_PAIRS
"""The most pairs of lines that are compared, in one file and in all files.

A file with more pairs gets one hunk, from its first to its last changed line, because `difflib` can
take more than quadratic time.
"""
_CONTEXT = 3

HEADER = b"diff --git "
"""The beginning of the patch of a text file."""
TRUNCATION_MARK = "# the patch ends here: "


@dataclass(frozen=True, slots=True)
class _Change:
    """A path whose entry has changed."""

    name: str
    before: Entry | None
    after: Entry | None
    old: bytes | None
    new: bytes | None

    @property
    def why_not_compared(self) -> str | None:
        """A description of the content that cannot be compared; None if both contents can."""
        for entry, content in ((self.after, self.new), (self.before, self.old)):
            if entry is not None and content is None:
                return f"{entry.kind} of {entry.size:,} bytes, not compared"
        return None


@dataclass(slots=True)
class Patch:
    """The changes of a workspace, path by path."""

    pieces: list[tuple[str, bytes]] = field(default_factory=list)
    """Each path with its lines in the patch."""
    unpatchable: list[str] = field(default_factory=list)
    """Paths whose current content cannot be restored from the seed and the patch."""
    end: bytes = b""

    @property
    def content(self) -> bytes:
        return b"".join([*(piece for _, piece in self.pieces), self.end])


def patch(seed: Seed, workspace: Path, before: Listing, after: Listing) -> Patch:
    """Return the patch from the seed to the current workspace, of at most `PATCH_CAP` bytes.

    Files that cannot be compared, such as binary ones, are named in separate lines.
    """
    names = {
        n for n in before.entries | after.entries if before.entries.get(n) != after.entries.get(n)
    }
    if before.truncated or after.truncated:
        names &= before.entries.keys() & after.entries.keys()
    if not names:
        return Patch()
    return patch_of(
        sorted(names),
        before.entries,
        after.entries,
        seeded_texts(seed, names).get,
        lambda name: _content(workspace / name),
    )


def patch_of(
    names: Iterable[str],
    before: Mapping[str, Entry],
    after: Mapping[str, Entry],
    old_content: Callable[[str], bytes | None],
    new_content: Callable[[str], bytes | None],
) -> Patch:
    """Return the patch of `names`, in this order, of at most `PATCH_CAP` bytes.

    `old_content` and `new_content` return a file's content, or None if it must not be compared.
    """
    result = Patch()
    budget = _DiffBudget()
    bytes_left = PATCH_CAP
    for name in names:
        old_entry, entry = before.get(name), after.get(name)
        piece = b""
        if not result.end:
            new = new_content(name) if entry and entry.kind == "file" else None
            change = _Change(name, old_entry, entry, old_content(name), new)
            piece = "".join(_file_patch(change, budget)).encode()
            bytes_left -= len(piece)
            if bytes_left < 0:
                result.end = f"{TRUNCATION_MARK}more than {PATCH_CAP:,} bytes\n".encode()
        is_in_patch = bytes_left >= 0 and piece.startswith(HEADER)
        if not is_in_patch and entry is not None and not entry.has_same_content(old_entry):
            result.unpatchable.append(name)
        if bytes_left >= 0:
            result.pieces.append((name, piece))
    return result


def seeded_texts(seed: Seed, names: Container[str] | None = None) -> dict[str, bytes]:
    """Return the contents of a seed's files that a patch compares. None means all names."""
    contents: dict[str, bytes] = {}
    bytes_left = _MAX_SEED_BYTES
    for seeded in seed.entries():
        small = len(seeded.content) <= min(MAX_PATCHED, bytes_left)
        if (names is None or seeded.name in names) and small and not seeded.is_link:
            contents[seeded.name] = seeded.content
            bytes_left -= len(seeded.content)
    return contents


def _content(path: Path) -> bytes | None:
    """Return a file's content, or None if it is too large or cannot be read safely."""
    try:
        return UntrustedFile(path.parent, path.name).read(MAX_PATCHED)
    except UnsafeFile:
        return None


def _file_patch(change: _Change, budget: _DiffBudget) -> Iterator[str]:
    old_name, new_name = quoted(f"a/{change.name}"), quoted(f"b/{change.name}")
    if (what := change.why_not_compared) is not None:
        yield f"# {quoted(change.name)}: {what}\n"
        return
    old, new = _lines(change.old), _lines(change.new)
    if old is None or new is None:
        yield f"Binary files {old_name} and {new_name} differ\n"
        return
    mode = [
        f"100{'755' if e.executable else '644'}" if e else "" for e in (change.before, change.after)
    ]
    if old == new and mode[0] == mode[1]:
        return
    yield header(change.name)
    if change.before is None:
        yield f"new file mode {mode[1]}\n"
    elif change.after is None:
        yield f"deleted file mode {mode[0]}\n"
    elif mode[0] != mode[1]:
        yield f"old mode {mode[0]}\nnew mode {mode[1]}\n"
    if old != new:
        yield f"--- {_terminated(old_name) if change.before else '/dev/null'}\n"
        yield f"+++ {_terminated(new_name) if change.after else '/dev/null'}\n"
        for line in budget.hunks(old, new):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


@dataclass(slots=True)
class _DiffBudget:
    """Compares files within a limit of pairs of lines."""

    pairs_left: int = _MAX_PAIRS

    def hunks(self, old: list[str], new: list[str]) -> Iterator[str]:
        pairs = len(old) * len(new)
        if pairs > min(MAX_FILE_PAIRS, self.pairs_left):
            return _one_hunk(old, new)
        self.pairs_left -= pairs
        lines = difflib.unified_diff(old, new, n=_CONTEXT)
        next(lines), next(lines)  # Skip `---` and `+++`. The caller writes them with git's quoting.
        return lines


def _one_hunk(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the lines of one hunk from the first changed line to the last."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    start = max(0, head - _CONTEXT)
    context = min(_CONTEXT, tail)
    old_end, new_end = len(old) - tail, len(new) - tail
    yield f"@@ -{_range(start, old_end + context)} +{_range(start, new_end + context)} @@\n"
    yield from (f" {line}" for line in old[start:head])
    yield from (f"-{line}" for line in old[head:old_end])
    yield from (f"+{line}" for line in new[head:new_end])
    yield from (f" {line}" for line in old[old_end : old_end + context])


def _range(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text, or None if the content is not UTF-8 text."""
    if content is None:
        return []
    if b"\0" in content:
        return None
    try:
        return list(io.StringIO(content.decode("utf-8"), newline="\n"))
    except UnicodeDecodeError:
        return None


def header(name: str) -> str:
    """Return the first line of a text file's patch."""
    return f"{HEADER.decode()}{quoted(f'a/{name}')} {quoted(f'b/{name}')}\n"


def _terminated(name: str) -> str:
    """Return a name for a `---` or `+++` line, where a tab ends a name with spaces."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def quoted(name: str) -> str:
    """Return a path as git writes it: quoted as in C if it has special characters."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return '"' + "".join(_ESCAPES.get(char) or _octal(char) for char in name) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _octal(char: str) -> str:
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in char.encode())


_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@\n")
_NO_NEWLINE = b"\\ No newline at end of file\n"


class PatchMismatch(Exception):
    """A patch does not match the file that it changes."""


def pieces_by_name(patch: bytes, names: Iterable[str]) -> dict[str, list[bytes]]:
    """Return the lines of a patch for each of `names` that it changes as text."""
    by_header = {header(name).encode(): name for name in names}
    by_name: dict[str, list[bytes]] = {}
    lines: list[bytes] = []
    for line in io.BytesIO(patch):
        # No line inside a hunk begins with any of these.
        if line.startswith((HEADER, b"Binary files ", b"# ")):
            lines = []
            if (name := by_header.get(line)) is not None:
                by_name[name] = lines
        else:
            lines.append(line)
    return by_name


def apply_piece(piece: list[bytes], old: bytes) -> bytes:
    """Apply a file's piece of a patch to its old content. Raises `PatchMismatch`."""
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
    """Yield each hunk: the index of its first old line, and its lines with their signs."""
    changes: list[tuple[bytes, bytes]] | None = None
    start = 0
    for line in piece:
        if match := _HUNK.fullmatch(line):
            if changes is not None:
                yield start, changes
            # A hunk without old lines names the line before it.
            start = int(match[1]) - (match[2] is None or int(match[2]) > 0)
            changes = []
        elif changes is None:
            continue  # A line with a mode or a name.
        elif line == _NO_NEWLINE and changes:
            sign, text = changes[-1]
            changes[-1] = sign, text.removesuffix(b"\n")
        elif line[:1] in {b" ", b"-", b"+"}:
            changes.append((line[:1], line[1:]))
        else:
            raise PatchMismatch
    if changes is not None:
        yield start, changes
