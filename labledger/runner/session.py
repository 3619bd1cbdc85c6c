"""A session: what one coordinator does with a run, from acquiring its lease to releasing it.

It prepares the run folder, repairs the mirrors, runs the coordinator, and writes the chain file and
the summary. The lease is released last, so that every file is written while the run is owned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from labledger import fault_points
from labledger.agents.agent_trees import InstalledAgent
from labledger.checks.engine_checks import egress_image_ref
from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable, LabLedgerError, LeaseLost, LedgerReplaced
from labledger.execution.agent_folders import install_agents
from labledger.execution.budget import Budget
from labledger.execution.dispatch_rules import DispatchPauses, ErrorRate, Pruning
from labledger.execution.executor import TrialExecutor
from labledger.execution.gateway_keeper import (
    GatewayKeeper,
    models_of,
    providers_of,
    shared_caps_of,
)
from labledger.execution.local_executor import LocalExecutor
from labledger.execution.notification_delivery import DeliveryThread
from labledger.execution.receivers import GivenReceivers
from labledger.execution.run_events import on_signals, run_event
from labledger.execution.run_notices import RunNotices
from labledger.experiment.plan import ExperimentPlan
from labledger.export.mirrors import CHAIN_PATH, MirrorWriter, create_run_folder, write_chain
from labledger.export.summary import build_summary, write_summary
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.gateway.keys import read_keys
from labledger.ledger.database.model import Lease, RunInfo, Stop, VariantCounts
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject
from labledger.records.model_grants import CAP_SHARES
from labledger.records.outcomes import RunStatus, StopCause
from labledger.runner.attempt_queues import NextAttempts, SlotQueue, StoredTrials
from labledger.runner.commit_queue import CommitQueue, Ending
from labledger.runner.coordinator import Coordinator
from labledger.runner.lost_hosts import LostHosts
from labledger.runner.ownership import Heartbeat, owning_run, rescue_run
from labledger.runner.replays import RecordedTrials
from labledger.runner.retries import RetryPolicy
from labledger.runner.run_control import RunControl, apply_waiting
from labledger.runner.run_hosts import (
    cluster_of,
    given_settings,
    hosts_with_open_attempts,
    require_reachable_attempts,
)
from labledger.runner.run_options import Regrading, RunOptions, RunOutcome, pass_counts_of
from labledger.trial.disk_space import DiskSpace, FullDisks, engine_data_folder
from labledger.trial.life import shared_files
from labledger.trial.trial_plan import TrialPlan
from labledger.upkeep.container_cleanup import UnfinishedSlot, find_unfinished_slots, run_records


@dataclass(slots=True)
class Session:
    """One coordinator's ownership of a run."""

    lab: LabFolder
    engine: Engine
    writer: LedgerWriter
    store: ArtifactStore
    run_id: str
    values: Mapping[str, str]
    """Environment values from outside the experiment."""
    options: RunOptions
    new_limits: Mapping[str, float] = field(default_factory=dict)
    """New limits of the run's budget, by kind. Kinds that are missing keep their limit."""
    receivers: GivenReceivers = field(default_factory=GivenReceivers)
    """Who is told what happens to the run."""
    append_part: Callable[[Lease], object] | None = None
    """Appends a part to the run's schedule before anything is run; None appends nothing."""

    def run_session(self) -> RunOutcome:
        """Acquire the run, run its uncommitted slots, and return how it ended.

        Raises `LeaseHeld` if another coordinator owns the run, `LeaseLost` if one takes it over,
        and `LedgerReplaced` with a hint of how to get the run back.
        """
        try:
            return self._run_session()
        except LedgerReplaced as error:
            hint = rescue_run(self.lab, self.writer, self.run_id)
            raise LedgerReplaced(error.message, hint=hint) from error

    def _run_session(self) -> RunOutcome:
        folder = self.lab.run_folder(self.run_id)
        with ExitStack() as stack:
            # Left last: it delivers also that the run has ended.
            delivery = stack.enter_context(
                DeliveryThread(self.lab, self.run_id, self.values, self.options.on_event)
            )
            lease = stack.enter_context(owning_run(self.writer, self.run_id, self.options))
            reader = stack.enter_context(LedgerReader.open(self.lab.ledger))
            stack.enter_context(on_signals(self.options.stop_request))
            run = reader.run(self.run_id)
            unfinished = find_unfinished_slots(reader, run)
            require_reachable_attempts(run, cluster_of(run, self.options), unfinished)
            apply_waiting(reader, self.writer, run, lease, self.options.on_event)
            self._append_part(reader, lease)
            run = self._apply_options(reader, lease)
            budget = Budget.of(run, reader, self.options.on_event)
            experiment = ExperimentPlan.of_document(run.resolved)
            self._prepare_folder(run, experiment)
            delivery.begin()
            fence = partial(self.writer.leases.while_owned, lease)
            mirrors = stack.enter_context(MirrorWriter(folder, fence))
            mirrors.repair(reader, self.run_id)
            stop_cause = self._run_slots(
                run, experiment, unfinished, reader, mirrors, lease, budget, delivery, stack
            )
            stop = self._stop_reason(stop_cause, budget)
            with self._tolerating_errors(stop_cause):
                mirrors.sync()
            summary = build_summary(reader, self.run_id)
            run = reader.run(self.run_id)
            complete = run.next_schedule_idx == run.total_slots
            status = RunStatus.COMPLETED if complete else RunStatus.INTERRUPTED
            with self._tolerating_errors(stop_cause):
                write_chain(reader, self.run_id, folder / CHAIN_PATH, fence)
            with self._tolerating_errors(stop_cause):
                write_summary(folder, summary, fence)
            with self._tolerating_errors(stop_cause):
                passes = pass_counts_of(summary)
                self.writer.leases.release(lease, status, None if complete else stop, passes)
            regrading = self._regrading(experiment, reader, complete)
            spent = {} if run.regrades is not None else reader.spent_so_far(self.run_id)
        outcome = RunOutcome(
            run_id=self.run_id,
            folder=folder,
            complete=complete,
            summary=summary,
            stopped=self.options.stop_request.level > 0,
            # A cause that arose with the last slots, such as a spent budget, had no effect.
            stop=None if complete else stop,
            regrading=regrading,
            budget=budget.limits,
            used_up=budget.exhausted(),
            spent=spent,
        )
        self.options.on_event(_ended_event(outcome))
        return outcome

    def _append_part(self, reader: LedgerReader, lease: Lease) -> None:
        """Append the new part. If that fails, a run that was complete is complete again."""
        if self.append_part is None:
            return
        fault_points.fault_point("before_append")
        try:
            self.append_part(lease)
        except LabLedgerError:
            run = reader.run(self.run_id)
            if run.next_schedule_idx == run.total_slots:
                self.writer.leases.release(lease, RunStatus.COMPLETED)
            raise
        fault_points.fault_point("after_append")

    def _stop_reason(self, stop_cause: Stop | None, budget: Budget) -> Stop | None:
        """Return why the run stopped. Called after every trial in flight has ended."""
        if self.options.stop_request.level > 0:
            return Stop(StopCause.INTERRUPT, self.options.stop_request.message)
        if stop_cause is not None and stop_cause.cause == StopCause.BUDGET:
            # A limit that was raised meanwhile is not spent any more.
            return Stop(StopCause.BUDGET, budget.message() or stop_cause.message)
        return stop_cause

    def _apply_options(self, reader: LedgerReader, lease: Lease) -> RunInfo:
        """Store the new limits and settings, and return the run with them."""
        if self.new_limits:
            self.writer.set_budget(lease, self.new_limits)
        if settings := given_settings(self.options):
            self.writer.set_settings(lease, settings)
        if changed := self.receivers.changes(reader.receivers(self.run_id)):
            self.writer.set_receivers(lease, changed)
        return reader.run(self.run_id)

    def _regrading(
        self, experiment: ExperimentPlan, reader: LedgerReader, complete: bool
    ) -> Regrading | None:
        """Return the changed outcomes of a regrading, or None for any other run."""
        if experiment.regrades is None:
            return None
        # Imported late: only regradings are compared.
        from labledger.compare.run_differences import outcome_changes

        gradings = reader.gradings(self.run_id)
        generation = experiment.regrades.generation
        earlier = [g for g in gradings if g.complete and g.generation < generation][-1]
        changes = outcome_changes(self.lab.ledger, earlier.run_id, self.run_id) if complete else ()
        return Regrading(gradings[0].root_id, generation, earlier.generation, changes)

    @contextmanager
    def _tolerating_errors(self, stop_cause: Stop | None) -> Iterator[None]:
        """Turn errors of the body into warnings if the run stopped early: its disk may be full.

        `LeaseLost` is always raised.
        """
        try:
            yield
        except LabLedgerError as error:
            if stop_cause is None or isinstance(error, LeaseLost):
                raise
            self.options.on_event(run_event("warning", message=error.message))

    def _prepare_folder(self, run: RunInfo, experiment: ExperimentPlan) -> None:
        """Create the run folder and its files from the ledger and the artifact store.

        Raises `LedgerError` if programs that an earlier session put there were changed since.
        """
        folder = self.lab.run_folder(run.run_id)
        create_run_folder(folder, run)
        if run.on is not None:
            # Each host stages them for its own trials.
            return
        sealed = experiment.is_sealed
        deps = folder / "deps"
        shared_files.stage_dependencies(experiment.files, self.store, deps, sealed=sealed)
        shared_files.require_unchanged_files_of_tasks(folder, self.store)

    def _run_slots(
        self,
        run: RunInfo,
        experiment: ExperimentPlan,
        unfinished: Mapping[int, UnfinishedSlot],
        reader: LedgerReader,
        mirrors: MirrorWriter,
        lease: Lease,
        budget: Budget,
        delivery: DeliveryThread,
        stack: ExitStack,
    ) -> Stop | None:
        """Run the slots that are not committed. Return why the run stopped early, or None.

        `stack` closes the executor when the session ends.
        """
        folder = self.lab.run_folder(self.run_id)
        counts = reader.counts(self.run_id, without_pending=True)
        engine_info = {} if run.on else self._engine_info()
        full_disks = FullDisks()
        disk_space = self._disk_space(engine_info, full_disks)
        has_slots = run.next_schedule_idx < run.total_slots
        agents = install_agents(experiment, self.options.on_event) if has_slots else {}
        executor = self._executor(run, experiment, unfinished, lease, full_disks, agents)
        stack.enter_context(closing(executor))
        width = executor.width
        self.options.on_event(_started_event(run, folder, unfinished, width, budget, counts))
        if run.next_schedule_idx > 0 or unfinished:
            full_disks.check(disk_space.locations)
            self._clean_up(executor, run, reader)
            self.writer.delete_event_files(self.run_id, run.next_schedule_idx)
        if not has_slots:
            return None
        pauses = DispatchPauses(
            self.options.on_event, self.options.patience_s, disk_space.find_shortage
        )
        lost_hosts = LostHosts(reader, run.run_id, executor)
        lost_hosts.report_new()
        root = engine_data_folder(engine_info)
        plans = self._plans(run, experiment, reader, root, executor, agents)
        error_rate = self._error_rate(run, counts)

        def after_renewal() -> None:
            lost_hosts.report_new()
            delivery.report_problems()

        commit_queue = CommitQueue(
            lease=lease,
            writer=self.writer,
            mirrors=mirrors,
            repair_mirrors=lambda: mirrors.repair(reader, run.run_id),
            pruning=self._pruning(experiment, reader),
            error_rate=error_rate,
            budget=budget,
            notices=RunNotices(lease.epoch, budget, error_rate),
            staged=self._staged(run, reader, unfinished),
            disk_pause=pauses.disk,
            full_disks=full_disks,
            next_idx=run.next_schedule_idx,
            heartbeat=Heartbeat(self.writer, lease, executor, self.options.on_event, after_renewal),
            emit=self.options.on_event,
        )
        slot_queue = SlotQueue(
            *(reader, run, plans, unfinished),
            stored_trials=self._stored_trials(experiment, reader),
            recorded_trials=RecordedTrials.of(experiment, reader),
        )
        control = RunControl(
            *(reader, run, commit_queue, executor, self.options.stop_request),
            emit=self.options.on_event,
            max_concurrency=self.options.max_concurrency,
        )
        control.begin()
        coordinator = Coordinator(
            run=run,
            commit_queue=commit_queue,
            next_attempts=NextAttempts(slot_queue, commit_queue, executor, control, run.window),
            executor=executor,
            retry_policy=RetryPolicy(
                experiment.design.retry,
                retries_starved=experiment.benchmark.policy.timeouts_under_pressure == "retry",
            ),
            pauses=pauses,
            folder_retention=self.options.keep,
            stop_request=self.options.stop_request,
            emit=self.options.on_event,
            lost_hosts=lost_hosts,
            patience_s=self.options.patience_s,
        )
        coordinator.execute()
        with self._tolerating_errors(coordinator.stop_cause):
            coordinator.commit_queue.append_pending_mirrors()
        if coordinator.stop_cause is None:
            self.writer.delete_event_files(self.run_id, coordinator.commit_queue.next_idx)
            self._clean_up(executor, reader.run(self.run_id), reader)
        return coordinator.stop_cause

    def _executor(
        self,
        run: RunInfo,
        experiment: ExperimentPlan,
        unfinished: Mapping[int, UnfinishedSlot],
        lease: Lease,
        full_disks: FullDisks,
        agents: Mapping[str, InstalledAgent],
    ) -> TrialExecutor:
        """Return the executor of this run's trials, of which `agents` are installed by variant."""
        if run.on is None:
            width = self.options.max_concurrency or experiment.design.max_concurrency
            gateway = self._gateway(experiment)
            return LocalExecutor(width, full_disks, gateway=gateway)
        # Imported late: runs on this machine need none of it.
        from labledger.hosts.connect import model_needs, open_executor
        from labledger.hosts.coordinator_side.cluster_executor import ClusterRun

        needs = model_needs(run.on, experiment, insecure=self.options.insecure)
        cluster_run = ClusterRun(
            ledger_id=self.writer.ledger_id,
            run_id=run.run_id,
            epoch=lease.epoch,
            files=experiment.files,
            is_sealed=experiment.is_sealed,
            store_root=self.store.root,
            max_concurrency=self.options.max_concurrency,
            known_hosts=hosts_with_open_attempts(unfinished),
            models=needs,
            keys=read_keys(needs.providers, self.values) if needs and needs.are_keys_sent else {},
            agents=tuple({each.tree_sha256: each for each in agents.values()}.values()),
            caps=shared_caps_of(experiment),
            shares=self.lab.run_folder(run.run_id) / CAP_SHARES,
        )
        return open_executor(run.on, cluster_run, insecure=self.options.insecure)

    def _gateway(self, experiment: ExperimentPlan) -> GatewayKeeper | None:
        """Start the gateway of the agents' models with their keys; None if no agent has any.

        Raises `InvalidInput` for a key that cannot be read, and `GatewayUnavailable`.
        """
        models = models_of(experiment)
        if not models:
            return None
        # What answers from a record needs no key, and must not be able to ask a provider.
        keys = {} if experiment.replays else read_keys(providers_of(models), self.values)
        keeper = GatewayKeeper(self.lab.gateway, self.run_id, keys)
        keeper.start()
        return keeper

    def _clean_up(self, executor: TrialExecutor, run: RunInfo, reader: LedgerReader) -> None:
        """Remove the containers, folders and notes of attempts whose results are durable."""
        folder = self.lab.run_folder(self.run_id)
        for message in executor.clean_up(run_records(reader, run, folder, self.options.keep)):
            self.options.on_event(run_event("warning", message=message))

    @staticmethod
    def _stored_trials(experiment: ExperimentPlan, reader: LedgerReader) -> StoredTrials | None:
        """Return the trials that a regrading grades again, or None for any other run."""
        regrades = experiment.regrades
        return None if regrades is None else StoredTrials(reader, regrades.run_id)

    def _error_rate(self, run: RunInfo, counts: Sequence[VariantCounts]) -> ErrorRate:
        limit = self.options.max_error_rate
        if run.regrades is None:
            return ErrorRate(limit)
        statuses = (variant.statuses for variant in counts)
        return ErrorRate.of_regrading(limit, run.total_slots, statuses)

    def _staged(
        self, run: RunInfo, reader: LedgerReader, unfinished: Mapping[int, UnfinishedSlot]
    ) -> dict[int, Ending | None]:
        """Return the slots with a staged result; of the last slot, how it ended."""
        staged: dict[int, Ending | None] = {
            idx: None for idx, slot in unfinished.items() if slot.staged
        }
        last = run.total_slots - 1
        if last in staged and (result := reader.staged_result(run.run_id, last)) is not None:
            staged[last] = Ending.of(result)
        return staged

    def _pruning(self, experiment: ExperimentPlan, reader: LedgerReader) -> Pruning:
        """Return the state of pruning. A regrading prunes nothing: its trials have run."""
        prune = None if experiment.regrades else experiment.design.prune
        return Pruning(prune, reader.consecutive_failures(self.run_id))

    def _engine_info(self) -> JsonObject:
        """Return the engine's settings, empty if the engine does not answer."""
        try:
            return self.engine.info()
        except EngineUnavailable:
            return {}

    def _egress_image(self, run: RunInfo, executor: TrialExecutor) -> str | None:
        """Return the image id of egress proxies; None if the engine has none, or does not answer.

        A trial that needs one raises `EngineUnavailable`, which pauses dispatch. For a run on a
        cluster, the hosts are asked if this machine has none.
        """
        ref = egress_image_ref(self.options.egress_image)
        try:
            image = self.engine.image_id(ref)
        except EngineUnavailable:
            image = None
        return executor.image_id(ref) if image is None and run.on is not None else image

    def _disk_space(self, engine_info: JsonObject, full_disks: FullDisks) -> DiskSpace:
        """Return the folders in which this run needs disk space."""
        space = DiskSpace.of(self.lab.root, engine_info, self.options.min_free_bytes)
        trials = {self.lab.run_folder(self.run_id): "the trials"}
        return replace(space, locations={**space.locations, **trials}, full_disks=full_disks)

    def _plans(
        self,
        run: RunInfo,
        experiment: ExperimentPlan,
        reader: LedgerReader,
        root: Path | None,
        executor: TrialExecutor,
        agents: Mapping[str, InstalledAgent],
    ) -> dict[str, TrialPlan]:
        egress_image = self._egress_image(run, executor)
        prices = reader.prices(run.run_id)
        return {
            variant.variant_id: TrialPlan.of(
                experiment,
                variant,
                ledger_id=reader.ledger_id,
                run_dir=self.lab.run_folder(run.run_id),
                store_root=self.store.root,
                engine_root=root,
                images=run.images,
                environment=self.values,
                egress_image=egress_image,
                prices=prices,
                installed=agents.get(variant.variant_id),
            )
            for variant in experiment.variants
        }


