"""What changed in a container's own file system, and which of it looks like tampering."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from labledger.trial import contract
from labledger.trial.container import ContainerFailed, Engine
from labledger.trial.contract import TrialSpec

MAX_PATHS = 100
"""How many paths a record names."""
_MAX_HELD = 10_000
"""How many suspicious paths are told apart; those beyond are counted as they come."""
_MAX_LENGTH = 512
"""How many characters of a path are kept."""

_ORDINARY = (
    *("/tmp", "/var/tmp", "/var/log", "/var/cache", "/run", "/home", "/root"),  # noqa: S108
    *("/dev", "/proc", "/sys"),
)
"""Where programs write in passing."""
_HOMES = ("/home", "/root")
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
"""Folders from which an interpreter loads code by itself, also below a home folder."""
_RUNTIMES_OWN = frozenset(
    {
        *("/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf", "/.dockerenv"),
        *(contract.IN, contract.DEPS, contract.OUT, contract.STATE, contract.WORKSPACE),
        *(contract.SEALED, f"{contract.SEALED}/in", f"{contract.SEALED}/grader"),
    }
)
"""What the engine makes so that something can be mounted there."""

_HOOKS = frozenset(
    {
        *("conftest.py", "sitecustomize.py", "usercustomize.py"),
        *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc"),
    }
)

Checked = Literal["before_grading", "after_grading"]


@dataclass(frozen=True, slots=True)
class FilesystemChanges:
    """What a look at a container's file system came to."""

    checked: Checked | None
    """When the look was taken; None where it could not be."""
    suspected: tuple[str, ...] = ()
    """The first of the suspicious paths, sorted."""
    total: int = 0
    unchecked: str | None = None
    """Why there was no look."""


def inspect_changes(
    engine: Engine, spec: TrialSpec, container: str, checked: Checked
) -> FilesystemChanges:
    """Look at what is not as in the image of a trial whose container, an id, has stopped.

    What the engine refuses is said in the answer. Raises `EngineUnavailable`.
    """
    if spec.plan.runtime["root_read_only"]:
        return FilesystemChanges(checked)
    try:
        suspected, total = _suspicious_in(engine, container)
    except ContainerFailed as error:
        return FilesystemChanges(None, unchecked=error.message)
    return FilesystemChanges(checked, suspected, total)


def _suspicious_in(engine: Engine, container: str) -> tuple[tuple[str, ...], int]:
    state = engine.inspect(container)
    if state is not None and state.upper_dir is not None:
        # The engine would go through the whole image: 0.2 s of work for 6,000 files.
        with suppress(OSError):
            return suspicious(_below(Path(state.upper_dir)))
    return suspicious(engine.changed_paths(container))


def _below(top: Path) -> Iterator[str]:
    """Each path below a folder, which stands for the root. Follows no link. Raises `OSError`."""
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
    """The first `MAX_PATHS` of the changed paths that look like tampering, and how many do.

    A folder counts only where nothing in it is listed: it changes whenever what it holds does.
    """
    held: set[str] = set()
    explained: set[str] = set()
    beyond = 0
    for path in changed:
        place = _ordinary_reason(path)
        if place is not None:
            explained.update(_parents(place))
        elif len(held) < _MAX_HELD:
            held.add(path)
            explained.update(_parents(path))
        else:
            beyond += 1
    found = sorted(held - explained)
    return tuple(path[:_MAX_LENGTH] for path in found[:MAX_PATHS]), len(found) + beyond


def _ordinary_reason(path: str) -> str | None:
    """The place that explains why a path has changed; None for a suspicious path."""
    if path in _RUNTIMES_OWN:
        return path
    for place in _ORDINARY:
        if path == place or path.startswith(f"{place}/"):
            loads_itself = place in _HOMES and not _LIBRARIES.isdisjoint(path.split("/"))
            return None if loads_itself else place
    return None


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def is_autoloaded_file(name: str) -> bool:
    """True for a file that an interpreter or a test tool loads by itself."""
    path = PurePosixPath(name)
    return path.name in _HOOKS or path.suffix == ".pth"
