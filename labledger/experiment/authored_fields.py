"""Fields of authored files: problems at them, their values in stored form, and safe names.

The parser of YAML and the checks report a `FieldProblem` with the path of a field;
`experiment_file` adds file and line and turns it into an `errors.Problem`. In stored form, sizes
are bytes, users and words texts, and numbers integers where they are whole. A path at which an
experiment wants to have something in a container may not be in a folder of labledger or of the
kernel; nothing here looks at a container.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import Section, normalize_number
from labledger.text import parse_size

FieldPath = tuple[str | int, ...]
"""The keys and indices that lead to a field from the top of a document."""


class FieldProblem(NamedTuple):
    """A problem at a field of a document."""

    path: FieldPath
    message: str
    hint: str | None = None
    line: int | None = None
    """Set if the path alone does not determine the line, such as for a duplicate key."""


class UnusablePath(Exception):
    """A name, a file or a folder that cannot be used: unsafe, missing or unreadable."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def lookup(data: Any, path: FieldPath) -> Any:
    """Return the value at `path`, or None if there is none."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def relative_name(text: str) -> str:
    """Return `text` as a plain relative path (``./a//b/`` becomes ``a/b``).

    Raises `UnusablePath` for a path that is absolute or empty, contains ``..`` or NUL, or cannot
    be written as UTF-8.
    """
    if text.startswith("/"):
        raise UnusablePath(
            f"{text!r} is an absolute path", "write it relative to this file's folder"
        )
    if "\0" in text or not is_utf8(text):
        raise UnusablePath(f"the name {text!r} is not plain UTF-8 text")
    steps = [step for step in text.split("/") if step not in {"", "."}]
    if ".." in steps:
        raise UnusablePath(f"{text!r} contains '..'", "name something inside the folder")
    if not steps:
        raise UnusablePath(f"{text!r} names no file", "name a file or a folder inside")
    return "/".join(steps)


def is_utf8(text: str) -> bool:
    """Return whether `text` can be written as UTF-8; a file name of other bytes cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ResourceOverrides(Section):
    """The limits that differ; the fields are those of `plan_sections.Resources`."""

    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    storage_bytes: int | None = None
    gpus: str | int | None = None

    _OPTIONAL = frozenset({"cpus", "memory_bytes", "pids", "storage_bytes", "gpus"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        return cls.from_json(resource_values(authored))


def resource_values(authored: JsonObject) -> JsonObject:
    """Return authored resources with sizes in bytes, under the names of the stored fields."""
    values = dict(authored)
    for name in ("memory", "storage"):
        if name in values:
            values[f"{name}_bytes"] = parse_size(values.pop(name))
    if isinstance(values.get("gpus"), float):
        values["gpus"] = int(values["gpus"])
    return values


def user_name(authored: Any) -> str | None:
    """Return an authored user, which may be a number, as text."""
    return None if authored is None else str(normalize_number(authored))


def texts(env: JsonObject) -> dict[str, str]:
    """Return authored environment variables as texts, sorted by name."""
    return {name: text(env[name]) for name in sorted(env)}


def text(value: Any) -> str:
    """Return an authored word or value as text."""
    return value if isinstance(value, str) else canonical_json.dumps(value)


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
