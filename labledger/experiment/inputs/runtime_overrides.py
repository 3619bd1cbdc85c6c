"""What a variant or a task sets of its trials' container and phases in place of `runtime`.

Only what was authored is stored, so that a run without such settings keeps its bytes. Texts of a
task may still contain any `$NAME`: bindings are substituted when `trial_settings` merges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from labledger.experiment.stored_sections import Section, normalize_number
from labledger.records import JsonObject, canonical_json
from labledger.text.byte_sizes import parse_size

T = TypeVar("T", bound=Section)


@dataclass(frozen=True, slots=True)
class ResourceOverrides(Section):
    """The limits that differ; the fields are those of `plan.Resources`."""

    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    storage_bytes: int | None = None
    gpus: str | int | None = None

    _OPTIONAL = frozenset({"cpus", "memory_bytes", "pids", "storage_bytes", "gpus"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        return cls.from_json(resource_values(authored))


@dataclass(frozen=True, slots=True)
class PhaseOverrides(Section):
    """The parts of a phase that differ. `env` is merged name by name."""

    command: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    timeout_s: float | None = None

    _OPTIONAL = frozenset({"command", "env", "timeout_s"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        command, env = authored.get("command"), authored.get("env")
        return cls(
            None if command is None else tuple(map(text, command)),
            None if env is None else texts(env),
            normalize_number(authored["timeout_s"]) if "timeout_s" in authored else None,
        )


@dataclass(frozen=True, slots=True)
class RuntimeOverrides(Section):
    """The settings that differ; None for those that do not."""

    image: str | None = None
    user: str | None = None
    network: str | None = None
    root_read_only: bool | None = None
    max_log_bytes: int | None = None
    agent_user: str | None = None
    resources: ResourceOverrides | None = None
    env: Mapping[str, str] | None = None
    """Of all phases; merged name by name."""
    agent: PhaseOverrides | None = None
    setup: PhaseOverrides | None = None
    without_setup: bool | None = None
    """True if no setup runs."""

    _OPTIONAL = frozenset(
        {
            *("image", "user", "network", "root_read_only", "max_log_bytes", "agent_user"),
            *("resources", "env", "agent", "setup", "without_setup"),
        }
    )
    CONTAINER: ClassVar = (
        "image",
        "user",
        "network",
        "root_read_only",
        "max_log_bytes",
        "agent_user",
    )
    """The fields that replace those of the same name in `plan.Runtime`."""

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        agent, setup = authored.get("agent", {}), authored.get("setup")
        own_agent = PhaseOverrides.of_authored(agent)
        return cls(
            image=authored.get("image"),
            user=user_name(authored.get("user")),
            network=authored.get("network"),
            root_read_only=authored.get("root_read_only"),
            max_log_bytes=_whole(authored.get("max_log_bytes")),
            agent_user=user_name(agent.get("user")),
            resources=_given(ResourceOverrides.of_authored(authored.get("resources", {}))),
            env=texts(authored["env"]) if "env" in authored else None,
            agent=_given(own_agent),
            setup=None if setup is None else PhaseOverrides.of_authored(setup),
            without_setup=True if "setup" in authored and setup is None else None,
        )


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


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _given(section: T) -> T | None:
    """Return a section, or None if nothing in it is set."""
    return section if section.as_json() else None
