"""Finding every committed row that was changed, removed or inserted after its commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labledger import canonical
from labledger.ledger import chain, copies, frozen, gradings, migrate, objects, statements, stream
from labledger.ledger.connection import Connection
from labledger.ledger.engine import readonly_engine, translated
from labledger.ledger.lookup import run_number
from labledger.ledger.stream import Commit
from labledger.records import RunStatus, SlotRecords, slot_commit_id
from labledger.store import ArtifactStore

_REFERENCE = re.compile(r"artifact://sha256/([0-9a-f]{64})")
_VARIANTS_SQL = (
    "SELECT variant_id, role, bindings FROM run_variant WHERE run_no = ? ORDER BY variant_idx"
)
_TASKS_SQL = (
    "SELECT run_task.task_id, run_task.digest, run_task.payload_digest, task_payload.body "
    "FROM run_task JOIN task_payload ON task_payload.payload_digest = run_task.payload_digest "
    "WHERE run_task.run_no = ? ORDER BY run_task.task_idx"
)
_SLOTS_SQL = (
    "SELECT variant_idx, task_idx, repl_idx FROM slot WHERE run_no = ? ORDER BY schedule_idx"
)
_SCHEDULE_SQL = "SELECT total_slots, genesis_digest FROM schedule WHERE run_no = ?"
_PROGRESS_SQL = (
    "SELECT schedule_progress.next_schedule_idx, schedule_progress.status, schedule.total_slots "
    "FROM schedule_progress JOIN schedule ON schedule.run_no = schedule_progress.run_no "
    "WHERE schedule_progress.run_no = ?"
)
_LEFT_STAGED_SQL = (
    "SELECT DISTINCT staged_result.schedule_idx FROM staged_result JOIN slot_commit "
    "ON slot_commit.run_no = staged_result.run_no "
    "AND slot_commit.schedule_idx = staged_result.schedule_idx WHERE staged_result.run_no = ?"
)
_RUNS_SQL = "SELECT run_no, run_id FROM run"
_ARTIFACT_SQL = "SELECT content, size FROM artifact WHERE sha256 = ?"


_Message = tuple[int | None, str]
"""The slot, where it is about one, and what was found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the ledger that is not as it was committed."""

    run_id: str | None
    """None where it concerns the file as a whole."""
    schedule_idx: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    runs: int
    slots: int
    """Commits whose digests were recomputed."""
    artifacts: int
    """Artifacts of evidence whose content was read."""
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings


def verify(
    path: Path, run_id: str | None = None, store: ArtifactStore | None = None
) -> Verification:
    """Check one run, or all runs and all artifacts, against their digests.

    So too the files and workspaces that a run was started with.

    Reads one state of the ledger in flat memory. What cannot be seen: the loss of a run's newest
    commits together with its progress, as an older copy of the ledger would show; the mirrors and
    the summary's `chain_head` tell. Raises `RunNotFound` and what `migrate.check_current` raises.
    """
    engine = readonly_engine(path)
    try:
        with translated("verify the ledger", path), engine.connect() as connection:
            migrate.check_revision(connection, path)
            store = store or ArtifactStore(path.parent / "artifacts")
            chosen = None if run_id is None else [run_id]
            found = verify_snapshot(connection, store, chosen)
            unfit = tuple(
                Finding(name, None, message)
                for run_no, name in _runs(connection, chosen)
                for message in frozen.problems(connection, store, run_no)
            )
            lost = tuple(
                Finding(name, None, f"it regrades {root_id}, which the ledger does not hold")
                for name, root_id in gradings.without_root(connection)
                if run_id in (None, name)
            )
            return replace(found, findings=found.findings + unfit + lost)
    finally:
        engine.dispose()


Check = Callable[[str, Commit], Iterable[str]]
"""What else to find in a run's commit, as sentences."""


def verify_snapshot(
    connection: Connection,
    store: ArtifactStore | None,
    run_ids: Sequence[str] | None,
    also: Check = lambda _run_id, _commit: (),
) -> Verification:
    """`verify` of some runs, or all, on a connection that keeps to one state of the ledger.

    Without a store no artifact is looked at. A regrading may lack its root.
    """
    return _Checker(connection, store, also).check(run_ids)


def _runs(connection: Connection, run_ids: Sequence[str] | None) -> list[tuple[int, str]]:
    """Number and id of these runs, or of all."""
    if run_ids is None:
        return [(row[0], row[1]) for row in connection.exec_driver_sql(_RUNS_SQL)]
    return [(run_number(connection, run_id), run_id) for run_id in run_ids]


