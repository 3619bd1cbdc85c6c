"""The context of an image build: what `.dockerignore` leaves in, as a tar with a digest.

A context is read as a stream, however large it is. Owners, times and most permissions are left out
(files are 644 or 755, as in a checkout), so that a copy of the folder on another machine gives the
same digest. Links are passed on, never followed. `.dockerignore` has Docker's rules: the last
pattern that matches decides, and one that begins with `!` brings back what an earlier one left out.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labledger.files.tars import SizeChanged, TarEntry, entry_on_disk, pieces, tar_chunks
from labledger.records import canonical_json

DEFAULT_DOCKERFILE = "Dockerfile"
_IGNORE_FILE = ".dockerignore"
_MAX_IGNORE_BYTES = 1 << 20


class UnusableContext(Exception):
    """A folder that no image can be built from. The argument says why."""


class ContextChanged(Exception):
    """The content of a context is not what its digest says."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A folder with a Dockerfile, and how to build an image from it."""

    folder: Path
    dockerfile: str = DEFAULT_DOCKERFILE
    """The Dockerfile's name relative to `folder`."""
    target: str | None = None
    """The stage of the Dockerfile that becomes the image; None for the last."""
    args: Mapping[str, str] | None = None
    """The build arguments (`ARG`)."""

    def digest(self) -> str:
        """Return the SHA-256 (hex) over everything here that can change the image.

        Raises `UnusableContext`.
        """
        hasher = hashlib.sha256()
        for chunk in self._tar():
            hasher.update(chunk)
        return self._digest(hasher.hexdigest())

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield the tar of the context in chunks.

        Raises `ContextChanged` before the last chunk if the content is no longer that of `digest`,
        so that nothing is built from it, and `UnusableContext`.
        """
        hasher = hashlib.sha256()
        held_back = b""
        for chunk in self._tar():
            hasher.update(chunk)
            if held_back:
                yield held_back
            held_back = chunk
        if self._digest(hasher.hexdigest()) != digest:
            raise ContextChanged(f"{self.folder} changed while the image was being built")
        yield held_back

    def _digest(self, tar_sha256: str) -> str:
        facts = {
            "context": tar_sha256,
            "dockerfile": self.dockerfile,
            "target": self.target,
            "args": dict(self.args or {}),
        }
        return canonical_json.digest(facts)

    def require_usable(self) -> None:
        """Raise `UnusableContext` if the folder or its Dockerfile is missing. Reads no content."""
        if not self.folder.is_dir():
            kind = "is not a folder" if self.folder.exists() else "does not exist"
            raise UnusableContext(f"{self.folder} {kind}")
        dockerfile = self.folder / self.dockerfile
        if not dockerfile.is_file():
            raise UnusableContext(f"there is no file {dockerfile}")
        if not dockerfile.resolve().is_relative_to(self.folder.resolve()):
            raise UnusableContext(f"{dockerfile} is a link that leads out of the folder")

    def _tar(self) -> Iterator[bytes]:
        self.require_usable()
        try:
            yield from tar_chunks(self._members())
        except SizeChanged as error:
            raise UnusableContext(f"{self.folder / str(error)} changed while it was read") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnusableContext(f"{error.filename or self.folder}: {reason}") from None

    def _members(self) -> Iterator[tuple[TarEntry, Iterator[bytes]]]:
        """Yield what belongs to the context in the order of its names."""
        patterns = self._ignore_patterns()
        # As the engine expects: it leaves these out itself if the patterns say so.
        always = {self.dockerfile, _IGNORE_FILE}
        pending: list[str] = []  # Folders that are left out, unless something in them is not.
        for name, status in _walk(self.folder, "", patterns, always):
            is_folder = stat.S_ISDIR(status.st_mode)
            if name not in always and patterns.leave_out(name):
                if is_folder:
                    pending.append(name)
                continue
            for parent in pending:
                if name.startswith(f"{parent}/"):
                    yield TarEntry(parent, tarfile.DIRTYPE), iter(())
            pending = [parent for parent in pending if not name.startswith(f"{parent}/")]
            yield self._member(name, status)

    def _member(self, name: str, status: os.stat_result) -> tuple[TarEntry, Iterator[bytes]]:
        path = self.folder / name
        entry = entry_on_disk(path, name, status)
        if entry is None:
            raise UnusableContext(f"{path} is neither a file, a folder nor a link")
        return entry, _content(path, entry) if entry.kind == tarfile.REGTYPE else iter(())

    def _ignore_patterns(self) -> IgnorePatterns:
        """Return the patterns of the Dockerfile's own ignore file, else of the folder's."""
        for name in (f"{self.dockerfile}{_IGNORE_FILE}", _IGNORE_FILE):
            path = self.folder / name
            try:
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise UnusableContext(f"{path} is not a regular file")
                with path.open("rb") as handle:
                    content = handle.read(_MAX_IGNORE_BYTES + 1)
                if len(content) > _MAX_IGNORE_BYTES:
                    raise UnusableContext(f"{path} is larger than {_MAX_IGNORE_BYTES >> 20} MiB")
                return IgnorePatterns.parse(content.decode("utf-8"))
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise UnusableContext(f"{path}: {error}") from None
        return IgnorePatterns()


def _walk(
    root: Path, folder: str, patterns: IgnorePatterns, always: set[str]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of everything below a folder; skip what is surely left out whole."""
    for entry in sorted(os.scandir(root / folder), key=lambda entry: entry.name):
        name = f"{folder}/{entry.name}" if folder else entry.name
        status = entry.stat(follow_symlinks=False)
        yield name, status
        if entry.is_dir(follow_symlinks=False):
            holds_needed = any(needed.startswith(f"{name}/") for needed in always)
            if patterns.has_exceptions or holds_needed or not patterns.leave_out(name):
                yield from _walk(root, name, patterns, always)


