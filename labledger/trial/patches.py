"""What an agent changed, as one patch that `git apply` and `patch -p1` understand."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labledger.trial.outputs import MIB, UnsafeFile, UntrustedFile
from labledger.trial.seeds import Seed
from labledger.trial.workspace import Entry, Listing

MAX_PATCHED = 256 * 1024
"""A larger text is named in the patch, not compared line by line."""
PATCH_CAP = 1 * MIB
KEPT_FOR_COMPARISON = 64 * MIB
"""How much of what was there before is held in memory; the rest is not compared."""

_FILE_EFFORT = 4_000_000
_EFFORT = 4 * _FILE_EFFORT
"""How many pairs of lines are compared, in one file and in all. A file beyond is patched in one
piece, from its first changed line to its last: comparing well takes more than quadratic time.
"""
_CONTEXT = 3

HEADER = b"diff --git "
"""How the patch of a text begins."""
CUT = "# the patch ends here: "


@dataclass(frozen=True, slots=True)
class _Change:
    """A name whose entry is not what it was."""

    name: str
    before: Entry | None
    after: Entry | None
    old: bytes | None
    new: bytes | None

    @property
    def what_it_is(self) -> str | None:
        """A word for what cannot be shown as a change of text; None where it can."""
        for entry, content in ((self.after, self.new), (self.before, self.old)):
            if entry is not None and content is None:
                return f"{entry.kind} of {entry.size:,} bytes, not compared"
        return None


@dataclass(slots=True)
class Patch:
    """What an agent changed, name by name."""

    pieces: list[tuple[str, bytes]] = field(default_factory=list)
    """A name and what is said of it."""
    unpatchable: list[str] = field(default_factory=list)
    """Names of which neither the seed nor the patch says what lies there now."""
    end: bytes = b""

    @property
    def content(self) -> bytes:
        return b"".join([*(piece for _, piece in self.pieces), self.end])


def patch(seed: Seed, workspace: Path, before: Listing, after: Listing) -> Patch:
    """A unified patch from the seeded workspace to the present one, at most `PATCH_CAP` bytes.

    Binary, large and other files are named between the patches of texts, in lines that say so.
    """
    result = Patch()
    names = {
        n for n in before.entries | after.entries if before.entries.get(n) != after.entries.get(n)
    }
    if before.truncated or after.truncated:
        names &= before.entries.keys() & after.entries.keys()
    if not names:
        return result
    old = _old_contents(seed, names)
    effort = _Effort()
    room = PATCH_CAP
    for name in sorted(names):
        was, entry = before.entries.get(name), after.entries.get(name)
        piece = b""
        if not result.end:
            new = _content(workspace / name) if entry and entry.kind == "file" else None
            change = _Change(name, was, entry, old.get(name), new)
            piece = "".join(_file_patch(change, effort)).encode()
            room -= len(piece)
            if room < 0:
                result.end = f"{CUT}more than {PATCH_CAP:,} bytes\n".encode()
        carried = room >= 0 and piece.startswith(HEADER)
        if not carried and entry is not None and not entry.holds_what(was):
            result.unpatchable.append(name)
        if room >= 0:
            result.pieces.append((name, piece))
    return result


def _old_contents(seed: Seed, names: set[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    room = KEPT_FOR_COMPARISON
    for seeded in seed.entries():
        small = len(seeded.content) <= min(MAX_PATCHED, room)
        if seeded.name in names and small and not seeded.is_link:
            contents[seeded.name] = seeded.content
            room -= len(seeded.content)
    return contents


def _content(path: Path) -> bytes | None:
    """A file's content, or None where it is too large or cannot be read safely."""
    try:
        return UntrustedFile(path.parent, path.name).read(MAX_PATCHED)
    except UnsafeFile:
        return None


def _file_patch(change: _Change, effort: _Effort) -> Iterator[str]:
    a, b = quoted(f"a/{change.name}"), quoted(f"b/{change.name}")
    if (what := change.what_it_is) is not None:
        yield f"# {quoted(change.name)}: {what}\n"
        return
    old, new = _lines(change.old), _lines(change.new)
    if old is None or new is None:
        yield f"Binary files {a} and {b} differ\n"
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
        yield f"--- {_ended(a) if change.before else '/dev/null'}\n"
        yield f"+++ {_ended(b) if change.after else '/dev/null'}\n"
        for line in effort.hunks(old, new):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


@dataclass(slots=True)
class _Effort:
    """Compares lines as long as that does not take too much."""

    left: int = _EFFORT

    def hunks(self, old: list[str], new: list[str]) -> Iterator[str]:
        pairs = len(old) * len(new)
        if pairs > min(_FILE_EFFORT, self.left):
            return _one_hunk(old, new)
        self.left -= pairs
        lines = difflib.unified_diff(old, new, n=_CONTEXT)
        next(lines), next(lines)  # The names, which have been written as git quotes them.
        return lines


def _one_hunk(old: list[str], new: list[str]) -> Iterator[str]:
    """One hunk from the first changed line to the last."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    start = max(0, head - _CONTEXT)
    context = min(_CONTEXT, tail)
    ends = (len(old) - tail, len(new) - tail)
    yield f"@@ -{_range(start, ends[0] + context)} +{_range(start, ends[1] + context)} @@\n"
    yield from (f" {line}" for line in old[start:head])
    yield from (f"-{line}" for line in old[head : ends[0]])
    yield from (f"+{line}" for line in new[head : ends[1]])
    yield from (f" {line}" for line in old[ends[0] : ends[0] + context])


def _range(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"


def _lines(content: bytes | None) -> list[str] | None:
    """The lines of a text, or None where the content is not a text to compare."""
    if content is None:
        return []
    if b"\0" in content:
        return None
    try:
        return list(io.StringIO(content.decode("utf-8"), newline="\n"))
    except UnicodeDecodeError:
        return None


def header(name: str) -> str:
    """The line with which the patch of a text begins."""
    return f"{HEADER.decode()}{quoted(f'a/{name}')} {quoted(f'b/{name}')}\n"


def _ended(name: str) -> str:
    # The tab ends a name with spaces in it.
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def quoted(name: str) -> str:
    """A name as git writes it: quoted as in C where it could be taken for something else."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return '"' + "".join(_ESCAPES.get(char) or _octal(char) for char in name) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _octal(char: str) -> str:
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in char.encode())
