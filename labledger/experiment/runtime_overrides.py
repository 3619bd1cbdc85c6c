"""What a variant or a task sets of its trials' container and phases in place of `runtime`.

Only what was authored is stored, so that a run without such settings keeps its bytes. Texts of a
task may still contain any `$NAME`: bindings are substituted when `trial_settings` merges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from labledger.experiment.authored_fields import ResourceOverrides, text, texts, user_name
from labledger.experiment.grading_settings import Grading
from labledger.experiment.model_settings import ModelSettings
from labledger.records import JsonObject
from labledger.records.json_codec import Section, normalize_number

T = TypeVar("T", bound=Section)


@dataclass(frozen=True, slots=True)
class OutputFolder(Section):
    """A folder for outputs, which the host keeps beside `out` and `state` of the trial."""

    path: str
    phase: str
    """`agent` or `grader`: the phase that writes there."""


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
    workspace: str | None = None
    allowed_hosts: tuple[str, ...] | None = None
    processes: str | None = None
    entrypoint: str | None = None
    outputs: tuple[OutputFolder, ...] | None = None
    healthcheck: str | None = None
    models: ModelSettings | None = None
    """Merged field by field."""
    grader: PhaseOverrides | None = None
    """Of a task alone."""
    grading: Grading | None = None
    """Of a task alone."""

    _OPTIONAL = frozenset(
        {
            *("image", "user", "network", "root_read_only", "max_log_bytes", "agent_user"),
            *("resources", "env", "agent", "setup", "without_setup"),
            *("workspace", "allowed_hosts", "processes", "entrypoint", "outputs"),
            *("healthcheck", "models", "grader", "grading"),
        }
    )
    CONTAINER: ClassVar = (
        "image",
        "user",
        "network",
        "root_read_only",
        "max_log_bytes",
        "agent_user",
        "workspace",
        "allowed_hosts",
        "processes",
        "entrypoint",
        "outputs",
        "healthcheck",
    )
    """The fields that replace those of the same name in `plan_sections.Runtime`."""

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        agent, setup = authored.get("agent", {}), authored.get("setup")
        grader = authored.get("grader", {})
        own_agent = PhaseOverrides.of_authored(agent)
        return cls(
            image=authored.get("image"),
            user=user_name(authored.get("user")),
            network=authored.get("network"),
            root_read_only=authored.get("root_read_only"),
            max_log_bytes=_whole(authored.get("max_log_bytes")),
            agent_user=user_name(agent.get("user")),
            resources=_none_if_empty(ResourceOverrides.of_authored(authored.get("resources", {}))),
            env=texts(authored["env"]) if "env" in authored else None,
            agent=_none_if_empty(own_agent),
            setup=None if setup is None else PhaseOverrides.of_authored(setup),
            without_setup=True if "setup" in authored and setup is None else None,
            workspace=authored.get("workspace"),
            allowed_hosts=_optional_tuple(authored.get("allowed_hosts")),
            processes=authored.get("processes"),
            entrypoint=authored.get("entrypoint"),
            outputs=output_folders(authored.get("outputs")),
            healthcheck=authored.get("healthcheck"),
            models=ModelSettings.of_authored(authored["models"]) if "models" in authored else None,
            grader=_none_if_empty(PhaseOverrides.of_authored(grader)),
            grading=Grading.of_authored(grader),
        )


def output_folders(authored: list[JsonObject] | None) -> tuple[OutputFolder, ...] | None:
    """Return authored output folders; None if none were authored."""
    return None if authored is None else tuple(map(OutputFolder.from_json, authored))


def _optional_tuple(authored: list[str] | None) -> tuple[str, ...] | None:
    return None if authored is None else tuple(authored)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _none_if_empty(section: T) -> T | None:
    """Return a section, or None if nothing in it is set."""
    return section if section.as_json() else None
