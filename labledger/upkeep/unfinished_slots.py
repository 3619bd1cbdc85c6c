"""Unfinished slots of earlier coordinators, and which attempts a cleanup may remove.

A slot is unfinished if it was dispatched and not committed. The session reads these slots before it
dispatches anything. A container or folder is removed only if the result of its attempt is durable:
committed or staged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.execution.executor import FolderRetention, RunRecords
from labledger.ledger.database.model import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import SlotStatus


@dataclass(frozen=True, slots=True)
class UnfinishedSlot:
    """What the ledger holds of a slot that was dispatched and not committed."""

    attempt: int
    """The attempt to continue with."""
    staged: bool
    """True if that attempt's result is staged and final."""
    container_may_exist: bool
    """True if that attempt was dispatched, so that its container may exist."""
    host: str = ""
    """The host that the attempt was dispatched to; empty if it was not dispatched."""


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
    """Return what a cleanup asks of the ledger, as it is now. `folder` is the run folder."""
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
    if records is None or records.objects("trials")[0]["attempt"] != attempt:
        return None, None
    return records.status, records.verdict


def is_durable(idx: int, attempt: int, run: RunInfo, staged: Mapping[int, StagedAttempt]) -> bool:
    """Return whether the result of an attempt is committed or staged.

    If it is, its container and its folder may be removed.
    """
    if idx < run.next_schedule_idx:
        return True
    return idx in staged and attempt <= staged[idx].attempt
