"""One coordinator's time with a run: from taking its lease to giving it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labledger.export.mirrors import MirrorWriter
from labledger.export.summary import build_summary, write_summary
from labledger.ledger.model import Lease, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records import JsonObject, RunStatus
from labledger.runner.coordinator import Coordinator
from labledger.runner.events import event
from labledger.runner.executors import LocalTrials
from labledger.runner.lab import Lab
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.outage import Outage
from labledger.runner.ownership import owned
from labledger.runner.pruning import Pruning
from labledger.runner.recovery import Leftover, leftovers, sweep
from labledger.runner.slots import SlotQueue
from labledger.runner.stopping import on_signals
from labledger.store import ArtifactStore, write_atomically
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

    def execute(self) -> RunOutcome:
        """Own the run, run what is left of it, and say how it stands."""
        folder = self.lab.run_folder(self.run_id)
        with ExitStack() as stack:
            lease = stack.enter_context(owned(self.writer, self.run_id, self.options))
            reader = stack.enter_context(LedgerReader.open(self.lab.ledger))
            stack.enter_context(on_signals(self.options.stop))
            run = reader.run(self.run_id)
            self._prepare_folder(run)
            fence = partial(self.writer.while_owned, lease)
            mirrors = stack.enter_context(MirrorWriter(folder, fence))
            mirrors.mend(reader, self.run_id)
            trouble = self._run_the_rest(run, reader, mirrors, lease)
            summary = build_summary(reader, self.run_id)
            write_summary(folder, summary, fence)
            run = reader.run(self.run_id)
            complete = run.next_schedule_idx == run.total_slots
            status = RunStatus.COMPLETED if complete else RunStatus.INTERRUPTED
            self.writer.release_lease(lease, status)
        stopped = self.options.stop.level > 0
        outcome = RunOutcome(self.run_id, folder, complete, summary, stopped, trouble)
        self.options.tell(_ended(outcome))
        return outcome

    def _prepare_folder(self, run: RunInfo) -> None:
        """Make what the run folder must hold; all of it comes from the ledger and the artifacts."""
        folder = self.lab.run_folder(run.run_id)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        copies = {"experiment.yaml": run.authored.encode(), "resolved.json": _pretty(run.resolved)}
        for name, content in copies.items():
            if not (folder / name).exists():
                write_atomically(folder / name, content)
        stage_dependencies(run.resolved, self.store, folder / "deps")

    def _run_the_rest(
        self, run: RunInfo, reader: LedgerReader, mirrors: MirrorWriter, lease: Lease
    ) -> str | None:
        """Run every slot that is not committed. Returns what ended it early, if anything did."""
        folder = self.lab.run_folder(self.run_id)
        left = leftovers(reader, run)
        width = self.options.max_concurrency or run.resolved["design"]["max_concurrency"]
        self.options.tell(_started(run, folder, left, width))
        if run.next_schedule_idx > 0 or left:
            sweep(reader, run, folder, self.options.tell)
        if run.next_schedule_idx == run.total_slots:
            return None
        design = run.resolved["design"]
        coordinator = Coordinator(
            run=run,
            lease=lease,
            writer=self.writer,
            mirrors=mirrors,
            queue=SlotQueue(reader, run, self._plans(run, reader.ledger_id), left),
            trials=LocalTrials(width),
            pruning=Pruning(design, reader.consecutive_failures(run.run_id)),
            retry=design["retry"],
            staged={idx: known.attempt for idx, known in left.items() if known.staged},
            outage=Outage(self.options.tell, self.options.engine_patience_s),
            stop=self.options.stop,
            tell=self.options.tell,
        )
        coordinator.execute()
        if coordinator.trouble is None:
            sweep(reader, reader.run(self.run_id), folder, self.options.tell)
        return coordinator.trouble

    def _plans(self, run: RunInfo, ledger_id: str) -> dict[str, TrialPlan]:
        return {
            variant.variant_id: TrialPlan.of(
                run.resolved,
                variant.variant_id,
                ledger_id=ledger_id,
                run_dir=self.lab.run_folder(run.run_id),
                store_root=self.store.root,
                images=run.images,
                environment=self.values,
            )
            for variant in run.variants
        }


def _pretty(document: JsonObject) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _started(run: RunInfo, folder: Path, left: Mapping[int, Leftover], width: int) -> JsonObject:
    return event(
        "run_started",
        run_id=run.run_id,
        folder=str(folder),
        total=run.total_slots,
        committed=run.next_schedule_idx,
        staged=sum(known.staged for known in left.values()),
        begun=sum(known.may_exist and not known.staged for known in left.values()),
        max_concurrency=width,
        variants=[variant.variant_id for variant in run.variants],
    )


def _ended(outcome: RunOutcome) -> JsonObject:
    return event(
        "run_ended",
        run_id=outcome.run_id,
        complete=outcome.complete,
        stopped=outcome.stopped,
        trouble=outcome.trouble,
        exit_code=int(outcome.exit_code),
        summary=outcome.summary,
    )
