"""The ids of the tasks that a location lists, without reading the tasks.

An id is the name by which a dataset lists the task, else the name in its `task.toml`, else the name
of its folder. The organization is left out unless two tasks would have the same id. In a name with
characters that ids cannot have, each run of them becomes `-`, and a digest is added. Each task has
a folder of its own beside the experiment.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labledger.benchmarks.harbor.sources import TASK_FILE, ListedTask
from labledger.benchmarks.harbor.task_files import TaskFiles
from labledger.errors import InvalidInput

_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}")
_IN_NO_ID = re.compile(r"[^A-Za-z0-9_.:/@+-]+")
_IN_NO_FOLDER = re.compile(r"[^A-Za-z0-9_.+-]+")
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_MAY_DECLARE_NAME = re.compile(rb"^\s*\[?\s*[\"\']?task\b|\\", re.MULTILINE)
"""In a file without this, there is no table `task`."""
_MAX_READABLE = 150
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task of a location, with its id."""

    task_id: str
    listed: ListedTask
    digest: str
    """SHA-256 (hex) of its `task.toml`, or what its listing says about its content."""
    given_name: str | None = None
    """Its name, if that can be no id."""


def name_tasks(listed: Sequence[ListedTask]) -> list[NamedTask]:
    """Return listed tasks with their ids, which are unique."""
    names, digests = [], []
    for task in listed:
        content = _task_file(task)
        names.append(task.name or _declared_name(content) or _folder_name(task))
        digests.append(task.digest or hashlib.sha256(content).hexdigest())
    short = [name.rpartition("/")[2] for name in names]
    counts = Counter(short)
    whole = [n if counts[s] > 1 else s for n, s in zip(names, short, strict=True)]
    doubled = Counter(whole)
    named: dict[str, NamedTask] = {}
    for name, task, digest in zip(whole, listed, digests, strict=True):
        own = f"{name}@{task.folder.name}" if doubled[name] > 1 else name
        task_id = _usable_id(own)
        if task_id in named:
            # Two names with one digest, or a folder that is listed twice.
            task_id = _with_digest(task_id, f"{own}\0{len(named)}")
        named[task_id] = NamedTask(task_id, task, digest, None if task_id == own else own)
    return list(named.values())


def digest_of(tasks: Sequence[NamedTask]) -> str:
    """Return the SHA-256 (hex) over the ids of tasks, and their `task.toml` or listed digests."""
    hasher = hashlib.sha256()
    for task in sorted(tasks, key=lambda task: task.task_id):
        hasher.update(f"{task.task_id}\0{task.digest}\n".encode())
    return hasher.hexdigest()


def unique_folder(task_id: str) -> str:
    """Return the name of a task's folder beside the experiment, which no other id has."""
    # No id has a "=", so that no id is the folder of another.
    readable = _IN_NO_FOLDER.sub("-", task_id)
    return readable if readable == task_id else f"{readable}={_digest(task_id)}"


def _task_file(task: ListedTask) -> bytes:
    """Return the content of a `task.toml` that may have the task's name; empty if none does."""
    if task.name is not None:
        return b""
    try:
        return TaskFiles(task.folder).require_file(TASK_FILE).read_bytes()
    except (InvalidInput, OSError):
        return b""


def _declared_name(content: bytes) -> str | None:
    """Return the name in a `task.toml`; None if it has none that is valid."""
    if not _MAY_DECLARE_NAME.search(content):
        return None
    try:
        document: Any = tomllib.loads(content.decode())
        name = document["task"]["name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    is_valid = isinstance(name, str) and _PACKAGE_NAME.fullmatch(name) and ".." not in name
    return name if is_valid else None


def _folder_name(task: ListedTask) -> str:
    return task.folder.name if task.url is not None else task.folder.resolve().name


def _usable_id(name: str) -> str:
    """Return a name if it can be an id, and else what of it can, with a digest of the name."""
    if _TASK_ID.fullmatch(name):
        return name
    readable = _IN_NO_ID.sub("-", name).strip("-_.:/@+")[:_MAX_READABLE]
    return _with_digest(readable or "task", name)


def _with_digest(readable: str, name: str) -> str:
    return f"{readable[:_MAX_READABLE]}@{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:_DIGITS]
