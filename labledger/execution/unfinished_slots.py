"""Slots that an earlier coordinator dispatched and that are not committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.execution.executor import RunRecords
from labledger.execution.folder_retention import FolderRetention
from labledger.ledger.database.run_info import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import SlotStatus


@dataclass(frozen=True, slots=True)
class UnfinishedSlot:
    """A slot that was dispatched and is not committed, as the ledger knows it."""

    attempt: int
    """The attempt to continue with."""
    staged: bool
    """True if that attempt's result is staged and final."""
    container_may_exist: bool
    """True if that attempt was dispatched, so that its container may exist."""
    host: str = ""
    """The host that the attempt was dispatched to; empty if it was not dispatched."""

    @property
    def may_run(self) -> bool:
        """Whether the container of the attempt may be running, or may have ended unnoticed."""
        return self.container_may_exist and not self.staged


def find_unfinished_slots(reader: LedgerReader, run: RunInfo) -> dict[int, UnfinishedSlot]:
    """Return the unfinished slots of a run by `schedule_idx`."""
    start = run.next_schedule_idx
    unfinished = {
        idx: UnfinishedSlot(
            dispatch.attempt, staged=False, container_may_exist=True, host=dispatch.host
        )
        for idx, dispatch in reader.last_dispatches(run.run_id, start).items()
    }
    for idx, staged in reader.staged(run.run_id).items():
        if staged.final:
            unfinished[idx] = UnfinishedSlot(staged.attempt, staged=True, container_may_exist=True)
        elif idx not in unfinished or unfinished[idx].attempt <= staged.attempt:
            unfinished[idx] = UnfinishedSlot(
                staged.attempt + 1, staged=False, container_may_exist=False
            )
    return unfinished


def run_records(
    reader: LedgerReader, run: RunInfo, folder: Path, keep: FolderRetention
) -> RunRecords:
    """Return the facts that a cleanup needs from the ledger. `folder` is the run folder."""
    staged = reader.staged(run.run_id)
    return RunRecords(
        ledger_id=reader.ledger_id,
        run_id=run.run_id,
        run_dir=folder,
        is_durable=lambda idx, attempt: is_durable(idx, attempt, run, staged),
        keeps_folder=lambda idx, attempt: keep.applies_to(
            *_committed_outcome(reader, run.run_id, idx, attempt)
        ),
    )


def _committed_outcome(
    reader: LedgerReader, run_id: str, idx: int, attempt: int
) -> tuple[SlotStatus | None, str | None]:
    """Return status and verdict of an attempt, both None if this attempt was not committed."""
    records = next(reader.slot_records(run_id, idx, idx + 1), None)
    trials = [] if records is None else records.objects("trials")
    # A cancelled slot may have been dispatched, and has no trial.
    if records is None or all(trial["attempt"] != attempt for trial in trials):
        return None, None
    return records.status, records.verdict


def is_durable(idx: int, attempt: int, run: RunInfo, staged: Mapping[int, StagedAttempt]) -> bool:
    """Return whether the result of an attempt is committed or staged.

    If so, its container and its folder may be removed.
    """
    if idx < run.next_schedule_idx:
        return True
    return idx in staged and attempt <= staged[idx].attempt
