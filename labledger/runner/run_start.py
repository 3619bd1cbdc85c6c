"""Start and resume runs, in steps that extending, rerunning and regrading share.

`RunStart` opens the lab, checks the needs of the run, registers its additions, and runs a session.
A start that fails leaves only images, logs of builds, and cached probe results. A resumed run uses
the experiment in the ledger, and only compares it with the authored files.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from labledger import __version__, clock
from labledger.checks.check_results import CheckResult, problems_of
from labledger.checks.engine_checks import (
    check_controllers,
    check_oci_runtime,
    require_egress_image,
)
from labledger.checks.image_supply import Supply
from labledger.checks.model_checks import check_models
from labledger.checks.preflight import Preflight, preflight
from labledger.engine.engine import Engine
from labledger.errors import (
    ExperimentChanged,
    InvalidInput,
    LedgerMissing,
    Parameter,
    PermissionNeeded,
    PreflightFailed,
    Problem,
    RunExists,
    RunNotFound,
)
from labledger.execution.agent_needs import install_agents, prices_of, shared_caps_of
from labledger.execution.budget import check_limits
from labledger.execution.frozen_agents import freeze_agents
from labledger.execution.receivers import GivenReceivers, given_receivers
from labledger.execution.run_events import run_event
from labledger.experiment.design_settings import Look
from labledger.experiment.experiment_differences import differences, is_of_grader
from labledger.experiment.plan import ExperimentPlan, find_build
from labledger.experiment.resolve import Overrides, ResolvedExperiment, resolve
from labledger.experiment.trial_settings import EMPTY_HINT, empty_names
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.database.run_info import Lease, NewRun, RunInfo, Variant
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records.identity import MAX_RUN_ID, RUN_ID
from labledger.records.model_grants import CAP_SHARES
from labledger.records.outcomes import RunStatus
from labledger.runner import env_files
from labledger.runner.coordination.earlier_trials import require_records
from labledger.runner.coordination.session import Session
from labledger.runner.run_hosts import (
    cluster_of,
    given_cluster,
    given_settings,
    has_keys,
    require_limits,
)
from labledger.runner.run_options import RunOptions
from labledger.runner.run_outcome import RunOutcome
from labledger.text.words import counted, quoted

Append = Callable[[Lease], object]
"""Appends a part to the schedule of a run that is owned."""


def resolve_experiment(path: Path, options: RunOptions) -> ResolvedExperiment:
    """Return the resolved experiment of a file. Raises `InvalidInput` with every problem.

    With `options.strict`, a number whose text changes on the way to a command is a problem.
    """
    # Imported late: it loads PyYAML.
    from labledger.experiment.experiment_file import load_experiment

    authored = load_experiment(path)
    if options.strict and (changed := list(authored.number_warnings())):
        raise InvalidInput(f"{path} has numbers whose text changes for commands", changed)
    return resolve(authored, options.overrides)


def report_warnings(checks: Iterable[CheckResult], options: RunOptions) -> None:
    """Report the warnings of checks as run events."""
    for check in checks:
        if check.warning:
            options.on_event(run_event("warning", message=f"{check.detail} ({check.hint})"))


@dataclass(frozen=True, slots=True)
class RunStart:
    """An opened lab, with the engine, values, options and receivers of a run."""

    lab: LabFolder
    store: ArtifactStore
    engine: Engine
    values: Mapping[str, str]
    """Environment values from outside the experiment."""
    options: RunOptions
    receivers: GivenReceivers

    @classmethod
    @contextmanager
    def opened(cls, options: RunOptions) -> Iterator[Self]:
        """Find the lab and gather the environment. Connect to nothing, and write nothing.

        Raises `InvalidInput` for a receiver of notifications that cannot be used.
        """
        lab = LabFolder.find(options.lab_dir)
        values = env_files.gather(options.env, options.env_files)
        receivers = given_receivers(options.notify, lab, values)
        with closing(Engine()) as engine:
            yield cls(lab, _store_of(lab, options), engine, values, options, receivers)

    def check(self, experiment: ResolvedExperiment, cluster: str | None) -> Preflight:
        """Check the needs of an experiment's trials, supply images and agents, report warnings.

        Raises `PreflightFailed`, and `InvalidInput` for an agent that could not be installed.
        """
        options = self.options
        supply = Supply(True, options.build, options.on_event, options.stop_request)
        results = self.check_with(experiment, cluster, supply, use_cache=True)
        report_warnings(results.checks, options)
        results.require()
        install_agents(experiment.plan, options.on_event)
        return results

    def check_with(
        self,
        experiment: ResolvedExperiment,
        cluster: str | None,
        supply: Supply,
        *,
        use_cache: bool,
    ) -> Preflight:
        """Return the results of all checks, on this machine and on the hosts of the cluster.

        With `use_cache`, probes that an image has passed before are not repeated.
        """
        options = self.options
        results = preflight(
            experiment,
            self.lab,
            self.values,
            supply=supply,
            min_free_bytes=options.min_free_bytes,
            use_cache=use_cache,
            egress_image=options.egress_image,
            runs_here=cluster is None,
            has_keys=has_keys(cluster, experiment.plan, insecure=options.insecure),
        )
        if cluster is None:
            return results
        # Imported late: runs on this machine need none of it.
        from labledger.checks.host_checks import check_hosts

        return check_hosts(
            cluster,
            results,
            experiment,
            insecure=options.insecure,
            min_free_bytes=options.min_free_bytes,
            egress_image=options.egress_image,
            pull=supply.pull,
        )

    def require(self, run: RunInfo, plan: ExperimentPlan, cluster: str | None) -> None:
        """Raise if a requirement of further trials of an existing run is missing.

        Images of hosts are not checked: each host gets them from a registry or this machine.
        """
        runs_here, insecure = cluster is None, self.options.insecure
        problems = [
            Problem(
                "environment", f"${name} is not set", hint=f"pass it with `env={{'{name}': …}}`"
            )
            for name in env_files.missing(plan.environment, self.values)
        ]
        problems += [
            Problem("environment", f"${name} is set, but it is empty", hint=EMPTY_HINT)
            for name in empty_names(plan.environment, self.values)
        ]
        if not problems:
            # Hosts that read keys report missing keys when they are prepared.
            keys_here = has_keys(cluster, plan, insecure=insecure)
            checks = check_models(
                plan, self.values, name=run.run_id, runs_here=runs_here, has_keys=keys_here
            )
            problems = problems_of(checks)
        if problems:
            raise InvalidInput(f"run {run.run_id} cannot continue", problems)
        if shared_caps_of(plan):
            self._require_same_caps(run, cluster)
        if runs_here:
            require_images(self.engine, run, plan.runtime.oci)
            require_egress_image(self.engine, plan, self.options.egress_image)

    def _require_same_caps(self, run: RunInfo, cluster: str | None) -> None:
        """Raise `InvalidInput` if a run would continue where the use of its caps is unknown.

        Either the gateway of this machine knows it, or the hosts of a cluster and the file of
        shares.
        """
        was_on_hosts = (self.lab.run_folder(run.run_id) / CAP_SHARES).exists()
        if was_on_hosts != (cluster is not None) and (was_on_hosts or run.on is None):
            where = "the hosts of its cluster" if was_on_hosts else "this machine"
            problem = Problem(
                Parameter("on"),
                f"only {where} can tell how much of its run_limits and variant_limits is used",
                hint="continue the run there",
            )
            raise InvalidInput(f"run {run.run_id} cannot continue", [problem])

    def run(
        self,
        run_id: str,
        limits: Mapping[str, float] | None = None,
        *,
        register: Callable[[LedgerWriter], Append | None] = lambda _: None,
    ) -> RunOutcome:
        """Run a session of the run, and return how it ended.

        `limits` are new limits of its budget, by kind. `register` stores the files that the command
        adds, while the open writer protects files that no run names yet. It may return a function
        that appends a part to the run, which is called once the run is owned.
        """
        with LedgerWriter.open(self.lab.ledger, self.store) as writer:
            append_part = register(writer)
            session = Session(
                *(self.lab, self.engine, writer, self.store, run_id, self.values, self.options),
                new_limits=limits or {},
                receivers=self.receivers,
                append_part=append_part,
            )
            return session.run_session()


def _store_of(lab: LabFolder, options: RunOptions) -> ArtifactStore:
    """Return the lab's artifact store, which reports its repairs as run events."""

    def warn(message: str) -> None:
        options.on_event(run_event("warning", message=message))

    return ArtifactStore(lab.artifacts, warn)


