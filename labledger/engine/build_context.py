"""Read the context of an image build, and find what in its Dockerfile needs BuildKit.

A context is streamed, however large it is. Owners, times and most permissions are left out, so that
a copy on another machine has the same digest. Links are passed on, never followed. A Dockerfile is
searched line by line and never run.
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

from labledger.files.project_files import open_without_link
from labledger.files.tars import SizeChanged, TarEntry, entry_on_disk, pieces, tar_chunks
from labledger.records import canonical_json

DEFAULT_DOCKERFILE = "Dockerfile"
_IGNORE_FILE = ".dockerignore"
_MAX_IGNORE_BYTES = 1 << 20


class UnusableContext(Exception):
    """No image can be built from a folder. The argument says why."""


class ContextChanged(Exception):
    """The content of a context does not match its digest."""


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
        """Return the SHA-256 (hex) of everything that can change the image.

        Raises `UnusableContext`.
        """
        hasher = hashlib.sha256()
        for chunk in self._tar():
            hasher.update(chunk)
        return self._digest(hasher.hexdigest())

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield the tar of the context in chunks.

        Raises `ContextChanged` before the last chunk if the content does not match `digest`, so
        that the engine builds nothing from it. Raises `UnusableContext`.
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
        """Yield the members of the context, sorted by name."""
        patterns = self._ignore_patterns()
        # The engine expects these two files. It leaves them out itself if the patterns say so.
        always = {self.dockerfile, _IGNORE_FILE}
        pending: list[str] = []  # Ignored folders, needed only if something in them is not ignored.
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
        """Return the patterns of the Dockerfile's own ignore file, or else of the folder's."""
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
    """Yield name and status of everything below a folder. Skips folders that are ignored whole."""
    for entry in sorted(os.scandir(root / folder), key=lambda entry: entry.name):
        name = f"{folder}/{entry.name}" if folder else entry.name
        status = entry.stat(follow_symlinks=False)
        yield name, status
        if entry.is_dir(follow_symlinks=False):
            holds_needed = any(needed.startswith(f"{name}/") for needed in always)
            if patterns.has_exceptions or holds_needed or not patterns.leave_out(name):
                yield from _walk(root, name, patterns, always)


def _content(path: Path, entry: TarEntry) -> Iterator[bytes]:
    with open_without_link(path) as content:
        yield from pieces(content, entry.size)


@dataclass(frozen=True, slots=True)
class IgnorePatterns:
    """The patterns of one `.dockerignore` file, in its order, with Docker's rules.

    The last pattern that matches decides. A pattern that begins with `!` brings a path back. A
    pattern matches a path of the context, and so everything beneath it. `*` and `?` match within a
    name, `**` any number of folders.

    docker-py's `PatternMatcher` reads patterns as `fnmatch` does: to it, `[^a]` is `^` or `a`, and
    `\\` escapes nothing. It would send files that the engine leaves out, such as keys.
    """

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """Pairs of a pattern, and whether it brings a path back."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of an ignore file. Raises `ValueError` for a malformed pattern."""
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
                patterns.append((_regex(clean), brings_back))
        return cls(tuple(patterns))

    @property
    def has_exceptions(self) -> bool:
        """Whether a file in an ignored folder may still be part of the context."""
        return any(brings_back for _, brings_back in self.patterns)

    def leave_out(self, path: str) -> bool:
        """Return whether a path (`a/b`, relative to the context) is ignored."""
        steps = path.split("/")
        paths = ["/".join(steps[: count + 1]) for count in range(len(steps))]
        is_left_out = False
        for regex, brings_back in self.patterns:
            if brings_back is is_left_out and any(map(regex.fullmatch, paths)):
                is_left_out = not brings_back
        return is_left_out


