"""The ids of the tasks that a location lists, without reading the tasks.

An id is the name in the listing, else the name in `task.toml`, else the folder's name. The
organization is left out unless two ids would be equal. In names that cannot be ids, other
characters become `-`, and a digest is added.
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
from labledger.benchmarks.harbor.task_files import HarborTaskFiles
from labledger.errors import InvalidInput

_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}")
_IN_NO_ID = re.compile(r"[^A-Za-z0-9_.:/@+-]+")
_IN_NO_FOLDER = re.compile(r"[^A-Za-z0-9_.+-]+")
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_MAY_DECLARE_NAME = re.compile(rb"^\s*\[?\s*[\"\']?task\b|\\", re.MULTILINE)
"""Matches every file that may have a table `task`."""
_MAX_READABLE = 150
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task of a location, with its id."""

    task_id: str
    listed: ListedTask
    digest: str
    """The SHA-256 (hex) of its `task.toml`, or the digest in its listing."""
    given_name: str | None = None
    """Its name, if the name cannot be an id."""


def name_tasks(listed: Sequence[ListedTask]) -> list[NamedTask]:
    """Return listed tasks with unique ids."""
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
        task_name = f"{name}@{task.folder.name}" if doubled[name] > 1 else name
        task_id = _usable_id(task_name)
        if task_id in named:
            # Two names have the same digest, or a folder is listed twice.
            task_id = _with_digest(task_id, f"{task_name}\0{len(named)}")
        named[task_id] = NamedTask(
            task_id, task, digest, None if task_id == task_name else task_name
        )
    return list(named.values())


def digest_of(tasks: Sequence[NamedTask]) -> str:
    """Return the SHA-256 (hex) over the ids of tasks, and their `task.toml` or listed digests."""
    hasher = hashlib.sha256()
    for task in sorted(tasks, key=lambda task: task.task_id):
        hasher.update(f"{task.task_id}\0{task.digest}\n".encode())
    return hasher.hexdigest()


def unique_folder(task_id: str) -> str:
    """Return the name of a task's folder beside the experiment, which is unique for the id."""
    # No id contains "=", so no id is the folder of another id.
    readable = _IN_NO_FOLDER.sub("-", task_id)
    return readable if readable == task_id else f"{readable}={_digest(task_id)}"


def _task_file(task: ListedTask) -> bytes:
    """Return the content of a `task.toml`; empty if the listing has the name, or on an error."""
    if task.name is not None:
        return b""
    try:
        return HarborTaskFiles(task.folder).require_file(TASK_FILE).read_bytes()
    except (InvalidInput, OSError):
        return b""


def _declared_name(content: bytes) -> str | None:
    """Return the name in a `task.toml`; None without a valid one."""
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
    """Return a name if it can be an id, else its usable characters with a digest of the name."""
    if _TASK_ID.fullmatch(name):
        return name
    readable = _IN_NO_ID.sub("-", name).strip("-_.:/@+")[:_MAX_READABLE]
    return _with_digest(readable or "task", name)


def _with_digest(readable: str, name: str) -> str:
    return f"{readable[:_MAX_READABLE]}@{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:_DIGITS]