def check_experiment(
    path: Path, options: RunOptions, *, pull: bool = False, use_cache: bool = False
) -> Preflight:
    """Return the results of the checks before a run of `path`. Creates no run.

    With `use_cache`, probes that an image has passed before are not repeated.
    """
    experiment = resolve_experiment(path, options)
    with RunStart.opened(options) as start:
        supply = Supply(pull, options.build, options.on_event, options.stop_request)
        return start.check_with(experiment, given_cluster(options), supply, use_cache=use_cache)


def refuse_changed(
    run: RunInfo, tasks: Mapping[str, str], options: RunOptions
) -> ResolvedExperiment | None:
    """Return the run's experiment from its current files; None if they are gone.

    Raises `ExperimentChanged` if a changed file could change results.
    """
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


def require_images(engine: Engine, run: RunInfo, oci: str | None) -> None:
    """Raise `PreflightFailed` if the engine lacks an image or `oci`, or cannot enforce limits.

    A run may continue on another engine than the one on which it began.
    """
    problems = []
    for ref, image in run.images.items():
        if engine.image_id(image) is None:
            hint = _missing_image_hint(ref, run)
            problems.append(Problem("image", f"{ref} ({image}) is no longer available", hint=hint))
    info = engine.info()
    checks = [*check_oci_runtime(info, oci), *check_controllers(info)]
    problems += problems_of(checks)
    if problems:
        raise PreflightFailed(problems)


