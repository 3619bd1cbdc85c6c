"""Open another ledger as the source of an import, and check its content.

A source is untrusted. It is opened read-only, links and special files are refused, and its tables
must be labledger's. Anyone can compute digests, so rows are also checked against schemas, canonical
JSON and their slot. An older ledger is upgraded in a copy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger import clock
from labledger.errors import (
    LeaseHeld,
    LedgerError,
    LedgerMissing,
    MalformedJson,
    NotALedger,
    SchemaInvalid,
)
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.checking.run_checks import definitions, expected_definitions
from labledger.ledger.checking.slot_checks import UNREADABLE
from labledger.ledger.checking.verify import VerificationResult, verify_snapshot
from labledger.ledger.database import migrations, statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.run_info import Owner
from labledger.ledger.database.sqlite import readonly_engine, translated
from labledger.ledger.reading import stored_runs
from labledger.ledger.reading.committed_rows import Commit
from labledger.ledger.reading.stored_runs import StoredRegrades
from labledger.ledger.rows import leases
from labledger.ledger.rows.lookup import run_number
from labledger.ledger.rows.model_usage import call_of_record
from labledger.ledger.rows.run_rows import read_total_slots
from labledger.records import JsonObject, canonical_json, json_schemas
from labledger.records.attempt_result import MAX_RECORD_DEPTH
from labledger.records.identity import RUN_ID
from labledger.records.model_calls import Api

SCHEMAS = {
    "predictions": "benchmark_prediction_record_v1",
    "scores": "benchmark_score_record_v1",
    "evidence": "evidence_record_v1",
}
"""Schemas of the record kinds that are stored as text; the others are stored in columns."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN_SQL = "SELECT resolved, images FROM run WHERE run_no = ?"
_PARTS_SQL = "SELECT resolved, images, selection FROM run_part WHERE run_no = ?"
_BINDINGS_SQL = "SELECT bindings FROM run_variant WHERE run_no = ?"
_PAYLOADS_SQL = statements.expand(
    "SELECT task_payload.body FROM run_task {task_payload} WHERE run_task.run_no = ?"
)


def check_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Raise `LedgerError` if a run id is not a safe folder name, or a text is not JSON."""
    for run_id in run_ids:
        if not RUN_ID.fullmatch(run_id):
            raise LedgerError(
                f"the source holds a run {run_id[:120]!r}, which is not a valid run id"
            )
        run_no = run_number(connection, run_id)
        texts = list(connection.execute(_RUN_SQL, (run_no,)).one())
        for sql in (_BINDINGS_SQL, _PAYLOADS_SQL):
            texts += connection.execute(sql, (run_no,)).scalars()
        for row in connection.execute(_PARTS_SQL, (run_no,)):
            texts += [text for text in row if text is not None]
        for text in texts:
            problem = _canonical_problem(text)
            if problem is not None:
                raise LedgerError(f"run {run_id} of the source has a text that {problem}")
        _check_regrades(run_id, json.loads(texts[0]).get("regrades"))


def _check_regrades(run_id: str, regrades: Any) -> None:
    """Raise `LedgerError` if `regrades` is not what labledger writes for a regrading."""
    if regrades is None:
        return
    match regrades:
        case {"run_id": str(root), "generation": int(generation), "grader_digest": str(digest),
              "head": str(head)} if len(regrades) == 4:  # fmt: skip
            matches_run_id = run_id == f"{root}.g{generation}" and generation > 1
            if matches_run_id and _DIGEST.fullmatch(digest) and _DIGEST.fullmatch(head):
                return
    raise LedgerError(
        f"run {run_id} of the source does not describe the run that it regrades as labledger does"
    )


def find_problems(run_id: str, commit: Commit) -> Iterator[str]:
    """Yield the problems of a commit's records, whose digests may be correct."""
    records = commit.records
    for kind, schema in SCHEMAS.items():
        for line in records.lines(kind):
            problem = _canonical_problem(line)
            if problem is None:
                problem = _record_problem(json.loads(line), schema, run_id, commit)
            if problem is not None:
                yield f"a record of {kind} {problem}"
    for line in records.events:
        problem = _canonical_problem(line)
        if problem is not None:
            yield f"an event {problem}"
    for line in records.model_calls:
        problem = _canonical_problem(line) or _call_problem(json.loads(line))
        if problem is not None:
            yield f"a call to a model {problem}"


