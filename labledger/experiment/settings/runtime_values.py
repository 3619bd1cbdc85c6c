"""Authored values of containers and phases, in the form in which they are stored.

Sizes become bytes, users and words texts, and numbers integers where they are whole. Used by the
sections of the plan, of tasks and of grading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from labledger.experiment.stored_sections import Section, normalize_number
from labledger.records import JsonObject, canonical_json
from labledger.text.byte_sizes import parse_size


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
