"""Turn authored phases into commands that are ready for the container.

Bindings are substituted, and words that name staged files become their paths. Names that the
environment must set stay in the texts as `$NAME`. `resolve` and `replacement_grader` are the
callers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from labledger.errors import InvalidInput, Problem
from labledger.experiment import name_references
from labledger.experiment.authored import AuthoredExperiment
from labledger.experiment.consistency_checks import PHASES, authored_variants
from labledger.experiment.inputs.field_problems import (
    FieldPath,
    UnusablePath,
    lookup,
    relative_name,
)
from labledger.experiment.inputs.staged_files import StagedFile
from labledger.experiment.plan import GraderPlan, NamedPhase, PhasePlan, VariantPlan
from labledger.experiment.stored_sections import normalize_number
from labledger.records import JsonObject, canonical_json

DEPS = "/agentlab/deps"
"""Folder of the staged files in the container, with a subfolder for each phase."""

TIMEOUT_S = {"setup": 600, "agent": 600, "grader": 120}
"""Default time limits of the phases, in seconds."""

Files = Mapping[str, Sequence[StagedFile]]
"""Staged files by phase name."""


def variant_plans(
    data: JsonObject, chosen: Collection[str], files: Files
) -> tuple[VariantPlan, ...]:
    """Return the variants in `chosen`, in authored order: the baseline first."""
    plans = []
    for path, variant in authored_variants(data):
        if variant["variant_id"] in chosen:
            bindings = variant.get("bindings", {})
            role = "baseline" if path == ("baseline",) else "treatment"
            has_setup = lookup(data, PHASES["setup"]) is not None
            setup = phase_plan(data, "setup", bindings, files) if has_setup else None
            agent = phase_plan(data, "agent", bindings, files)
            plans.append(VariantPlan(variant["variant_id"], role, bindings, setup, agent))
    return tuple(plans)


def grader_plan(data: JsonObject, files: Files) -> GraderPlan:
    """Return the grader's phase, in which no bindings are substituted."""
    phase = phase_plan(data, "grader", {}, files)
    sealed = data["benchmark"]["grader"].get("sealed", False)
    return GraderPlan(phase.command, phase.env, phase.timeout_s, sealed)


def phase_plan(data: JsonObject, name: str, bindings: Mapping[str, Any], files: Files) -> PhasePlan:
    """Return an authored phase in which bindings and paths of staged files are substituted."""
    phase = lookup(data, PHASES[name])
    known = {key: _as_text(value) for key, value in bindings.items()}
    staged = _staged_paths(name, files.get(name, ()))
    env = phase.get("env", {})
    return PhasePlan(
        tuple(_resolved_word(_as_text(word), known, staged) for word in phase["command"]),
        {key: name_references.substitute(_as_text(env[key]), known) for key in sorted(env)},
        normalize_number(phase.get("timeout_s", TIMEOUT_S[name])),
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json.dumps(value)


def _staged_paths(phase: str, files: Sequence[StagedFile]) -> dict[str, str]:
    """Return the container path of each staged file and each folder around it, by name."""
    paths: dict[str, str] = {}
    for file in files:
        steps = file.name.split("/")
        for depth in range(1, len(steps) + 1):
            name = "/".join(steps[:depth])
            paths[name] = f"{DEPS}/{phase}/{name}"
    return paths


def _resolved_word(authored: str, known: Mapping[str, str], staged: Mapping[str, str]) -> str:
    word = name_references.substitute(authored, known)
    path = staged.get(literal_name(word) or "")
    return word if path is None else name_references.escape(path)


def literal_name(word: str) -> str | None:
    """Return a word of a command as a relative file name, or None if it cannot be one."""
    if any(True for _ in name_references.names(word)):
        return None
    try:
        return relative_name(name_references.expand(word, {}))
    except UnusablePath:
        return None


def authored_path(phase: str, path: FieldPath) -> FieldPath:
    """Return the path in the authored file of a text at `path` in a phase."""
    return (*PHASES[phase], *path)


def require_executable(
    authored: AuthoredExperiment, phases: Iterable[NamedPhase], files: Files
) -> None:
    """Raise `InvalidInput` if a command starts a staged file that is not executable."""
    problems: dict[FieldPath, Problem] = {}
    for phase in phases:
        path = authored_path(phase.name, ("command", 0))
        for file in files[phase.name]:
            is_started = phase.plan.command[0] == f"{DEPS}/{phase.name}/{file.name}"
            if is_started and not file.executable:
                hint = f"chmod +x {file.source}, or start it with its interpreter"
                problems[path] = authored.problem(path, f"{file.name} is not executable", hint)
    if problems:
        raise InvalidInput(f"the commands of {authored.path} cannot start", list(problems.values()))
