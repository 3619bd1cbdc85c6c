"""Authored values of containers and phases in their stored form, and paths in containers.

Sizes become bytes, users and words texts, and numbers integers where they are whole. A path at
which an experiment wants to have something may not be in a folder of labledger or of the kernel.
Nothing here looks at a container.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import Section, normalize_number
from labledger.text import parse_size


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