def _content(path: Path, entry: TarEntry) -> Iterator[bytes]:
    with path.open("rb") as content:
        yield from pieces(content, entry.size)


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    brings_back: bool


@dataclass(frozen=True, slots=True)
class IgnorePatterns:
    """The patterns of one file, in its order.

    A pattern matches a path of the context, and so everything beneath it. `*` and `?` match within
    a name, `**` any number of folders.
    """

    patterns: tuple[_Pattern, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the patterns of a file's text. Raises `ValueError` for one that is malformed."""
        patterns = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = "" if line.startswith("#") else line.strip()
            brings_back = pattern.startswith("!")
            if brings_back:
                pattern = pattern[1:].strip()
                if not pattern:
                    raise ValueError("found the pattern '!'; expected a name after it")
            if not pattern:
                continue
            clean = posixpath.normpath(pattern).lstrip("/")
            if clean and clean != ".":
                patterns.append(_Pattern(_regex(clean), brings_back))
        return cls(tuple(patterns))

    @property
    def has_exceptions(self) -> bool:
        """Whether a file in a folder that is left out may nevertheless be part of the context."""
        return any(pattern.brings_back for pattern in self.patterns)

    def leave_out(self, path: str) -> bool:
        """Return whether a path (`a/b`, relative to the context) is left out of the context."""
        steps = path.split("/")
        paths = ["/".join(steps[: count + 1]) for count in range(len(steps))]
        is_left_out = False
        for pattern in self.patterns:
            if pattern.brings_back is is_left_out and any(map(pattern.regex.fullmatch, paths)):
                is_left_out = not pattern.brings_back
        return is_left_out


def _regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern. Raises `ValueError` if it is malformed."""
    parts = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if pattern.startswith("**", position - 1):
            position += 1
            if pattern.startswith("/", position):
                position += 1
            parts.append("(?:.*/)?" if position < len(pattern) else ".*")
        elif character == "*":
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            end = pattern.find("]", position + 1)
            if end < 0:
                raise ValueError(f"found the pattern {pattern!r}; its '[' has no ']'")
            parts.append(_character_class(pattern[position:end]))
            position = end + 1
        elif character == "\\" and position < len(pattern):
            parts.append(re.escape(pattern[position]))
            position += 1
        else:
            parts.append(re.escape(character))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(f"found the pattern {pattern!r}: {error}") from None


def _character_class(content: str) -> str:
    negation = "^" if content.startswith("^") else ""
    escaped = re.sub(r"([\[&~|^])", r"\\\1", content[len(negation) :])
    return f"[{negation}{escaped}]"