def _missing_image_hint(ref: str, run: RunInfo) -> str:
    hint = "the run cannot continue with another image: "
    build = find_build(ExperimentPlan.of_document(run.resolved).image_builds, ref)
    if build is None:
        return f"{hint}pull or build this one again"
    return (
        f"{hint}load or pull this one again, or start a new run, which builds it from "
        f"{build.context} (a built image has another id each time, unless the engine still has "
        "its layers)"
    )


def start_run(
    path: Path, options: RunOptions, store_source: Callable[[LabFolder], Path] | None = None
) -> RunOutcome:
    """Run an experiment to its end. If it cannot begin, raises before the run is created.

    `path` may be a temporary copy. Then `store_source` stores the experiment in the lab folder once
    every check has passed, and returns the path from which it runs.
    """
    experiment = resolve_experiment(path, options)
    run_id = options.run_id or new_run_id(experiment.plan.experiment.experiment_id)
    require_run_id(run_id)
    _warn_of_other_size(experiment, options)
    with RunStart.opened(options) as start:
        check_limits(experiment.plan, options.budget)
        require_records(start.lab.ledger, experiment)
        results = start.check(experiment, given_cluster(options))
        _refuse_existing(start.lab, run_id)
        start.lab.create()
        migrations.upgrade(start.lab.ledger)
        if store_source is not None:
            experiment = resolve_experiment(store_source(start.lab), options)
        frozen = freeze_agents(experiment.plan, options.on_event)
        experiment = replace(experiment, plan=frozen)

        def register(writer: LedgerWriter) -> None:
            experiment.freeze(start.store)
            writer.create_run(
                _new_run(run_id, experiment, results.images, options),
                ((task.task_id, task.digest, row) for task, row in experiment.frozen_tasks()),
                experiment.slots(),
            )

        return start.run(run_id, register=register)


def _warn_of_other_size(experiment: ResolvedExperiment, options: RunOptions) -> None:
    """Warn if a run with declared looks begins with a size that is not planned."""
    design, tasks = experiment.plan.design, len(experiment.tasks)
    size = Look(tasks, design.replications)
    if design.looks and size not in design.looks and experiment.shard is None:
        message = (
            f"{counted(tasks, 'task')} with {counted(design.replications, 'replication')} match no "
            "planned look (design.looks): comparisons will not use their boundary"
        )
        options.on_event(run_event("warning", message=message))


def resume_run(run_id: str, options: RunOptions) -> RunOutcome:
    """Continue a run to its end. Its result is the same as without the interruption."""
    unchanged: ResolvedExperiment | None = None
    with RunStart.opened(options) as start:
        with LedgerReader.open(start.lab.ledger) as reader:
            run = reader.run(run_id)
            plan = ExperimentPlan.of_document(run.resolved)
            if run.status is RunStatus.COMPLETED:
                _warn_of_changes(run, reader.task_digests(run_id), options)
            else:
                if not options.frozen and run.regrades is None:
                    unchanged = refuse_changed(run, reader.task_digests(run_id), options)
                cluster = cluster_of(run, options)
                start.require(run, plan, cluster)
                if cluster is not None:
                    require_limits(cluster, run, plan, insecure=options.insecure)
            # A regrading has no budget: it runs no agent.
            limits = options.budget if run.regrades is None else {}
            check_limits(plan, limits)

        def restore_files(_: LedgerWriter) -> None:
            if unchanged is not None:
                unchanged.freeze(start.store)

        return start.run(run_id, limits, register=restore_files)


def _warn_of_changes(run: RunInfo, tasks: Mapping[str, str], options: RunOptions) -> None:
    """Warn if the experiment of a complete run has changed, because resuming runs nothing."""
    if options.frozen or run.regrades is not None or not Path(run.source_path).exists():
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


def new_run_id(experiment_id: str) -> str:
    """Return an id for a run: the experiment's id, the time, and a random suffix."""
    timestamp = clock.now().strftime("%Y%m%d-%H%M%S")
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


def require_run_id(run_id: str) -> None:
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
        prices=prices_of(experiment.plan),
    )