def _started_event(
    run: RunInfo,
    folder: Path,
    unfinished: Mapping[int, UnfinishedSlot],
    width: int,
    budget: Budget,
    counts: Sequence[VariantCounts],
) -> JsonObject:
    return run_event(
        "run_started",
        run_id=run.run_id,
        folder=str(folder),
        total=run.total_slots,
        committed=run.next_schedule_idx,
        staged=sum(slot.staged for slot in unfinished.values()),
        begun=sum(slot.container_may_exist and not slot.staged for slot in unfinished.values()),
        max_concurrency=width,
        budget=dict(budget.limits),
        spent={kind: spent.as_json() for kind, spent in budget.spent.items()},
        variants=[variant.variant_id for variant in run.variants],
        counts=[count.as_json() for count in counts],
    )


def _ended_event(outcome: RunOutcome) -> JsonObject:
    return run_event(
        "run_ended",
        run_id=outcome.run_id,
        complete=outcome.complete,
        stopped=outcome.stopped,
        trouble=outcome.trouble,
        stop=outcome.stop and outcome.stop.as_json(),
        spent={kind: spent.as_json() for kind, spent in outcome.spent.items()},
        unscored_variants=list(outcome.unscored_variants),
        exit_code=int(outcome.exit_code),
        summary=outcome.summary,
    )