class _Checker:
    """One pass over a snapshot of the ledger."""

    def __init__(self, connection: Connection, store: ArtifactStore | None, also: Check) -> None:
        self._connection = connection
        self._store = store
        self._also = also
        self._slots = 0
        self._artifacts = 0

    def check(self, run_ids: Sequence[str] | None) -> Verification:
        runs = _runs(self._connection, run_ids)
        findings = list(self._file())
        for run_no, name in runs:
            findings += [Finding(name, idx, message) for idx, message in self._run(run_no, name)]
        return Verification(len(runs), self._slots, self._artifacts, tuple(findings))

    def _file(self) -> Iterator[Finding]:
        """The file as a whole: its pages, its foreign keys, its triggers and views."""
        for (message,) in self._rows("PRAGMA integrity_check"):
            if message != "ok":
                yield Finding(None, None, f"SQLite's integrity check: {message}")
        for table, _, parent, _ in self._rows("PRAGMA foreign_key_check"):
            yield Finding(None, None, f"a row of {table} has lost its row of {parent}")
        names = {row[0] for row in self._rows("SELECT name FROM sqlite_schema")}
        for name in [*objects.TRIGGERS, *objects.VIEWS]:
            if name not in names:
                yield Finding(None, None, f"{name} is missing from the ledger's schema")

    def _run(self, run_no: int, run_id: str) -> Iterator[_Message]:
        yield from self._genesis(run_no)
        yield from self._commits(run_no, run_id)
        yield from copies.problems(self._connection, run_no)
        yield from ((None, problem) for problem in gradings.problems(self._connection, run_no))

    def _genesis(self, run_no: int) -> Iterator[_Message]:
        """The run's row, variants, tasks with their payloads, and slots."""
        found = self._connection.exec_driver_sql(
            f"SELECT {', '.join(statements.RUN_COLUMNS)} FROM run WHERE run_no = ?",  # noqa: S608
            (run_no,),
        ).one()
        genesis = chain.Genesis(dict(zip(statements.RUN_COLUMNS, found, strict=True)))
        for row in self._rows(_VARIANTS_SQL, run_no):
            genesis.variant(*row)
        for task_id, digest, payload_digest, body in self._rows(_TASKS_SQL, run_no):
            genesis.task(task_id, digest, payload_digest)
            if canonical.sha256_hex(body.encode()) != payload_digest:
                yield None, f"the payload of task {task_id} was changed"
        total = 0
        for row in self._rows(_SLOTS_SQL, run_no):
            genesis.slot(*row)
            total += 1
        expected = self._rows(_SCHEDULE_SQL, run_no)
        if [(total, genesis.hexdigest())] != [tuple(row) for row in expected]:
            yield None, "the run's row, variants, tasks or slots were changed"

    def _commits(self, run_no: int, run_id: str) -> Iterator[_Message]:
        """Every commit against its digests and the chain, and the progress against them all."""
        head = self._connection.exec_driver_sql(
            "SELECT genesis_digest FROM schedule WHERE run_no = ?", (run_no,)
        ).scalar()
        next_idx = 0
        for commit in stream.commits(self._connection, run_id, run_no, 0, None):
            idx = commit.records.schedule_idx
            self._slots += 1
            if idx != next_idx:
                yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
            for message in self._commit(run_id, commit, head if idx == next_idx else None):
                yield idx, message
            for message in (*self._references(commit.records), *self._also(run_id, commit)):
                yield idx, message
            head, next_idx = commit.chain_digest, idx + 1
        yield from self._progress(run_no, next_idx)

    @staticmethod
    def _commit(run_id: str, commit: stream.Commit, head: str | None) -> Iterator[str]:
        """One commit; `head` is the chain before it, None where that is not known."""
        records = commit.records
        if commit.slot_commit_id != slot_commit_id(run_id, records.schedule_idx):
            yield "the commit's id was changed"
        if chain.payload_digest(records) != commit.payload_digest:
            yield "the records are not those that were committed"
        if commit.has_trial != bool(records.trials):
            yield "a trial row was inserted"
        link = chain.chain_digest(
            head or "",
            commit.slot_commit_id,
            commit.epoch,
            commit.committed_at,
            commit.payload_digest,
        )
        if head is not None and link != commit.chain_digest:
            yield "the commit does not follow from the one before it"

    def _progress(self, run_no: int, committed: int) -> Iterator[_Message]:
        next_idx, status, total = self._connection.exec_driver_sql(_PROGRESS_SQL, (run_no,)).one()
        if next_idx != committed:
            yield None, f"the progress says {next_idx} slots are committed; {committed} are"
        if status == RunStatus.COMPLETED.value and committed != total:
            yield None, f"the run is said to be completed; {committed} of {total} slots are"
        for (idx,) in self._rows(_LEFT_STAGED_SQL, run_no):
            yield idx, "a staged result was left behind by the commit"

    def _references(self, records: SlotRecords) -> Iterator[str]:
        """The artifacts that a slot's evidence refers to."""
        if self._store is None:
            return
        referred = {sha for line in records.evidence for sha in _REFERENCE.findall(line)}
        for sha256 in sorted(referred):
            self._artifacts += 1
            problem = self._artifact(self._store, sha256)
            if problem is not None:
                yield f"artifact {sha256} {problem}"

    def _artifact(self, store: ArtifactStore, sha256: str) -> str | None:
        row = self._connection.exec_driver_sql(_ARTIFACT_SQL, (bytes.fromhex(sha256),)).first()
        if row is None:
            return "is missing from the ledger"
        content, size = row
        if content is not None:
            return None if canonical.sha256_hex(content) == sha256 else "was changed"
        return store.problem(sha256, size)

    def _rows(self, sql: str, *params: Any) -> Iterator[Any]:
        return iter(self._connection.exec_driver_sql(sql, params))
