"""What an agent changed: the workspace's files before and after, and a patch of the text."""

from __future__ import annotations

import difflib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labledger.canonical import sha256_hex
from labledger.records import JsonObject
from labledger.trial.inputs import Seed
from labledger.trial.outputs import MIB, OutputFile, OutputRefused

LEFT_OUT = frozenset(
    {
        *(".git", ".hg", ".svn"),
        *(".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", "__pycache__"),
        *(".venv", "venv", "site-packages", "node_modules"),
    }
)
"""Folders that hold dependencies, caches or history: named in a listing, not looked into."""

MAX_ENTRIES = 20_000
MAX_HASHED = 64 * MIB
MAX_PATCHED = 256 * 1024
"""A larger text is named in the patch, not compared line by line."""
PATCH_CAP = 1 * MIB


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    """`file`, `link` or `other`."""
    size: int
    sha256: str | None = None
    executable: bool = False


@dataclass(slots=True)
class Listing:
    """The files of a workspace by name."""

    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    truncated: bool = False

    def as_json(self) -> JsonObject:
        return {
            "version": 1,
            "files": [
                {"path": name, "kind": e.kind, "size": e.size}
                | ({"sha256": e.sha256} if e.sha256 else {})
                | ({"executable": True} if e.executable else {})
                for name, e in sorted(self.entries.items())
            ],
            "left_out": sorted(self.left_out),
            "truncated": self.truncated,
        }

    def add(self, name: str, entry: Entry) -> None:
        if len(self.entries) >= MAX_ENTRIES:
            self.truncated = True
        else:
            self.entries[name] = entry


def list_seed(seed: Seed) -> Listing:
    """The workspace as the runner seeded it."""
    listing = Listing()
    for name, content, executable in seed.files():
        folder = next((part for part in Path(name).parts[:-1] if part in LEFT_OUT), None)
        if folder is None:
            listing.add(name, Entry("file", len(content), sha256_hex(content), executable))
    return listing


def list_folder(workspace: Path) -> Listing:
    """The workspace as it is now. Follows no link and opens nothing but regular files."""
    listing = Listing()
    for folder, name, found in _walk(workspace, "", listing):
        path = f"{folder}{name}"
        if stat.S_ISLNK(found.st_mode):
            listing.add(path, Entry("link", found.st_size))
        elif not stat.S_ISREG(found.st_mode):
            listing.add(path, Entry("other", 0))
        else:
            content = _read(workspace, path, MAX_HASHED)
            sha256 = sha256_hex(content) if content is not None else None
            executable = bool(found.st_mode & stat.S_IXUSR)
            listing.add(path, Entry("file", found.st_size, sha256, executable))
    return listing


def _walk(top: Path, inside: str, listing: Listing) -> Iterator[tuple[str, str, os.stat_result]]:
    try:
        children = sorted(os.scandir(top / inside), key=lambda child: child.name)
    except OSError:
        listing.left_out.append(inside.rstrip("/") or ".")
        return
    for child in children:
        if listing.truncated:
            return
        name = _printable(child.name)
        if not child.is_dir(follow_symlinks=False):
            yield inside, name, child.stat(follow_symlinks=False)
        elif child.name in LEFT_OUT or name != child.name:
            listing.left_out.append(f"{inside}{name}")
        else:
            yield from _walk(top, f"{inside}{name}/", listing)


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read(workspace: Path, name: str, cap: int) -> bytes | None:
    """A file's content, or None where it cannot be read safely."""
    path = workspace / name
    try:
        return OutputFile(path.parent, path.name).read(cap)
    except OutputRefused:
        return None


def patch(seed: Seed, workspace: Path, before: Listing, after: Listing) -> bytes:
    """A unified patch from the seeded workspace to the present one, at most `PATCH_CAP` bytes."""
    names = {name for name in before.entries | after.entries if _changed(name, before, after)}
    if not names:
        return b""
    old = {name: content for name, content, _ in seed.files() if name in names}
    pieces: list[bytes] = []
    size = 0
    for name in sorted(names):
        entry = after.entries.get(name)
        new = _read(workspace, name, MAX_PATCHED) if entry and entry.kind == "file" else None
        piece = _file_patch(name, old.get(name), new, entry)
        if size + len(piece) > PATCH_CAP:
            pieces.append(f"# the patch ends here: more than {PATCH_CAP:,} bytes\n".encode())
            break
        size += len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _changed(name: str, before: Listing, after: Listing) -> bool:
    return before.entries.get(name) != after.entries.get(name)


def _file_patch(name: str, old: bytes | None, new: bytes | None, now: Entry | None) -> bytes:
    head = f"diff --git a/{name} b/{name}\n"
    if old is None:
        head += f"new file mode {'100755' if now and now.executable else '100644'}\n"
    elif now is None:
        head += "deleted file mode 100644\n"
    if now is not None and new is None:
        note = f"# {now.kind} of {now.size:,} bytes, not compared\n"
        return (head + note).encode()
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return (head + f"Binary files a/{name} and b/{name} differ\n").encode()
    a, b = (
        "/dev/null" if old is None else f"a/{name}",
        "/dev/null" if new is None else f"b/{name}",
    )
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, a, b)
    )
    return (head + text).encode()


def _lines(content: bytes | None) -> list[str] | None:
    """The lines of a text, or None where the content is not a text to compare."""
    if content is None:
        return []
    if len(content) > MAX_PATCHED or b"\0" in content:
        return None
    try:
        return list(io.StringIO(content.decode("utf-8"), newline="\n"))
    except UnicodeDecodeError:
        return None
