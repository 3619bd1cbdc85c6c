"""Check the tasks' own settings with those of every variant, and find the `$NAME`s they need.

Equal settings of tasks are checked once, and the dataset is not read again for it. Whatever is
refused here is refused before a run exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from labledger.errors import InvalidInput, Problem
from labledger.experiment import name_references
from labledger.experiment.consistency_checks import NO_SETUP, USER_HINT, user_problem
from labledger.experiment.dataset import Dataset
from labledger.experiment.experiment_file import AuthoredExperiment
from labledger.experiment.field_problems import FieldPath, FieldProblem, lookup
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.settings.combination_checks import mismatches
from labledger.experiment.settings.grading import HIDING_MODES
from labledger.experiment.settings.phase_commands import DEPS, authored_path, variant_path
from labledger.experiment.settings.runtime_overrides import RuntimeOverrides
from labledger.experiment.settings.runtime_values import overlap
from labledger.experiment.settings.trial_settings import TrialSettings, VariantSettings
from labledger.experiment.task_row import FilesPlace
from labledger.records import JsonObject


class OutsideUse(NamedTuple):
    """A use of a `$NAME` that the environment must set."""

    name: str
    path: FieldPath
    """Of the text, in the experiment file or in the task's row."""
    variant_id: str | None
    """None for the grader."""
    line: int | None = None
    """Of the task; None for the experiment file."""


def outside_uses(
    authored: AuthoredExperiment, plan: ExperimentPlan, dataset: Dataset
) -> Iterator[OutsideUse]:
    """Yield where names are used that no binding sets: by phases, all phases, and tasks."""
    for phase in plan.phases():
        for path, name in phase.plan.outside_names():
            yield OutsideUse(name, authored_path(authored.data, phase, path), phase.variant_id)
    for variant in plan.variants:
        settings = VariantSettings.of(plan, variant)
        env = settings.defaults.runtime.env or {}
        for path, name in _outside({("env", key): value for key, value in env.items()}, {}):
            place = _env_path(authored.data, variant.variant_id, path)
            yield OutsideUse(name, place, variant.variant_id)
        for own in dataset.settings:
            for path, name in _outside(_texts_with_names(own.overrides), settings.bindings):
                yield OutsideUse(name, ("runtime", *path), variant.variant_id, own.line)


def _env_path(data: JsonObject, variant_id: str, path: FieldPath) -> FieldPath:
    own = (*variant_path(data, variant_id), "runtime", *path)
    return ("runtime", *path) if lookup(data, own) is None else own


def _outside(
    texts: Mapping[FieldPath, str], bound: Mapping[str, str]
) -> Iterator[tuple[FieldPath, str]]:
    for path, text in texts.items():
        # No bindings are substituted in the grader.
        known = () if path[0] == "grader" else bound
        for name in name_references.names(text):
            if name not in known and not name_references.is_contract_name(name):
                yield path, name


def _texts_with_names(own: RuntimeOverrides) -> dict[FieldPath, str]:
    """Return each text of a task's settings that may contain a `$NAME`, by its path."""
    texts: dict[FieldPath, str] = {("env", key): value for key, value in (own.env or {}).items()}
    for name, phase in (("setup", own.setup), ("agent", own.agent), ("grader", own.grader)):
        if phase is not None:
            texts |= {(name, "command", i): word for i, word in enumerate(phase.command or ())}
            texts |= {(name, "env", key): value for key, value in (phase.env or {}).items()}
    return texts


def require_valid_tasks(plan: ExperimentPlan, dataset: Dataset) -> None:
    """Raise `InvalidInput` if a task's settings do not fit those of a variant."""
    problems: dict[tuple[int, FieldPath], Problem] = {}
    for variant in plan.variants:
        settings = VariantSettings.of(plan, variant)
        for own in dataset.settings:
            for problem in _problems(plan, settings, own.overrides):
                problems.setdefault((own.line, problem.path), dataset.problem(own.line, problem))
            merged = settings.merged(own.overrides)
            for problem in _file_problems(merged, own.files):
                problems.setdefault((own.line, problem.path), dataset.problem(own.line, problem))
    if problems:
        by_line = [problems[key] for key in sorted(problems, key=lambda key: key[0])]
        raise InvalidInput(f"the tasks in {dataset.path} are not valid", by_line)


def _problems(
    plan: ExperimentPlan, variant: VariantSettings, own: RuntimeOverrides
) -> Iterator[FieldProblem]:
    sets_up = own.setup is not None
    if own.setup and own.setup.command is None and "setup" not in variant.defaults.phases:
        yield FieldProblem(("runtime", "setup"), NO_SETUP)
        sets_up = False
    merged = variant.merged(own)
    user = user_problem(merged.runtime.agent_user, merged.runtime.user)
    if user and (own.agent_user or own.user):
        path = ("agent", "user") if own.agent_user else ("user",)
        yield FieldProblem(("runtime", *path), user, USER_HINT)
    yield from _combination_problems(plan, variant, merged, own)
    for name, is_own in (("setup", sets_up), ("agent", own.agent is not None)):
        if is_own:
            yield from _not_executable(plan, name, merged)


def _combination_problems(
    plan: ExperimentPlan, variant: VariantSettings, merged: TrialSettings, own: RuntimeOverrides
) -> Iterator[FieldProblem]:
    """Yield what does not fit together because of a task's own settings."""
    if own == RuntimeOverrides():
        return
    known = set(mismatches(variant.defaults, is_sealed=plan.is_sealed))
    for mismatch in mismatches(merged, is_sealed=plan.is_sealed):
        if mismatch not in known:
            holder = own.grading if mismatch.section == "grader" else own
            is_own = getattr(holder, mismatch.key, None) is not None
            if mismatch.is_unused and not is_own:
                continue
            path = mismatch.row_path if is_own else ("runtime",)
            yield FieldProblem(path, mismatch.message, mismatch.hint)
    hides = own.grading is not None and own.grading.mode in HIDING_MODES
    if hides and plan.files["grader"] and not plan.grader.hides_files:
        message = "the experiment does not hide its grader's files, so this task cannot"
        hint = "set benchmark.grader.mode in the experiment, and another one in other tasks"
        yield FieldProblem(("runtime", "grader", "mode"), message, hint)


def _file_problems(merged: TrialSettings, files: Iterable[FilesPlace]) -> Iterator[FieldProblem]:
    """Check that the grader's files of a task can be copied to their paths."""
    runtime = merged.runtime
    outputs = [output.path for output in runtime.outputs or ()]
    for path in (place.path for place in files if place.recipient == "grader"):
        if folder := next((folder for folder in outputs if overlap(path, folder)), None):
            message = f"files for the grader at {path} overlap with the output folder {folder}"
            yield FieldProblem(("files",), message)
        if runtime.root_read_only and not overlap(path, "/tmp"):  # noqa: S108
            message = f"files for the grader cannot be copied to {path}: the root is read-only"
            yield FieldProblem(("files",), message, "leave runtime.root_read_only out")


def _not_executable(
    plan: ExperimentPlan, phase: str, merged: TrialSettings
) -> Iterator[FieldProblem]:
    for file in plan.files[phase]:
        starts = merged.phases[phase].command[0] == f"{DEPS}/{phase}/{file.name}"
        if starts and not file.executable:
            hint = f"chmod +x {file.source}, or start it with its interpreter"
            path = ("runtime", phase, "command", 0)
            yield FieldProblem(path, f"{file.name} is not executable", hint)
