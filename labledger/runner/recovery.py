"""What earlier coordinators of a run left behind: work to go on with, and work to clear away."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.ledger.model import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.records import SlotStatus
from labledger.runner.events import Listener, event
from labledger.runner.keeping import Keep, put_away
from labledger.trial import traces
from labledger.trial.container import thread_engine
from labledger.trial.contract import Labels
from labledger.trial.identity import attempt_of
from labledger.trial.inputs import INCOMING


@dataclass(frozen=True, slots=True)
class Leftover:
    """What the ledger knows of a slot that was begun and not committed."""

    attempt: int
    """The attempt to go on with."""
    staged: bool
    """True when that attempt's result is staged and final."""
    may_exist: bool
    """True when that attempt was dispatched, so that its container may exist."""


def leftovers(reader: LedgerReader, run: RunInfo) -> dict[int, Leftover]:
    """What earlier coordinators left, by `schedule_idx`: one entry for each slot once begun."""
    start = run.next_schedule_idx
    found = {
        idx: Leftover(dispatch.attempt, staged=False, may_exist=True)
        for idx, dispatch in reader.last_dispatches(run.run_id, start).items()
    }
    for idx, staged in reader.staged(run.run_id).items():
        if staged.final:
            found[idx] = Leftover(staged.attempt, staged=True, may_exist=True)
        elif idx not in found or found[idx].attempt <= staged.attempt:
            found[idx] = Leftover(staged.attempt + 1, staged=False, may_exist=False)
    return found


def sweep(reader: LedgerReader, run: RunInfo, folder: Path, keep: Keep, tell: Listener) -> None:
    """Remove containers, trial folders and traces of this run whose results are durable.

    Touches only containers that carry this ledger's label and this run's. What cannot be removed
    is told of and left for the next sweep.
    """
    staged = reader.staged(run.run_id)
    try:
        engine = thread_engine()
        labels = {Labels.LEDGER: reader.ledger_id, Labels.RUN: run.run_id}
        for container in engine.containers_with_labels(labels):
            labelled = attempt_of(container.labels)
            if labelled is not None and is_durable(*labelled, run, staged):
                engine.remove(container.container_id)
    except LabLedgerError as error:
        tell(event("warning", message=f"old containers stay for now: {error.message}"))
    shutil.rmtree(folder / INCOMING, ignore_errors=True)
    for trial in sorted((folder / "trials").glob("*-*")):
        idx, _, attempt = trial.name.partition("-")
        if not is_durable(int(idx), int(attempt), run, staged):
            continue
        if keep.holds(*_ending(reader, run.run_id, int(idx), int(attempt))):
            put_away(trial)
        else:
            shutil.rmtree(trial, ignore_errors=True)
    for trial in traces.attempts(folder):
        idx, _, attempt = trial.name.partition("-")
        if is_durable(int(idx), int(attempt), run, staged):
            traces.remove_notes(trial)


def _ending(
    reader: LedgerReader, run_id: str, idx: int, attempt: int
) -> tuple[SlotStatus | None, str | None]:
    """Status and verdict of an attempt that was committed; None where it was not, or not it."""
    records = next(reader.slot_records(run_id, idx, idx + 1), None)
    if records is None or records.objects("trials")[0]["attempt"] != attempt:
        return None, None
    return records.status, records.verdict


def is_durable(idx: int, attempt: int, run: RunInfo, staged: Mapping[int, StagedAttempt]) -> bool:
    """True when the result of an attempt is committed or staged, so that its container can go."""
    if idx < run.next_schedule_idx:
        return True
    return idx in staged and attempt <= staged[idx].attempt