def _call_problem(record: JsonObject) -> str | None:
    """Return the problem with the texts of a call, because their columns accept any text."""
    try:
        call_of_record(record)
        Api(record["api"])
    except (TypeError, ValueError, AttributeError) as error:
        return f"is not as labledger writes it: {error}"
    is_object = record["raw_usage"] is None or isinstance(record["raw_usage"], dict)
    return None if is_object else "has a usage that is not a JSON object"


def _canonical_problem(text: str) -> str | None:
    try:
        value = canonical_json.loads(text.encode(), max_depth=MAX_RECORD_DEPTH)
    except (MalformedJson, UnicodeEncodeError) as error:
        return str(error)
    if not isinstance(value, dict):
        return "is not a JSON object"
    return None if canonical_json.dumps(value) == text else "is not in its canonical form"


def _record_problem(record: JsonObject, schema: str, run_id: str, commit: Commit) -> str | None:
    try:
        json_schemas.require_valid(record, schema)
    except SchemaInvalid as error:
        return f"does not fit {schema}: {error}"
    record_slot: tuple[Any, ...] = (
        record["ids"]["run_id"],
        record["ids"]["variant_id"],
        record["schedule_idx"],
        record["slot_commit_id"],
    )
    records = commit.records
    if record_slot != (run_id, records.variant_id, records.schedule_idx, commit.slot_commit_id):
        return "is about another slot"
    return None


_HEAD_SQL = statements.expand("""
SELECT (SELECT count(*) FROM slot_commit WHERE slot_commit.run_no = schedule.run_no),
  {chain_head}
FROM schedule WHERE schedule.run_no = ?""")


class SourceStore(ArtifactStore):
    """The artifact store of a source: only regular files in its folder, no links."""

    def path(self, sha256: str) -> Path:
        """Return the path of an artifact. Raises `OSError` unless it is a regular file inside."""
        path = super().path(sha256)
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) or not path.resolve().is_relative_to(self.root.resolve()):
            raise PermissionError(1, "it is not a regular file of the source")
        return path

    def contains(self, sha256: str) -> bool:
        try:
            return self.path(sha256).is_file()
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A snapshot of another ledger, or of one that was rebuilt from mirrors."""

    path: Path
    """The path of the ledger file, as the user gave it."""
    connection: Connection
    store: ArtifactStore
    has_artifacts: bool = True
    """False if it was rebuilt from mirrors; missing artifacts are then not findings."""

    def run_ids(self) -> list[str]:
        """Return the ids of its runs, the oldest first."""
        rows = self.connection.execute("SELECT run_id FROM run ORDER BY run_no")
        return list(rows.scalars())

    def regrades(self, run_id: str) -> StoredRegrades | None:
        """Return which run a regrading grades again; None for a run whose agents ran."""
        return stored_runs.read_regrades(self.connection, run_number(self.connection, run_id))

    def slots(self, run_id: str) -> int:
        """Return the number of slots of a run's schedule."""
        return read_total_slots(self.connection, run_number(self.connection, run_id))

    def chain_head(self, run_id: str) -> tuple[int, str]:
        """Return how many slots of a run are committed, and the last digest of its chain.

        A run without a schedule, which labledger does not write, has no digest.
        """
        run_no = run_number(self.connection, run_id)
        committed, head = self.connection.execute(_HEAD_SQL, (run_no,)).first() or (0, "")
        return int(committed), str(head)

    def with_regradings(self, run_id: str) -> list[str]:
        """Return the run and its regradings, the oldest first. Raises `InvalidInput` for one."""
        return stored_runs.with_regradings(self.connection, run_id)

    def refuse_live(self, run_ids: Sequence[str], is_dead: Callable[[Owner], bool]) -> None:
        """Raise `LeaseHeld` if a coordinator is writing one of these runs."""
        now = clock.utc_now()
        for run_id in run_ids:
            run_no = run_number(self.connection, run_id)
            lease = leases.live_lease(self.connection, run_no, now, is_dead)
            if lease is not None:
                raise LeaseHeld(
                    f"run {run_id} of {self.path} is being written by process {lease.owner.pid} on "
                    f"{lease.owner.machine}; its lease lasts until {lease.expires_at}",
                    hint="import it when it has stopped; `run_ids=` selects other runs",
                )

    def verify(self, run_ids: Sequence[str]) -> VerificationResult:
        """Verify some runs: digests, and whether labledger could have written their rows."""
        store = self.store if self.has_artifacts else None
        try:
            with translated("verify the source", self.path, verify_hint(self.path)):
                check_runs(self.connection, run_ids)
                return verify_snapshot(self.connection, store, run_ids, find_problems)
        except UNREADABLE as error:
            raise LedgerError(
                f"{self.path} holds rows that labledger does not write: {error}"
            ) from error


