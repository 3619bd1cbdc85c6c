"""The execution of a run's uncommitted slots: a coordinator, and everything that it works with.

`SlotExecution` makes the executor, the plans of trials and the queues from the run, its experiment
and the options. It removes the remains of earlier sessions. The session provides the lease, the run
folder and the mirrors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labledger.agents.agent_trees import InstalledAgent
from labledger.checks.engine_checks import egress_image_ref
from labledger.engine.engine import Engine
from labledger.errors import EngineUnavailable, LabLedgerError, LeaseLost
from labledger.execution.agent_needs import (
    GatewayKeeper,
    install_agents,
    models_of,
    providers_of,
    shared_caps_of,
)
from labledger.execution.budget import Budget
from labledger.execution.dispatch_pauses import DispatchPauses
from labledger.execution.executor import TrialExecutor
from labledger.execution.failure_limits import ErrorRate, Pruning, RunNotices
from labledger.execution.frozen_agents import with_known_digests
from labledger.execution.local_executor import LocalExecutor
from labledger.execution.notification_delivery import DeliveryThread
from labledger.execution.run_events import Listener, run_event
from labledger.execution.unanswered_variants import UnansweredVariants
from labledger.execution.unfinished_slots import UnfinishedSlot, run_records
from labledger.experiment.plan import ExperimentPlan
from labledger.export.mirrors import MirrorWriter
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.gateway.keys import read_keys
from labledger.ledger.database.run_info import Lease, RunInfo, Stop, VariantCounts
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.control_requests import Controls
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject
from labledger.records.model_answers import variants_with_models
from labledger.records.model_grants import CAP_SHARES, KeySource, ProviderConfig
from labledger.runner.coordination.attempt_queues import NextAttempts, SlotQueue
from labledger.runner.coordination.commit_queue import CommitQueue, Ending
from labledger.runner.coordination.coordinator import Coordinator
from labledger.runner.coordination.earlier_trials import RecordedTrials, StoredTrials
from labledger.runner.coordination.file_sets import TrialFileSets
from labledger.runner.coordination.lost_hosts import LostHosts
from labledger.runner.coordination.ownership import Heartbeat
from labledger.runner.coordination.retries import RetryPolicy
from labledger.runner.coordination.run_control import RunControl, limits_of
from labledger.runner.env_files import gather
from labledger.runner.run_hosts import hosts_with_open_attempts
from labledger.runner.run_options import RunOptions
from labledger.trial.free_disk_space import DiskSpace, FullDisks, engine_data_folder
from labledger.trial.life.program_watch import ProgramWatch
from labledger.trial.trial_plan import TrialPlan


@dataclass(frozen=True, slots=True)
class SlotExecution:
    """The execution of the slots of a run that are not committed, in a session that owns it."""

    lab: LabFolder
    engine: Engine
    writer: LedgerWriter
    store: ArtifactStore
    values: Mapping[str, str]
    """Environment values from outside the experiment."""
    options: RunOptions
    lease: Lease
    run: RunInfo
    experiment: ExperimentPlan
    unfinished: Mapping[int, UnfinishedSlot]
    """The slots that earlier sessions began and did not commit."""
    reader: LedgerReader
    mirrors: MirrorWriter
    budget: Budget
    delivery: DeliveryThread
    programs: ProgramWatch
    """Watches the files that the trials on this machine share."""

    @property
    def _folder(self) -> Path:
        return self.lab.run_folder(self.run.run_id)

    @property
    def _has_slots(self) -> bool:
        """Whether any slot is not committed. If all are, nothing runs and no key is read."""
        return self.run.next_schedule_idx < self.run.total_slots

    def execute(self, stack: ExitStack) -> Stop | None:
        """Run the slots that are not committed. Return why the run stopped early, or None.

        `stack` closes the executor when the session ends.
        """
        run, experiment, reader = self.run, self.experiment, self.reader
        counts = reader.counts(run.run_id, without_pending=True)
        engine_info = {} if run.on else self._engine_info()
        full_disks = FullDisks()
        disk_space = self._disk_space(engine_info, full_disks)
        agents = self._agents() if self._has_slots else {}
        executor = self._executor(full_disks, agents)
        stack.enter_context(closing(executor))
        earlier = Controls.of(reader.unchanged_requests(run.run_id))
        executor.limit(limits_of(earlier, self.options.max_concurrency))
        self.options.on_event(self._started_event(executor.width, counts))
        if run.next_schedule_idx > 0 or self.unfinished:
            full_disks.check(disk_space.locations)
            self._clean_up(executor, run)
            self.writer.delete_event_files(run.run_id, run.next_schedule_idx)
        if not self._has_slots:
            return None
        pauses = DispatchPauses(
            self.options.on_event, self.options.limits.patience_s, disk_space.find_shortage
        )
        lost_hosts = LostHosts(reader, run.run_id, executor)
        lost_hosts.report_new()
        root = engine_data_folder(engine_info)
        plans = self._plans(root, executor, agents)
        error_rate = self._error_rate(counts)

        def after_renewal() -> None:
            lost_hosts.report_new()
            self.delivery.report_problems()

        commit_queue = CommitQueue(
            lease=self.lease,
            writer=self.writer,
            mirrors=self.mirrors,
            repair_mirrors=lambda: self.mirrors.repair(reader, run.run_id),
            pruning=self._pruning(),
            error_rate=error_rate,
            budget=self.budget,
            notices=RunNotices(self.lease.epoch, self.budget, error_rate),
            staged=self._staged(),
            disk_pause=pauses.disk,
            full_disks=full_disks,
            next_idx=run.next_schedule_idx,
            heartbeat=Heartbeat(
                self.writer, self.lease, executor, self.options.on_event, after_renewal
            ),
            emit=self.options.on_event,
            answers=self._answers(),
        )
        stored_trials = self._stored_trials()
        slot_queue = SlotQueue(
            *(reader, run, plans, self.unfinished),
            stored_trials=stored_trials,
            recorded_trials=RecordedTrials.of(experiment, reader),
            file_sets=TrialFileSets.of(experiment, reader.slots(run.run_id)),
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
                count_exempt=partial(reader.count_exempt, run.run_id),
                repeats_refused=not self.options.limits.continue_unanswered,
            ),
            pauses=pauses,
            folder_retention=self.options.folder_retention,
            stop_request=self.options.stop_request,
            emit=self.options.on_event,
            lost_hosts=lost_hosts,
            stored_trials=stored_trials,
            patience_s=self.options.limits.patience_s,
        )
        is_complete = coordinator.execute()
        for message in self.programs.find_touched_since():
            self.options.on_event(run_event("warning", message=message))
        # A cause that came with the last slots stopped nothing, and the run needs no resume.
        stop_cause = None if is_complete else coordinator.stop_cause
        with tolerating_errors(stop_cause, self.options.on_event):
            coordinator.commit_queue.append_pending_mirrors()
        if stop_cause is None:
            self.writer.delete_event_files(run.run_id, coordinator.commit_queue.next_idx)
            self._clean_up(executor, reader.run(run.run_id))
        return stop_cause

    def _agents(self) -> Mapping[str, InstalledAgent]:
        """Return the installed agents, by variant, with the files that the run began with."""
        emit = self.options.on_event
        plan = with_known_digests(self.experiment, self.reader, self.run.run_id, emit)
        return install_agents(plan, emit)

    def _executor(
        self, full_disks: FullDisks, agents: Mapping[str, InstalledAgent]
    ) -> TrialExecutor:
        """Return the executor of this run's trials. `agents` are installed agents, by variant."""
        run, experiment = self.run, self.experiment
        if run.on is None:
            width = self.options.max_concurrency or experiment.design.max_concurrency
            gateway = self._gateway()
            return LocalExecutor(width, full_disks, gateway=gateway, programs=self.programs)
        # Imported late: runs on this machine need none of it.
        from labledger.hosts.connect import model_needs, open_executor
        from labledger.hosts.coordinator_side.cluster_executor import ClusterRun
        from labledger.hosts.host_messages import RunKey, RunSetup

        insecure, needs = self.options.placement.insecure, None
        if self._has_slots:
            needs = model_needs(run.on, experiment, name=run.run_id, insecure=insecure)
        setup = RunSetup(
            RunKey(self.writer.ledger_id, run.run_id),
            self.lease.epoch,
            experiment.files,
            experiment.is_sealed,
            known_hosts=hosts_with_open_attempts(self.unfinished),
            models=needs,
            agents=tuple({agent.tree_sha256: agent for agent in agents.values()}.values()),
        )
        cluster_run = ClusterRun(
            setup,
            self.store.root,
            max_concurrency=self.options.max_concurrency or experiment.design.at_most_on_hosts,
            keys=self._keys(needs.providers) if needs and needs.are_keys_sent else {},
            caps=shared_caps_of(experiment),
            shares=self._folder / CAP_SHARES,
        )
        return open_executor(run.on, cluster_run, insecure=insecure)

    def _gateway(self) -> GatewayKeeper | None:
        """Start the gateway of the agents' models with their keys; None if no agent has any.

        Raises `InvalidInput` for a key that cannot be read, and `GatewayUnavailable`.
        """
        models = models_of(self.experiment)
        if not models:
            return None
        if not self._has_slots:
            # The gateway only closes attempts of earlier sessions.
            return GatewayKeeper(self.lab.gateway, self.run.run_id, {})
        # A replay needs no key, and must not be able to ask a provider.
        if self.experiment.replays:
            keeper = GatewayKeeper(self.lab.gateway, self.run.run_id, {})
        else:
            keys = self._keys(providers_of(models))
            changes = any(source.env is None or self.options.env_files for source in keys)
            read = partial(self._read_keys_again, tuple(providers_of(models)))
            keeper = GatewayKeeper(
                self.lab.gateway, self.run.run_id, keys, read=read if changes else None
            )
        keeper.start()
        return keeper

    def _keys(self, providers: Iterable[ProviderConfig]) -> Mapping[KeySource, str]:
        return read_keys(providers, self.values, name=self.run.run_id)

    def _read_keys_again(self, providers: Iterable[ProviderConfig]) -> Mapping[KeySource, str]:
        """Read the current keys, including the keys in environment files."""
        values = gather(self.options.env, self.options.env_files)
        return read_keys(providers, values, name=self.run.run_id)

    def _clean_up(self, executor: TrialExecutor, run: RunInfo) -> None:
        """Remove the containers, folders and notes of attempts whose results are durable."""
        records = run_records(self.reader, run, self._folder, self.options.folder_retention)
        for message in executor.clean_up(records):
            self.options.on_event(run_event("warning", message=message))

    def _stored_trials(self) -> StoredTrials | None:
        """Return the trials that a regrading grades again, or None for any other run."""
        regrades = self.experiment.regrades
        return None if regrades is None else StoredTrials(self.reader, regrades.run_id)

    def _error_rate(self, counts: Sequence[VariantCounts]) -> ErrorRate:
        limit = self.options.limits.max_error_rate
        if self.run.regrades is None:
            return ErrorRate(limit)
        statuses = (variant.statuses for variant in counts)
        return ErrorRate.of_regrading(limit, self.run.total_slots, statuses)

    def _answers(self) -> UnansweredVariants:
        """Return the state of answers from models by variant, as the ledger has it."""
        run, reader = self.run, self.reader
        granting = variants_with_models(run.resolved)
        if not granting:
            return UnansweredVariants(granting)
        staged = reader.staged_calls(run.run_id).items()
        return UnansweredVariants.of_run(
            granting,
            reader.model_answers(run.run_id),
            ((reader.slot(run.run_id, idx).variant_id, idx, calls) for idx, calls in staged),
            frozenset((i, s.attempt) for i, s in self.unfinished.items() if s.container_may_exist),
            stops=not self.options.limits.continue_unanswered,
        )

    def _staged(self) -> dict[int, Ending | None]:
        """Return the slots with a staged result; in a regrading, how they ended."""
        if self.run.regrades is None:
            return {idx: None for idx, slot in self.unfinished.items() if slot.staged}
        # A regrading prunes no variant, so its endings need no variant.
        statuses = self.reader.staged_statuses(self.run.run_id)
        return {idx: Ending("", status) for idx, status in statuses.items()}

    def _pruning(self) -> Pruning:
        """Return the state of pruning. A regrading prunes nothing, because its trials have run."""
        prune = None if self.experiment.regrades else self.experiment.design.prune
        return Pruning(prune, self.reader.consecutive_failures(self.run.run_id))

    def _engine_info(self) -> JsonObject:
        """Return the engine's settings, empty if the engine does not answer."""
        try:
            return self.engine.info()
        except EngineUnavailable:
            return {}

    def _egress_image(self, executor: TrialExecutor) -> str | None:
        """Return the image id of egress proxies; None if the engine has none, or does not answer.

        A trial that needs one raises `EngineUnavailable`, which pauses dispatch. For a run on a
        cluster, the hosts are asked if this machine has none.
        """
        ref = egress_image_ref(self.options.images.egress_image)
        try:
            image = self.engine.image_id(ref)
        except EngineUnavailable:
            image = None
        return executor.image_id(ref) if image is None and self.run.on is not None else image

    def _disk_space(self, engine_info: JsonObject, full_disks: FullDisks) -> DiskSpace:
        """Return the folders in which this run needs disk space."""
        space = DiskSpace.of(self.lab.root, engine_info, self.options.limits.min_free_bytes)
        locations = {**space.locations, self._folder: "the trials"}
        return replace(space, locations=locations, full_disks=full_disks)

    def _plans(
        self,
        root: Path | None,
        executor: TrialExecutor,
        agents: Mapping[str, InstalledAgent],
    ) -> dict[str, TrialPlan]:
        """Return the plan of the trials of each variant; `root` is the engine's data folder."""
        egress_image = self._egress_image(executor)
        prices = self.reader.prices(self.run.run_id)
        return {
            variant.variant_id: TrialPlan.of(
                self.experiment,
                variant,
                ledger_id=self.reader.ledger_id,
                run_dir=self._folder,
                store_root=self.store.root,
                engine_root=root,
                images=self.run.images,
                environment=self.values,
                egress_image=egress_image,
                prices=prices,
                installed=agents.get(variant.variant_id),
            )
            for variant in self.experiment.variants
        }

    def _started_event(self, width: int, counts: Sequence[VariantCounts]) -> JsonObject:
        return run_event(
            "run_started",
            run_id=self.run.run_id,
            folder=str(self._folder),
            total=self.run.total_slots,
            committed=self.run.next_schedule_idx,
            staged=sum(slot.staged for slot in self.unfinished.values()),
            begun=sum(slot.may_run for slot in self.unfinished.values()),
            max_concurrency=width,
            budget=dict(self.budget.limits),
            spent={kind: spent.as_json() for kind, spent in self.budget.spent.items()},
            variants=[variant.variant_id for variant in self.run.variants],
            counts=[count.as_json() for count in counts],
        )


@contextmanager
def tolerating_errors(stop_cause: Stop | None, emit: Listener) -> Iterator[None]:
    """Turn errors of the body into warnings if the run stopped early: its disk may be full.

    `LeaseLost` is always raised.
    """
    try:
        yield
    except LabLedgerError as error:
        if stop_cause is None or isinstance(error, LeaseLost):
            raise
        emit(run_event("warning", message=error.message))
