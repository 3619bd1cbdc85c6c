"""Unfinished slots of earlier coordinators, and the cleanup of what finished attempts left.

A slot is unfinished if it was dispatched and not committed. The session reads these slots before
it dispatches anything. A container or folder is removed only if the result of its attempt is
durable: committed or staged. Used by the session and by `labledger clean`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.docker.engine import Engine
from labledger.docker.networks import Networks
from labledger.errors import LabLedgerError
from labledger.ledger.database.model import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import SlotStatus
from labledger.run_control.events import Listener, run_event
from labledger.run_control.trial_folder_retention import FolderRetention, move_to_kept
from labledger.trial import attempt_notes
from labledger.trial.contract import Labels
from labledger.trial.life.container_identity import attempt_of
from labledger.trial.life.input_files.inputs import INCOMING


@dataclass(frozen=True, slots=True)
class UnfinishedSlot:
    """What the ledger holds of a slot that was dispatched and not committed."""

    attempt: int
    """The attempt to continue with."""
    staged: bool
    """True if that attempt's result is staged and final."""
    container_may_exist: bool
    """True if that attempt was dispatched, so that its container may exist."""


def find_unfinished_slots(reader: LedgerReader, run: RunInfo) -> dict[int, UnfinishedSlot]:
    """Return the unfinished slots of a run by `schedule_idx`."""
    start = run.next_schedule_idx
    unfinished = {
        idx: UnfinishedSlot(dispatch.attempt, staged=False, container_may_exist=True)
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


def clean_up_run(
    engine: Engine,
    reader: LedgerReader,
    run: RunInfo,
    folder: Path,
    keep: FolderRetention,
    emit: Listener,
) -> None:
    """Remove containers, networks, folders and notes of attempts whose results are durable.

    `folder` is the run folder. Only containers and networks with the labels of this ledger and this
    run are removed. What cannot be removed is reported as a warning and left for the next cleanup.
    """
    staged = reader.staged(run.run_id)
    try:
        labels = {Labels.LEDGER: reader.ledger_id, Labels.RUN: run.run_id}
        for container in engine.containers_with_labels(labels):
            slot_and_attempt = attempt_of(container.labels)
            if slot_and_attempt is not None and is_durable(*slot_and_attempt, run, staged):
                engine.remove(container.container_id)
        networks = Networks(engine)
        for network in networks.with_labels(labels):
            slot_and_attempt = attempt_of(network.labels)
            if slot_and_attempt is not None and is_durable(*slot_and_attempt, run, staged):
                networks.remove(network.network_id)
    except LabLedgerError as error:
        emit(run_event("warning", message=f"could not remove old containers: {error.message}"))
    shutil.rmtree(folder / INCOMING, ignore_errors=True)
    for trial_folder in sorted((folder / "trials").glob("*-*")):
        idx, _, attempt = trial_folder.name.partition("-")
        if not is_durable(int(idx), int(attempt), run, staged):
            continue
        if keep.applies_to(*_committed_outcome(reader, run.run_id, int(idx), int(attempt))):
            move_to_kept(trial_folder)
        else:
            shutil.rmtree(trial_folder, ignore_errors=True)
    for trial_folder in attempt_notes.folders_with_notes(folder):
        idx, _, attempt = trial_folder.name.partition("-")
        if is_durable(int(idx), int(attempt), run, staged):
            attempt_notes.remove_notes(trial_folder)


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
