"""Start and resume runs: everything that happens before a session begins.

Everything that can prevent a run is checked before the lab folder is changed: a failed start leaves
only pulled or built images, logs of builds, and cached probe results. A resumed run uses the
experiment as the ledger holds it; the authored files are only compared with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from labledger import __version__
from labledger.errors import (
    ExperimentChanged,
    InvalidInput,
    LedgerMissing,
    Parameter,
    Problem,
    RunExists,
    RunNotFound,
)
from labledger.execution.budget import check_limits
from labledger.execution.run_events import run_event
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.resolve import ResolvedExperiment
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.database.model import NewRun, RunInfo, Variant
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records.identity import MAX_RUN_ID, RUN_ID
from labledger.records.outcomes import RunStatus
from labledger.runner.run_hosts import cluster_of, given_cluster, given_settings, require_limits
from labledger.runner.run_options import RunOptions, RunOutcome
from labledger.runner.run_start import (
    RunStart,
    refuse_changed,
    resolve_experiment,
)
from labledger.text import quoted


def start_run(
    path: Path, options: RunOptions, store_source: Callable[[LabFolder], Path] | None = None
) -> RunOutcome:
    """Run an experiment to its end. If it cannot begin, raises before the run is created.

    `path` may be a temporary copy: once every check has passed, `store_source` then stores the
    experiment in the lab folder and returns the path from which it runs.
    """
    experiment = resolve_experiment(path, options)
    run_id = options.run_id or new_run_id(experiment.plan.experiment.experiment_id)
    _require_run_id(run_id)
    with RunStart.opened(options) as start:
        check_limits(experiment.plan.metrics, options.budget)
        results = start.check(experiment, given_cluster(options))
        _refuse_existing(start.lab, run_id)
        start.lab.create()
        migrations.upgrade(start.lab.ledger)
        if store_source is not None:
            experiment = resolve_experiment(store_source(start.lab), options)

        def register(writer: LedgerWriter) -> None:
            experiment.freeze(start.store)
            writer.create_run(
                _new_run(run_id, experiment, results.images, options),
                ((task.task_id, task.digest, row) for task, row in experiment.frozen_tasks()),
                experiment.slots(),
            )

        return start.run(run_id, register=register)


def resume_run(run_id: str, options: RunOptions) -> RunOutcome:
    """Continue a run to the result that it would have had without the interruption."""
    with RunStart.opened(options) as start:
        with LedgerReader.open(start.lab.ledger) as reader:
            run = reader.run(run_id)
            plan = ExperimentPlan.of_document(run.resolved)
            if run.status is RunStatus.COMPLETED:
                _warn_of_changes(run, reader.task_digests(run_id), options)
            else:
                if not options.frozen and run.regrades is None:
                    refuse_changed(run, reader.task_digests(run_id), options)
                cluster = cluster_of(run, options)
                start.require(run, plan, cluster)
                if cluster is not None:
                    require_limits(cluster, run, plan, insecure=options.insecure)
            # A regrading has no budget: it runs no agent.
            limits = options.budget if run.regrades is None else {}
            check_limits(plan.metrics, limits)
        return start.run(run_id, limits)


def _warn_of_changes(run: RunInfo, tasks: Mapping[str, str], options: RunOptions) -> None:
    """Warn if the experiment of a complete run has changed, because resuming runs nothing."""
    if options.frozen or run.regrades is not None or not Path(run.source_path).exists():
        return
    try:
        refuse_changed(run, tasks, options)
    except ExperimentChanged as changed:
        changes = "; ".join(line.strip() for line in changed.message.splitlines()[1:])
        message = (
            f"{run.run_id} is complete and stays as it is, though its experiment has changed "
            f"since ({changes}); `labledger run {run.source_path}` starts a new run"
        )
        options.on_event(run_event("warning", message=message))


def new_run_id(experiment_id: str) -> str:
    """Return an id for a run: the experiment's id, the time, and a random suffix."""
    timestamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{experiment_id[:40]}-{timestamp}-{secrets.token_hex(2)}"


def _refuse_existing(lab: LabFolder, run_id: str) -> None:
    try:
        with LedgerReader.open(lab.ledger) as reader:
            reader.run(run_id)
    except (LedgerMissing, RunNotFound):
        return
    raise RunExists(
        f"{lab.ledger} already holds a run {run_id!r}",
        hint=f"choose another `run_id=`, or `labledger resume {run_id}`",
    )


def _require_run_id(run_id: str) -> None:
    """Raise `InvalidInput` for an id that cannot name a folder and a container."""
    if not RUN_ID.fullmatch(run_id):
        characters = "letters, digits and _ . -, starting with a letter or digit"
        expected = f"at most {MAX_RUN_ID} {characters}"
        problem = Problem(Parameter("run_id"), f"found {quoted(run_id)}; expected {expected}")
        raise InvalidInput("the run's id", [problem])


def _new_run(
    run_id: str,
    experiment: ResolvedExperiment,
    images: Mapping[str, str],
    options: RunOptions,
) -> NewRun:
    identity = experiment.plan.experiment
    return NewRun(
        run_id=run_id,
        experiment_id=identity.experiment_id,
        name=identity.name,
        resolved=experiment.document,
        authored=experiment.authored.text,
        digest=experiment.digest,
        source_path=str(experiment.source),
        images=dict(images),
        variants=tuple(Variant(v.variant_id, v.role, v.bindings) for v in experiment.plan.variants),
        labledger_version=__version__,
        budget=options.budget,
        settings=given_settings(options),
        tags=identity.tags,
    )
