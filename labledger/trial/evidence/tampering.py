"""Find changes of a container's own file system that could affect grading.

A change outside of the ordinary places (temporary files, logs, home folders) is recorded as
suspected tampering, never as proved. It does not change a trial's status or score. Used by
`trust`, and by `parts` before a sealed grader's files are added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from labledger.docker.engine import ContainerFailed, Engine
from labledger.trial import contract
from labledger.trial.contract import AttemptSpec

MAX_PATHS = 100
"""How many suspicious paths a record lists."""
_MAX_COMPARED = 10_000
"""How many suspicious paths are compared with each other; further ones are only counted."""
_MAX_LENGTH = 512
"""How many characters of a path are recorded."""

_ORDINARY = (
    *("/tmp", "/var/tmp", "/var/log", "/var/cache", "/run", "/home", "/root"),  # noqa: S108
    *("/dev", "/proc", "/sys"),
)
"""Where programs write as a matter of course."""
_HOMES = ("/home", "/root")
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
"""Folders from which an interpreter loads code, suspicious also below a home folder."""
_RUNTIMES_OWN = frozenset(
    {
        *("/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf", "/.dockerenv"),
        *(contract.IN, contract.DEPS, contract.OUT, contract.STATE, contract.WORKSPACE),
        *(contract.SEALED, f"{contract.SEALED}/in", f"{contract.SEALED}/grader"),
    }
)
"""Mount points that the engine creates."""

_HOOKS = frozenset(
    {
        *("conftest.py", "sitecustomize.py", "usercustomize.py"),
        *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc"),
    }
)

Checked = Literal["before_grading", "after_grading"]


@dataclass(frozen=True, slots=True)
class FilesystemChanges:
    """The suspicious changes of a container's own file system."""

    checked: Checked | None
    """When they were inspected; None if that was not possible."""
    suspected: tuple[str, ...] = ()
    """The first of the suspicious paths, sorted."""
    total: int = 0
    unchecked: str | None = None
    """Why they could not be inspected."""


def inspect_changes(
    engine: Engine, spec: AttemptSpec, container: str, checked: Checked
) -> FilesystemChanges:
    """Return the suspicious changes to the image in a stopped container.

    `container` is its id, `checked` says when this happens. A refusal of the engine is recorded as
    `unchecked`. Raises `EngineUnavailable`.
    """
    if spec.plan.runtime.root_read_only:
        return FilesystemChanges(checked)
    try:
        suspected, total = _suspicious_in(engine, container)
    except ContainerFailed as error:
        return FilesystemChanges(None, unchecked=error.message)
    return FilesystemChanges(checked, suspected, total)


def _suspicious_in(engine: Engine, container: str) -> tuple[tuple[str, ...], int]:
    state = engine.inspect(container)
    if state is not None and state.upper_dir is not None:
        # Faster: the engine compares the whole image, 0.2 s for 6,000 files.
        with suppress(OSError):
            return suspicious(_below(Path(state.upper_dir)))
    return suspicious(engine.changed_paths(container))


def _below(top: Path) -> Iterator[str]:
    """Yield each path below `top` as an absolute path. Follows no link. Raises `OSError`."""
    pending = [""]
    while pending:
        inside = pending.pop()
        with os.scandir(f"{top}{inside}") as children:
            for child in children:
                name = f"{inside}/{child.name}"
                yield os.fsencode(name).decode("utf-8", "replace")
                if child.is_dir(follow_symlinks=False):
                    pending.append(name)


def suspicious(changed: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """Return the first `MAX_PATHS` changed paths that look like tampering, and how many do.

    A folder counts only if nothing in it is listed, because it changes with its content.
    """
    candidates: set[str] = set()
    explained: set[str] = set()
    beyond = 0
    for path in changed:
        folder = _ordinary_reason(path)
        if folder is not None:
            explained.update(_parents(folder))
        elif len(candidates) < _MAX_COMPARED:
            candidates.add(path)
            explained.update(_parents(path))
        else:
            beyond += 1
    paths = sorted(candidates - explained)
    return tuple(path[:_MAX_LENGTH] for path in paths[:MAX_PATHS]), len(paths) + beyond


def _ordinary_reason(path: str) -> str | None:
    """Return the path that explains why `path` has changed; None if it is suspicious."""
    if path in _RUNTIMES_OWN:
        return path
    for folder in _ORDINARY:
        if path == folder or path.startswith(f"{folder}/"):
            loads_itself = folder in _HOMES and not _LIBRARIES.isdisjoint(path.split("/"))
            return None if loads_itself else folder
    return None


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def is_autoloaded_file(name: str) -> bool:
    """Return True for a file that an interpreter or a test tool loads without being asked to."""
    path = PurePosixPath(name)
    return path.name in _HOOKS or path.suffix == ".pth"