@contextmanager
def open_source_ledger(path: Path, store: Path, scratch: Path) -> Iterator[ImportSource]:
    """Open the ledger at `path`; one of an older revision is upgraded in a copy in `scratch`.

    Raises `LedgerMissing`, `LedgerTooNew`, and `LedgerError` for a file that is not a ledger.
    """
    refuse_irregular(path)
    revision = _revision(path)
    readable_path = path
    if revision in migrations.REVISIONS and revision != migrations.HEAD:
        readable_path = migrations.backup(path, scratch / "upgraded.sqlite")
        migrations.upgrade(readable_path)
    engine = readonly_engine(readable_path)
    try:
        with (
            translated("open the source", path, verify_hint(path)),
            engine.connect() as connection,
        ):
            migrations.require_current_connection(connection, path)
            require_same_tables(connection, path)
            yield ImportSource(path, connection, SourceStore(store))
    finally:
        engine.dispose()


def verify_hint(source: Path) -> str:
    """Return a hint about a damaged source, which may be a ledger or another path."""
    if source.name == "ledger.sqlite":
        lab = shlex.quote(str(source.parent))
        return f"`labledger verify --lab-dir {lab}` lists what differs there"
    return "import it from another copy"


def _revision(path: Path) -> str | None:
    """Return the source's revision, with a hint that suits a source if it has none."""
    try:
        return migrations.read_revision(path)
    except (LedgerMissing, NotALedger) as error:
        hint = "name a ledger file, a lab folder, or a run's folder"
        raise LedgerMissing(error.message, hint=hint) from error
    except LedgerError as error:
        raise LedgerError(error.message, hint=verify_hint(path)) from error


def refuse_irregular(path: Path) -> None:
    """Raise `LedgerError` if the file, or one that SQLite reads with it, is not a regular file."""
    for name in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + name)
        try:
            mode = os.lstat(file).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise LedgerError(
                f"{file} is a link or not a regular file; a source must be named by its own path",
                hint="name the file itself",
            )


def require_same_tables(connection: Connection, path: Path) -> None:
    """Raise `LedgerError` unless tables and constraints are defined as in a new ledger.

    If they are, SQLite's integrity check detects every value that the columns do not allow.
    """
    actual = definitions(connection)
    for (kind, name), sql in expected_definitions().items():
        if kind in ("table", "index") and actual.get((kind, name)) != sql:
            raise LedgerError(
                f"{path} is not a ledger that labledger created: {name} differs or is missing",
                hint="import the ledger from which this one was made",
            )
