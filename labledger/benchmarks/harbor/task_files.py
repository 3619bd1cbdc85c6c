"""The files of a task folder: which of them are used, and the digest of a task's content.

`.harborignore` files in `tests` and `solution` leave files out of what a container gets, by the
rules of `.gitignore`. The content digest is the one that `dataset.toml` names. No symbolic link may
lead out of the task's folder, and no link to a folder may form a cycle. Nothing is read into memory
whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Problem
from labledger.files.durable_files import FileContent, content_digest, content_key

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".harborignore"

_FILTERED = ("tests", "solution")
"""The folders to which ignore files apply; below `steps`, those of each step."""
_TOP_FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_FOLDERS = ("environment", "tests", "solution", "steps")
_NEVER_PUBLISHED = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
"""What a digest leaves out, unless the task has a `.gitignore`."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass
class TaskFiles:
    """The files of one task folder. Raises `InvalidInput` for links that lead out of it."""

    folder: Path
    _specs: dict[Path, GitIgnoreSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.folder / name).is_file()

    def text(self, name: str) -> str:
        """Return the text of a file. Raises `InvalidInput`."""
        path = self.folder / name
        self.require_inside(path)
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _problem(path, getattr(error, "strerror", None) or str(error)) from error

    def all_in(self, subfolder: str) -> dict[str, Path]:
        """Return every file below a folder, as an image is built of it.

        The files are sorted by name, which is relative to the folder.
        """
        return self._listed(subfolder, filtered=False)

    def selected_in(self, subfolder: str) -> dict[str, Path]:
        """Return the files below a folder that no ignore file leaves out, as `all_in` does."""
        return self._listed(subfolder, filtered=True)

    def require_selected(self, name: str) -> None:
        """Raise `InvalidInput` if a file that is needed is left out by an ignore file."""
        if self._is_ignored(self.folder / name):
            raise _problem(self.folder / name, f"is left out by {IGNORE_FILE}, and is needed")

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the task's content, as a `dataset.toml` names it."""
        hasher = hashlib.sha256()
        for name, path in sorted(self._published().items()):
            hasher.update(f"{name}\0{content_digest(path)}\n".encode())
        return hasher.hexdigest()

    def _published(self) -> dict[str, Path]:
        from pathspec import PathSpec

        own = self.folder / ".gitignore"
        lines = self.text(own.name).splitlines() if own.is_file() else list(_NEVER_PUBLISHED)
        left_out = PathSpec.from_lines("gitignore", lines)
        paths = [self.folder / name for name in _TOP_FILES if self.has(name)]
        for subfolder in _FOLDERS:
            paths += self._walk(self.folder / subfolder, filtered=True, into_links=False)
        for path in paths:
            self.require_inside(path)
        files = {path.relative_to(self.folder).as_posix(): path for path in paths}
        return {name: path for name, path in files.items() if not left_out.match_file(name)}

    def _listed(self, subfolder: str, *, filtered: bool) -> dict[str, Path]:
        top = self.folder / subfolder
        paths = list(self._walk(top, filtered=filtered, into_links=True))
        for path in paths:
            _refuse_pointer(path)
        return dict(sorted((path.relative_to(top).as_posix(), path) for path in paths))

    def _walk(
        self, top: Path, *, filtered: bool, into_links: bool, above: tuple[Path, ...] = ()
    ) -> Iterator[Path]:
        """Yield the files below a folder. Links to files are followed, those to folders if asked.

        `above` are the folders, without links, through which `top` was reached.
        """
        if not top.is_dir() or (filtered and self._is_ignored(top)):
            return
        self.require_inside(top)
        real = _real(top)
        if real in above:
            raise _problem(top, "is a link to a folder that contains it")
        for path in sorted(top.iterdir()):
            if filtered and self._is_ignored(path):
                continue
            self.require_inside(path)
            if path.is_dir():
                if into_links or not path.is_symlink():
                    yield from self._walk(
                        path, filtered=filtered, into_links=into_links, above=(*above, real)
                    )
            elif path.is_file():
                yield path
            elif into_links:
                what = "is a broken link" if path.is_symlink() else "is no regular file"
                raise _problem(path, what)

    def require_inside(self, path: Path) -> None:
        """Raise `InvalidInput` for a link that leads out of the task's folder."""
        if not _real(path).is_relative_to(self.folder):
            raise _problem(path, "is a link that leads out of the task's folder")

    def _is_ignored(self, path: Path) -> bool:
        """Return whether an ignore file matches a path, or what it links to in the task."""
        if self._matches(path):
            return True
        real = _real(path)
        return real != path and real.is_relative_to(self.folder) and self._matches(real)

    def _matches(self, path: Path) -> bool:
        """Return whether the ignore files around a path leave it out.

        The files from `tests` or `solution` downwards count, a deeper one more. What is below an
        ignored folder is ignored.
        """
        if path.name == IGNORE_FILE:
            return True
        steps = path.relative_to(self.folder).parts
        depth = 3 if steps[:1] == ("steps",) else 1
        if len(steps) < depth or steps[depth - 1] not in _FILTERED:
            return False
        specs: list[tuple[Path, GitIgnoreSpec]] = []
        for length in range(depth, len(steps) + 1):
            candidate = self.folder.joinpath(*steps[:length])
            ignored = False
            for folder, spec in specs:
                name = candidate.relative_to(folder).as_posix()
                match = spec.check_file(name + ("/" if candidate.is_dir() else ""))
                if match.include is not None:
                    ignored = match.include
            if ignored:
                return True
            if length < len(steps):
                specs.append((candidate, self._spec(candidate)))
        return False

    def _spec(self, folder: Path) -> GitIgnoreSpec:
        from pathspec import GitIgnoreSpec

        if folder not in self._specs:
            path = folder / IGNORE_FILE
            lines = self.text(str(path.relative_to(self.folder))) if path.is_file() else ""
            self._specs[folder] = GitIgnoreSpec.from_lines(lines.splitlines())
        return self._specs[folder]


def _real(path: Path) -> Path:
    """Return a path without links. A link that leads to itself stays as it is."""
    return Path(os.path.realpath(path))


def files_digest(files: Mapping[str, FileContent]) -> str:
    """Return the SHA-256 (hex) over the names, contents and executable bits of files."""
    hasher = hashlib.sha256()
    for name, content in sorted(files.items()):
        hasher.update(f"{name}\0{content_key(content)}\n".encode())
    return hasher.hexdigest()


def _refuse_pointer(path: Path) -> None:
    """Raise `InvalidInput` for a file that Git LFS has not replaced by its content."""
    with path.open("rb") as handle:
        if handle.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise _problem(path, "is a pointer of Git LFS; run `git lfs pull` in its repository")


def _problem(path: Path, message: str) -> InvalidInput:
    return InvalidInput("the task's files cannot be used", [Problem(str(path), message)])
