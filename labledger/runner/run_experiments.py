"""The experiment of a run from its authored files, and how they differ from the stored copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labledger.errors import ExperimentChanged, InvalidInput, PermissionNeeded
from labledger.execution.run_events import run_event
from labledger.experiment.experiment_differences import differences, is_of_grader
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.resolve import Overrides, ResolvedExperiment, resolve
from labledger.ledger.database.run_info import RunInfo
from labledger.records.outcomes import RunStatus
from labledger.runner.run_options import RunOptions


def resolve_experiment(path: Path, options: RunOptions) -> ResolvedExperiment:
    """Return the resolved experiment of a file. Raises `InvalidInput` with every problem.

    With `options.source.strict`, a number whose text changes on the way to a command is a problem.
    """
    # Imported late: it loads PyYAML.
    from labledger.experiment.experiment_file import load_experiment

    authored = load_experiment(path)
    if options.source.strict and (changed := list(authored.number_warnings())):
        raise InvalidInput(f"{path} has numbers whose text changes for commands", changed)
    return resolve(authored, options.overrides)


def refuse_changed(
    run: RunInfo, tasks: Mapping[str, str], options: RunOptions
) -> ResolvedExperiment | None:
    """Return the run's experiment from its current files; None if they are gone.

    Raises `ExperimentChanged` if a changed file could change results.
    """
    # Imported late: it loads PyYAML.
    from labledger.experiment.experiment_file import load_experiment

    source = Path(run.source_path)
    if not source.exists():
        message = f"{source} is gone; the run continues with its stored copy"
        options.on_event(run_event("warning", message=message))
        return None
    plan = ExperimentPlan.of_document(run.resolved)
    overrides = Overrides.of_plan(plan, max_concurrency=options.max_concurrency)
    hint = "restore it, start a new run, or resume with `frozen=True` to use the run's own copy"
    try:
        current = resolve(load_experiment(source), overrides)
    except PermissionNeeded:
        raise
    except InvalidInput as error:
        message = f"{source} is no longer what {run.run_id} was started with\n{error.message}"
        raise ExperimentChanged(message, hint=hint) from error
    changes = differences(run.resolved, dict(tasks), current)
    if changes and all(map(is_of_grader, changes)):
        regrade = f"`labledger regrade {run.run_id} --grader {source}` grades its trials with it"
        is_complete = run.status is RunStatus.COMPLETED
        before = "" if is_complete else "finish the run with its own copy (`frozen=True`); then "
        hint = f"only the grader has changed: {before}{regrade}"
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        message = f"the experiment of {run.run_id} has changed since it was started:\n{listed}"
        raise ExperimentChanged(message, hint=hint)
    return current


def warn_of_changes(run: RunInfo, tasks: Mapping[str, str], options: RunOptions) -> None:
    """Warn if the experiment of a complete run has changed, because resuming runs nothing."""
    if options.source.frozen or run.regrades is not None or not Path(run.source_path).exists():
        return
    try:
        refuse_changed(run, tasks, options)
    except PermissionNeeded:
        return  # Nothing runs, so do not read files outside the project.
    except ExperimentChanged as changed:
        changes = "; ".join(line.strip() for line in changed.message.splitlines()[1:])
        message = (
            f"{run.run_id} is complete and does not change, although its experiment has changed "
            f"since ({changes}); `labledger run {run.source_path}` starts a new run"
        )
        options.on_event(run_event("warning", message=message))
