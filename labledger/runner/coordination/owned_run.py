"""A run that this coordinator owns, as the ledger has it at the beginning of the session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.execution.unfinished_slots import UnfinishedSlot
from labledger.experiment.plan import ExperimentPlan
from labledger.ledger.database.run_info import Lease, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.runner.run_context import RunContext
from labledger.trial.life.program_watch import ProgramWatch


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """A run, its experiment and its lease, with what its slots are executed with."""

    context: RunContext
    writer: LedgerWriter
    reader: LedgerReader
    lease: Lease
    run: RunInfo
    experiment: ExperimentPlan
    unfinished: Mapping[int, UnfinishedSlot]
    """The slots that earlier sessions began and did not commit."""
    programs: ProgramWatch
    """Watches the files that the trials on this machine share."""

    @property
    def folder(self) -> Path:
        return self.context.lab.run_folder(self.run.run_id)

    @property
    def has_slots(self) -> bool:
        """Whether any slot is not committed. If all are, nothing runs and no key is read."""
        return self.run.next_schedule_idx < self.run.total_slots
