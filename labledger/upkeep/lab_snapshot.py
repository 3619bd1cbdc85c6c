"""Take a snapshot of a lab's ledger, with files that may be deleted.

Artifacts stay while the store is in use. But a coordinator deletes the events of a result once the
result is committed, and the folder of a trial once its result is durable. The snapshot therefore
keeps the needed parts of these files.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from labledger import clock
from labledger.errors import LedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import reading
from labledger.ledger.rows.ledger_identity import ledger_id
from labledger.records import JsonObject, canonical_json
from labledger.records.model_calls import JOURNAL, ModelCall, read_calls
from labledger.trial import attempt_notes
from labledger.trial.contract import trial_folder

_MOST_ATTEMPTS = 20
_UNKNOWN_MODEL = "unknown"

_RUNS_SQL = """
SELECT run.run_id, progress.next_schedule_idx, schedule.total_slots
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress AS progress ON progress.run_no = run.run_no
ORDER BY run.run_no"""
_OPEN_SQL = """
SELECT run.run_id, dispatch.schedule_idx, max(dispatch.attempt)
FROM dispatch
JOIN run ON run.run_no = dispatch.run_no
JOIN schedule_progress AS progress ON progress.run_no = dispatch.run_no
WHERE dispatch.schedule_idx >= progress.next_schedule_idx
GROUP BY dispatch.run_no, dispatch.schedule_idx
ORDER BY dispatch.run_no, dispatch.schedule_idx"""
_EVENTS_SQL = """
SELECT json_extract(payload, '$.events.file') FROM staged_result
WHERE json_type(payload, '$.events') = 'object'"""
_RESOLVED_SQL = "SELECT resolved FROM run WHERE run_id = ?"
_HAS_PARTS_SQL = "SELECT 1 FROM sqlite_schema WHERE name = 'run_part'"
_PARTS_SQL = """
SELECT run_part.resolved FROM run_part JOIN run ON run.run_no = run_part.run_no
WHERE run.run_id = ? AND run_part.resolved IS NOT NULL"""


@dataclass(slots=True)
class LabSnapshot:
    """The data read at the moment of the ledger's snapshot."""

    ledger_id: str = ""
    taken_at: str = ""
    runs: list[JsonObject] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """The files of events of staged results, by their path below `artifacts/staged`."""


def take_snapshot(
    lab: LabFolder, store: ArtifactStore, events: Path, open_attempts: Path, copy: Path
) -> LabSnapshot:
    """Copy the ledger as it is at one moment, with the files that it names and that may be deleted.

    A coordinator deletes the events of a result once it has committed the result. Events are
    therefore linked before and after the snapshot begins. If files are still missing, their results
    were staged and committed in between: then another snapshot is taken. Files that are missing in
    two snapshots were lost before, and are left out.
    """
    lost: set[str] = set()
    for _ in range(_MOST_ATTEMPTS):
        keep_events(store.staged_events, events)
        with reading(lab.ledger, "back the lab up") as connection:
            snapshot = _read_snapshot(connection)
            keep_events(store.staged_events, events)
            missing = {name for name in snapshot.events if not (events / flat_name(name)).exists()}
            if missing - lost:
                lost = missing
                continue
            snapshot.events = [name for name in snapshot.events if name not in missing]
            _write_open_attempts(lab, connection, open_attempts)
            migrations.copy_open_ledger(connection, copy)
            return snapshot
    raise LedgerError(
        f"the runs of {lab.root} save results faster than a snapshot of them can be taken; "
        "nothing was backed up",
        hint="try again, or pause the runs meanwhile: `labledger pause RUN`",
    )


def _read_snapshot(connection: Connection) -> LabSnapshot:
    """Begin the connection's snapshot, and return what it holds."""
    runs = connection.execute(_RUNS_SQL).all()
    return LabSnapshot(
        ledger_id=ledger_id(connection),
        taken_at=clock.utc_now(),
        runs=[
            {"run_id": run_id, "committed": committed, "total": total}
            for run_id, committed, total in runs
        ],
        events=sorted(connection.execute(_EVENTS_SQL).scalars()),
    )


def keep_events(staged: Path, events: Path) -> None:
    """Link or copy every file of staged events that was not kept before."""
    for path in staged.glob("*/*-*.jsonl"):
        target = events / flat_name(f"{path.parent.name}/{path.name}")
        if target.exists():
            continue
        # The result may have been committed since.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
            try:
                os.link(path, target, follow_symlinks=False)
            except OSError:
                # The target is on another disk, or on one without links.
                shutil.copyfile(path, target, follow_symlinks=False)


def flat_name(name: str) -> str:
    return name.replace("/", ",")


def _write_open_attempts(lab: LabFolder, connection: Connection, target: Path) -> None:
    """Write each open attempt's calls, and whether it has begun, as far as this machine knows.

    If an attempt is marked as not started now, it had not begun when the snapshot was taken.
    """
    with target.open("xb") as out:
        for run_id, idx, attempt in connection.execute(_OPEN_SQL):
            folder = trial_folder(lab.run_folder(run_id), idx, attempt)
            has_begun = not attempt_notes.is_marked_not_started(folder)
            try:
                known_words = _words_of_experiment(connection, run_id)
                calls = [_storable(call, known_words) for call in read_calls(folder / JOURNAL)]
            except (OSError, ValueError):
                calls = []
            key = {"run_id": run_id, "schedule_idx": idx, "attempt": attempt}
            document = {**key, "begun": has_begun, "calls": calls}
            out.write(canonical_json.dump_bytes(document) + b"\n")


def _words_of_experiment(connection: Connection, run_id: str) -> str:
    """Return every text of a run's experiment, as it is stored, and of the parts that extend it."""
    texts = list(connection.execute(_RESOLVED_SQL, (run_id,)).scalars())
    if connection.execute(_HAS_PARTS_SQL).first() is not None:
        texts += connection.execute(_PARTS_SQL, (run_id,)).scalars()
    return "\n".join(texts)


def _storable(call: ModelCall, known_words: str) -> JsonObject:
    """Return a call without texts that the agent or the provider chose.

    They may hold secrets, and only the run's coordinator can redact them. Names of models that the
    experiment contains stay, because costs depend on them.
    """
    is_known = canonical_json.dumps(call.model)[1:-1] in known_words
    return replace(
        call,
        model=call.model if is_known else _UNKNOWN_MODEL,
        model_served=call.model_served if is_known else None,
        detail=None,
        request_id=None,
        effort=None,
        service_tier=None,
    ).as_json()
