"""One coordinator's time with a run: from taking its lease to giving it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from labledger.analysis.flips import flips
from labledger.errors import EngineUnavailable, LabLedgerError, LeaseLost
from labledger.export import chain_file
from labledger.export.chain_file import write_chain
from labledger.export.mirrors import MirrorWriter
from labledger.export.summary import build_summary, write_summary
from labledger.ledger.model import Lease, RunInfo, Stop, VariantCounts
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject, RunStatus, StopCause
from labledger.runner.bookkeeping import Bookkeeper
from labledger.runner.budget import Budget
from labledger.runner.coordinator import Coordinator
from labledger.runner.error_rate import OF_REGRADING, ErrorRate
from labledger.runner.events import event
from labledger.runner.executors import LocalTrials
from labledger.runner.holds import Holds
from labledger.runner.lab import Lab
from labledger.runner.options import Regrading, RunOptions, RunOutcome
from labledger.runner.ownership import Heartbeat, owned
from labledger.runner.pruning import Pruning
from labledger.runner.recovery import Leftover, leftovers, sweep
from labledger.runner.room import Room, engine_root
from labledger.runner.run_folder import make_run_folder
from labledger.runner.slots import SlotQueue
from labledger.runner.stopping import on_signals
from labledger.store import ArtifactStore
from labledger.trial import disks
from labledger.trial.container import thread_engine
from labledger.trial.contract import TrialPlan
from labledger.trial.inputs import stage_dependencies


@dataclass(slots=True)
class Session:
    """What a coordinator works with."""

    lab: Lab
    writer: LedgerWriter
    store: ArtifactStore
    run_id: str
    values: Mapping[str, str]
    """Environment values from outside the experiment."""
    options: RunOptions
    new_limits: Mapping[str, float] = field(default_factory=dict)
    """What the run's budget is to be from here on, of the kinds that are to change."""

    def execute(self) -> RunOutcome:
        """Own the run, run what is left of it, and say how it stands."""
        folder = self.lab.run_folder(self.run_id)
        with ExitStack() as stack:
            lease = stack.enter_context(owned(self.writer, self.run_id, self.options))
            reader = stack.enter_context(LedgerReader.open(self.lab.ledger))
            stack.enter_context(on_signals(self.options.stop))
            run = self._with_budget(reader, lease)
            budget = Budget.of(run, reader, self.options.tell)
            self._prepare_folder(run)
            fence = partial(self.writer.while_owned, lease)
            mirrors = stack.enter_context(MirrorWriter(folder, fence))
            mirrors.mend(reader, self.run_id)
            trouble = self._run_the_rest(run, reader, mirrors, lease, budget)
            stop = self._why_stopped(trouble, budget)
            with self._excused(trouble):
                mirrors.sync()
            summary = build_summary(reader, self.run_id)
            run = reader.run(self.run_id)
            complete = run.next_schedule_idx == run.total_slots
            status = RunStatus.COMPLETED if complete else RunStatus.INTERRUPTED
            with self._excused(trouble):
                write_chain(reader, self.run_id, folder / chain_file.PATH, fence)
            with self._excused(trouble):
                write_summary(folder, summary, fence)
            with self._excused(trouble):
                self.writer.release_lease(lease, status, None if complete else stop)
            regrading = self._regrading(run, reader, complete)
        outcome = RunOutcome(
            run_id=self.run_id,
            folder=folder,
            complete=complete,
            summary=summary,
            stopped=self.options.stop.level > 0,
            # What comes up with the last slots, such as a budget that they use up, stops nothing.
            stop=None if complete else stop,
            regrading=regrading,
            budget=budget.limits,
            used_up=budget.used_up(),
        )
        self.options.tell(_ended(outcome))
        return outcome

    def _why_stopped(self, trouble: Stop | None, budget: Budget) -> Stop | None:
        """Why the run stopped, once every trial in flight has ended."""
        if self.options.stop.level > 0:
            return Stop(StopCause.INTERRUPT, self.options.stop.message)
        if trouble is not None and trouble.cause == StopCause.BUDGET:
            return Stop(StopCause.BUDGET, budget.message())
        return trouble

    def _with_budget(self, reader: LedgerReader, lease: Lease) -> RunInfo:
        """The run, once what is new of its budget is kept."""
        if self.new_limits:
            self.writer.set_budget(lease, self.new_limits)
        return reader.run(self.run_id)

    def _regrading(self, run: RunInfo, reader: LedgerReader, complete: bool) -> Regrading | None:
        """Of a regrading: what it changed, when it is complete."""
        if run.regrades is None:
            return None
        gradings = reader.gradings(run.run_id)
        generation = run.regrades["generation"]
        earlier = [g for g in gradings if g.complete and g.generation < generation][-1]
        found = flips(self.lab.ledger, earlier.run_id, run.run_id) if complete else ()
        return Regrading(gradings[0].root_id, generation, earlier.generation, found)

    @contextmanager
    def _excused(self, trouble: Stop | None) -> Iterator[None]:
        """Where the run has ended in trouble, such as a full disk, more of it is only told of."""
        try:
            yield
        except LabLedgerError as error:
            if trouble is None or isinstance(error, LeaseLost):
                raise
            self.options.tell(event("warning", message=error.message))

    def _prepare_folder(self, run: RunInfo) -> None:
        """Make what the run folder must hold; all of it comes from the ledger and the artifacts."""
        folder = self.lab.run_folder(run.run_id)
        make_run_folder(folder, run)
        stage_dependencies(run.resolved, self.store, folder / "deps")

    def _run_the_rest(
        self,
        run: RunInfo,
        reader: LedgerReader,
        mirrors: MirrorWriter,
        lease: Lease,
        budget: Budget,
    ) -> Stop | None:
        """Run every slot that is not committed. Returns what ended it early, if anything did."""
        folder = self.lab.run_folder(self.run_id)
        left = leftovers(reader, run)
        width = self.options.max_concurrency or run.resolved["design"]["max_concurrency"]
        counts = reader.counts(self.run_id)
        self.options.tell(_started(run, folder, left, width, budget, counts))
        engine_info = self._engine_info()
        room = self._room(engine_info)
        if run.next_schedule_idx > 0 or left:
            disks.check_disks(room.places)
            sweep(reader, run, folder, self.options.keep, self.options.tell)
            self.writer.delete_event_files(self.run_id, run.next_schedule_idx)
        if run.next_schedule_idx == run.total_slots:
            return None
        design = run.resolved["design"]
        holds = Holds(self.options.tell, self.options.patience_s, room.shortage)
        trials = LocalTrials(width)
        plans = self._plans(run, reader.ledger_id, engine_root(engine_info))
        coordinator = Coordinator(
            run=run,
            books=Bookkeeper(
                lease=lease,
                writer=self.writer,
                mirrors=mirrors,
                mend_mirrors=lambda: mirrors.mend(reader, run.run_id),
                pruning=self._pruning(run, reader),
                error_rate=self._error_rate(run),
                budget=budget,
                staged={idx: None for idx, known in left.items() if known.staged},
                disk=holds.disk,
                next_idx=run.next_schedule_idx,
                heartbeat=Heartbeat(self.writer, lease, trials, self.options.tell),
                tell=self.options.tell,
            ),
            queue=SlotQueue(reader, run, plans, left),
            trials=trials,
            retry=design["retry"],
            holds=holds,
            keep=self.options.keep,
            stop=self.options.stop,
            tell=self.options.tell,
        )
        coordinator.execute()
        with self._excused(coordinator.trouble):
            coordinator.books.catch_up()
        if coordinator.trouble is None:
            self.writer.delete_event_files(self.run_id, coordinator.books.next_idx)
            sweep(reader, reader.run(self.run_id), folder, self.options.keep, self.options.tell)
        return coordinator.trouble

    def _error_rate(self, run: RunInfo) -> ErrorRate:
        rate = ErrorRate(self.options.max_error_rate)
        return replace(rate, counted=OF_REGRADING) if run.regrades else rate

    @staticmethod
    def _pruning(run: RunInfo, reader: LedgerReader) -> Pruning:
        """Nothing is pruned of a regrading: its trials have run."""
        design = run.resolved["design"] | ({"prune": None} if run.regrades else {})
        return Pruning(design, reader.consecutive_failures(run.run_id))

    def _engine_info(self) -> JsonObject:
        """What the engine says of itself; nothing where it is gone."""
        try:
            return thread_engine().info()
        except EngineUnavailable:
            return {}

    def _room(self, engine_info: JsonObject) -> Room:
        """Where this run needs room."""
        room = Room.of(self.lab.root, engine_info, self.options.min_free_bytes)
        trials = {self.lab.run_folder(self.run_id): "the trials"}
        return replace(room, places={**room.places, **trials})

    def _plans(self, run: RunInfo, ledger_id: str, root: Path | None) -> dict[str, TrialPlan]:
        return {
            variant.variant_id: TrialPlan.of(
                run.resolved,
                variant.variant_id,
                ledger_id=ledger_id,
                run_dir=self.lab.run_folder(run.run_id),
                store_root=self.store.root,
                engine_root=root,
                images=run.images,
                environment=self.values,
            )
            for variant in run.variants
        }


def _started(
    run: RunInfo,
    folder: Path,
    left: Mapping[int, Leftover],
    width: int,
    budget: Budget,
    counts: Sequence[VariantCounts],
) -> JsonObject:
    return event(
        "run_started",
        run_id=run.run_id,
        folder=str(folder),
        total=run.total_slots,
        committed=run.next_schedule_idx,
        staged=sum(known.staged for known in left.values()),
        begun=sum(known.may_exist and not known.staged for known in left.values()),
        max_concurrency=width,
        budget=dict(budget.limits),
        spent={kind: spent.as_json() for kind, spent in budget.spent.items()},
        variants=[variant.variant_id for variant in run.variants],
        counts=[count.as_json() for count in counts],
    )


def _ended(outcome: RunOutcome) -> JsonObject:
    return event(
        "run_ended",
        run_id=outcome.run_id,
        complete=outcome.complete,
        stopped=outcome.stopped,
        trouble=outcome.trouble,
        stop=outcome.stop and outcome.stop.as_json(),
        unscored_variants=list(outcome.unscored_variants),
        exit_code=int(outcome.exit_code),
        summary=outcome.summary,
    )