def _regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for a pattern. Raises `ValueError` if it is malformed."""
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


# -- Dockerfiles

_HEREDOC = re.compile(r"[0-9]*<<-?(['\"]?)([A-Za-z_][\w.-]*)\1[;)&|]*")
_INSTRUCTION = re.compile(r"\s*(?:ONBUILD\s+)?([A-Za-z]+)\s+(.*)", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=|\s|$)")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S+)\s*")
_ARGUMENT = re.compile(r"((?:TARGET|BUILD)(?:PLATFORM|OS|ARCH|VARIANT))")
_STANDARD_FRONTEND = re.compile(r"(?:docker\.io/)?docker/dockerfile(?:-upstream)?(?:[:@].*)?")

_FLAGS = {
    "RUN": {"mount": False, "network": False, "security": False},
    "COPY": {"chmod": False, "link": True, "parents": True, "exclude": True},
    "ADD": {"chmod": False, "link": True, "checksum": True, "keep-git-dir": True, "exclude": True},
}
"""The flags that only BuildKit knows. The value is true if Dockerfile 1.4 or later is needed."""


@dataclass(frozen=True, slots=True)
class BuildKitNeed:
    """A line of a Dockerfile that only BuildKit can build."""

    line: int
    what: str
    is_recent: bool = False
    """Whether the line needs Dockerfile 1.4, which the BuildKit of engines before 23 does not
    know."""


@dataclass(frozen=True, slots=True)
class BuildKitNeeds:
    """All lines of one Dockerfile that only BuildKit can build.

    The engine's own builder does not know them, or silently gives build arguments another value.
    """

    needs: tuple[BuildKitNeed, ...]
    has_syntax: bool
    """Whether the file has a `# syntax=` line, which BuildKit obeys."""

    @property
    def is_recent(self) -> bool:
        """Whether an engine before 23 cannot build the file, even with BuildKit."""
        return not self.has_syntax and any(need.is_recent for need in self.needs)

    def __str__(self) -> str:
        return ", ".join(f"line {need.line}: {need.what}" for need in self.needs[:3])


def buildkit_needs(text: str) -> BuildKitNeeds:
    """Find everything in the text of a Dockerfile that needs BuildKit."""
    lines = text.removeprefix("\ufeff").splitlines()
    directives = dict(_directives(lines))
    needs: list[BuildKitNeed] = []
    syntax = directives.get("syntax")
    if syntax is not None and not _STANDARD_FRONTEND.fullmatch(syntax):
        needs.append(BuildKitNeed(1, f"# syntax={syntax}"))
    for number, instruction in _instructions(lines, directives.get("escape", "\\")):
        needs += _needs_of(number, instruction)
    return BuildKitNeeds(tuple(needs), syntax is not None)


def _directives(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the parser directives. They end at the first line that is not one."""
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            return
        yield match[1].lower(), match[2]


def _instructions(lines: list[str], escape: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction, with continued lines joined, and the number of its first line."""
    first, joined = 0, ""
    end_of_heredoc = None
    for number, line in enumerate(lines, 1):
        if end_of_heredoc is not None:
            if line.strip() == end_of_heredoc:
                end_of_heredoc = None
            continue
        if line.lstrip().startswith("#") or (joined and not line.strip()):
            continue
        first = first if joined else number
        stripped = line.rstrip()
        if stripped.endswith(escape):
            joined += stripped[:-1] + " "
            continue
        instruction, joined = joined + line, ""
        yield first, instruction
        heredoc = _heredoc(instruction)
        end_of_heredoc = None if heredoc is None else heredoc[2]
    if joined:
        yield first, joined


def _heredoc(instruction: str) -> re.Match[str] | None:
    match = _INSTRUCTION.fullmatch(instruction)
    if match is None or match[1].upper() not in _FLAGS:
        return None
    return next(filter(None, map(_HEREDOC.fullmatch, match[2].split())), None)


def _needs_of(number: int, instruction: str) -> Iterator[BuildKitNeed]:
    match = _INSTRUCTION.fullmatch(instruction)
    if match is None:
        return
    name, rest = match[1].upper(), match[2].strip()
    if name == "ARG":
        for argument in filter(_ARGUMENT.fullmatch, rest.split()):
            yield BuildKitNeed(number, f"ARG {argument}")
    flags = _FLAGS.get(name, {})
    for word in rest.split():
        flag = _FLAG.match(word)
        if flag is None:
            break
        if flag[1] in flags:
            yield BuildKitNeed(number, f"{name} --{flag[1]}", flags[flag[1]])
    if (heredoc := _heredoc(instruction)) is not None:
        yield BuildKitNeed(number, f"{name} {heredoc[0]}", is_recent=True)


# -- names of images

LABEL = "org.labledger.build"
"""The label of built images. Its value is the digest of the build context."""

LOCAL_PREFIX = "labledger-"
"""The prefix of image names that benchmark formats use. No registry is ever asked for such an
image, because anyone could register the name there."""

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = rf"(?:{_COMPONENT}(?::[0-9]+)?/)?"
_BUILDABLE = re.compile(
    rf"{_HOST}{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?"
)
_MAX_CHARACTERS = 255


def is_buildable(ref: str) -> bool:
    """Return whether `ref` can name a built image: NAME or NAME:TAG, without a digest."""
    return len(ref) <= _MAX_CHARACTERS and _BUILDABLE.fullmatch(ref) is not None


def with_tag(ref: str) -> str:
    """Return an image name with its implied tag: `a` means `a:latest`."""
    return ref if ":" in ref.rpartition("/")[2] or "@" in ref else f"{ref}:latest"


def is_local(ref: str) -> bool:
    """Return whether an image is never pulled, because its name begins with `LOCAL_PREFIX`."""
    return ref.startswith(LOCAL_PREFIX)
