"""Absolute paths of containers at which an experiment wants to have something.

`settings.combination_checks` checks those of folders and artifacts with them, and `task_files`
those of a task's files. Nothing here looks at a container.
"""

from __future__ import annotations

from pathlib import PurePosixPath

_RESERVED = ("/agentlab", "/proc", "/sys", "/dev")
"""Folders of a container in which no folder of an experiment may be."""

_WRITTEN = ("/agentlab/workspace", "/agentlab/out", "/agentlab/state")


def unusable(path: str) -> str | None:
    """Return why a path in a container cannot be used; None if it can."""
    steps = PurePosixPath(path)
    if path == "/":
        return "found '/'; expected a folder in it"
    if "\n" in path:
        return f"found {path!r}; expected a path without line breaks"
    if str(steps) != path.rstrip("/") or ".." in steps.parts:
        return f"found {path!r}; expected a path without empty steps, . and .. such as /app/out"
    reserved = next((top for top in _RESERVED if path == top or is_inside(path, top)), None)
    return None if reserved is None else f"{path} is in {reserved}, which is not the experiment's"


def is_written(path: str) -> bool:
    """Return whether a path is in one of labledger's own folders that agents write to.

    Artifacts may be taken from there, and come there, though nothing else may be there.
    """
    steps = PurePosixPath(path)
    is_plain = str(steps) == path.rstrip("/") and ".." not in steps.parts and "\n" not in path
    return is_plain and any(path.rstrip("/") == top or is_inside(path, top) for top in _WRITTEN)


def is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def overlap(one: str, other: str) -> bool:
    """Return whether two paths are the same, or one is inside the other."""
    return one.rstrip("/") == other.rstrip("/") or is_inside(one, other) or is_inside(other, one)
