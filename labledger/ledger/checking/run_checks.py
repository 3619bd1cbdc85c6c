"""Check everything in the ledger besides committed slots: its file, its schema, and each run.

Views and triggers are compared by their text. Tables are compared by their columns and constraints
in any order, because a migration may list them in another order. A check that cannot read its rows
yields a problem instead of raising.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from labledger import clock
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.checking import slot_checks
from labledger.ledger.checking.slot_checks import UNREADABLE, Message
from labledger.ledger.database import migrations, statements, views_and_triggers
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.table_rows import DIGESTED
from labledger.ledger.reading import stored_runs
from labledger.ledger.rows import digest_chain, run_rows
from labledger.ledger.rows.digest_chain import PlannedRows
from labledger.records import canonical_json
from labledger.records.attempt_result import AttemptResult, EventFile
from labledger.records.identity import slot_commit_id
from labledger.records.outcomes import RunStatus

_SCHEMA_SQL = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
_QUOTED = re.compile(r'"(\w+)"')

Definitions = dict[tuple[str, str], tuple[str, ...]]
"""The SQL of each object of a schema, without layout, by its type and name."""


def find_schema_problems(connection: Connection) -> Iterator[str]:
    """Yield damage of pages and references, and every object of the schema that differs."""
    for (message,) in connection.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield f"SQLite's integrity check: {message}"
    for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"a row of {table} has lost its row of {parent}"
    yield from _compare_definitions(connection)
    stored, expected = migrations.read_identity(connection)
    if stored != expected:
        yield "the ledger's own id or its time of creation was changed or removed"


def _compare_definitions(connection: Connection) -> Iterator[str]:
    expected, actual = expected_definitions(), definitions(connection)
    for kind, name in expected:
        if (kind, name) not in actual:
            yield f"{kind} {name} is missing from the ledger's schema"
        elif actual[kind, name] != expected[kind, name]:
            yield f"{kind} {name} is not defined as in a ledger of this revision"
    for kind, name in actual.keys() - expected.keys():
        if kind == "trigger":
            yield f"trigger {name} is not one of labledger's: it may change what is written"


def definitions(connection: Connection) -> Definitions:
    """Return the definitions of a ledger's schema."""
    rows = connection.execute(_SCHEMA_SQL)
    return {(str(kind), str(name)): _normalised(sql) for kind, name, sql in rows}


@cache
def expected_definitions() -> Definitions:
    """Return the definitions in a ledger of the newest revision.

    They come from the code's declarations. The statements in the user's cache, which may have
    created a ledger, could have been altered.
    """
    # Imported late: these take long, and everything that opens a ledger imports this module.
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.schema import CreateIndex, CreateTable

    from labledger.ledger.database import tables

    dialect = sqlite.dialect()
    statements = {
        ("view", name): view.statement(name) for name, view in views_and_triggers.ALL_VIEWS.items()
    }
    statements |= {("trigger", name): sql for name, sql in views_and_triggers.TRIGGERS.items()}
    for table in tables.metadata.tables.values():
        statements["table", table.name] = str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            statements["index", str(index.name)] = str(CreateIndex(index).compile(dialect=dialect))
    return {key: _normalised(sql) for key, sql in statements.items()}


def _normalised(sql: str) -> tuple[str, ...]:
    """Return a definition without its layout; a table's columns and constraints are sorted."""
    text = " ".join(sql.split())
    if not text.startswith("CREATE TABLE"):
        return (text,)
    text = _QUOTED.sub(r"\1", text)
    head, _, rest = text.partition("(")
    body, _, options = rest.rpartition(")")
    return (head.strip(), options.strip(), *sorted(_split_at_commas(body)))


def _split_at_commas(body: str) -> Iterator[str]:
    """Yield the parts of `body` between commas that are outside of parentheses."""
    depth, start = 0, 0
    for position, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield body[start:position].strip()
            start = position + 1
    yield body[start:].strip()


# -- runs

_RUN_SQL = statements.select("run", start=1)
_SCHEDULE_SQL = statements.select("schedule", start=1)
_PARTS_SQL = f"{statements.select('run_part', start=1)} ORDER BY part"


def check_schedule(connection: Connection, run_no: int) -> Iterator[Message]:
    """Yield the problems of a run's row, prices, variants, tasks with payloads, slots and parts."""
    row = connection.execute(_RUN_SQL, (run_no,)).one()
    genesis = PlannedRows(dict(zip(digest_chain.RUN_COLUMNS, row, strict=True)))
    rows = [tuple(row) for row in connection.execute(_PARTS_SQL, (run_no,))]
    appended = [dict(zip(digest_chain.PART_COLUMNS, row, strict=False)) for row in rows]
    total, genesis_digest = connection.execute(_SCHEDULE_SQL, (run_no,)).one()
    added = [PlannedRows() for _ in appended]
    is_numbered, end, ends = True, 0, []
    parts = digest_chain.planned_parts(connection, run_no, appended)
    for digest, part_rows in zip((genesis, *added), parts, strict=True):
        for kind, number, (idx, *values) in part_rows:
            is_numbered &= idx == number
            if kind == "task":
                body = values.pop()
                if canonical_json.sha256_hex(body.encode()) != values[-1]:
                    yield None, f"the payload of task {values[0]} was changed"
            digest.add(kind, *values)
            end += kind == "slot"
        ends.append(end)
    if (end, genesis.hexdigest()) != (total, genesis_digest) or not is_numbered:
        yield None, "the run's row, prices of models, variants, tasks or slots were changed"
    first_idx = ends[0]
    for number, (part, part_digest, stored) in enumerate(
        zip(appended, added, rows, strict=True), 2
    ):
        is_in_place = (part["part"], part["first_idx"]) == (number, first_idx)
        if not is_in_place or part_digest.hexdigest(part) != stored[-1]:
            message = (
                f"part {number} of the run, or its prices, variants, tasks or slots, were changed"
            )
            yield None, message
        first_idx += part["slot_count"]


_PROGRESS_SQL = """
SELECT progress.next_schedule_idx, progress.status, progress.epoch, progress.updated_at,
  progress.ended_at, schedule.total_slots,
  (SELECT max(epoch) FROM slot_commit WHERE slot_commit.run_no = progress.run_no),
  (SELECT max(schedule_idx) + 1 FROM slot_commit WHERE slot_commit.run_no = progress.run_no),
  (SELECT committed_at FROM slot_commit WHERE slot_commit.run_no = progress.run_no
   ORDER BY schedule_idx DESC LIMIT 1)
FROM schedule_progress AS progress JOIN schedule ON schedule.run_no = progress.run_no
WHERE progress.run_no = ?"""
_COMMITTED_STAGED_SQL = (
    "SELECT DISTINCT staged_result.schedule_idx FROM staged_result JOIN slot_commit "
    "ON slot_commit.run_no = staged_result.run_no "
    "AND slot_commit.schedule_idx = staged_result.schedule_idx WHERE staged_result.run_no = ?"
)
_UNCOMMITTED_STAGED_SQL = (
    f"{statements.select_with_digest('staged_result')} AND schedule_idx NOT IN "  # noqa: S608
    "(SELECT schedule_idx FROM slot_commit WHERE run_no = ?1) ORDER BY schedule_idx, attempt"
)
_WORKSPACES_SQL = statements.expand("""
SELECT tar, size, task_id, count(*), min(task_idx) FROM (
  SELECT task_idx, task_id,
    CASE WHEN json_valid(body) THEN json_extract(body, '$.workspace.tar') END AS tar,
    CASE WHEN json_valid(body) THEN json_extract(body, '$.workspace.size') END AS size
  FROM run_task {task_payload}
  WHERE run_no = ?)
WHERE tar IS NOT NULL GROUP BY tar ORDER BY min(task_idx)""")
"""Each workspace's tar with its first task and its number of tasks."""
_TASK_FILES_SQL = statements.expand("""
SELECT json_extract(files.value, '$.tar'), json_extract(files.value, '$.size'), task_id, count(*),
  min(task_idx)
FROM run_task {task_payload},
  json_each(CASE WHEN json_valid(body) THEN body ELSE '{}' END, '$.files') AS files
WHERE run_no = ? AND files.type = 'object'
GROUP BY 1 ORDER BY min(task_idx)""")
"""Each tar of files of tasks with its first task and its number of tasks."""
_IS_OWNED_SQL = "SELECT count(*) FROM lease WHERE run_no = ?"
_ROW_DIGESTS = tuple(table for table in DIGESTED if table != "staged_result")
"""Tables whose row digests are checked here. `_check_staged_results` checks staged results."""
_DISPATCH_SQL = (
    "SELECT schedule_idx, attempt, epoch, container, dispatched_at FROM dispatch "
    "WHERE run_no = ? ORDER BY schedule_idx, attempt, epoch"
)
_BUDGET_SQL = statements.select("budget", start=1)
_LEASE_SQL = (
    "SELECT lease.epoch, schedule_progress.epoch, lease.acquired_at, lease.renewed_at, "
    "lease.expires_at FROM lease JOIN schedule_progress "
    "ON schedule_progress.run_no = lease.run_no WHERE lease.run_no = ?"
)


def find_problems(
    connection: Connection, run_no: int, run_id: str, store: ArtifactStore | None = None
) -> Iterator[Message]:
    """Yield every problem of a run's rows.

    With a `store`, this also checks the files of staged events, the run's frozen files, and the
    root run of a regrading.
    """
    checks: tuple[tuple[str, Callable[[], Iterator[Message]]], ...] = (
        ("row, variants, tasks or slots", partial(check_schedule, connection, run_no)),
        ("progress", partial(_check_progress, connection, run_no)),
        ("staged results", partial(_check_staged_results, connection, run_no, run_id, store)),
        ("dispatch journal", partial(_check_dispatches, connection, run_no, run_id)),
        ("budget or lease", partial(_check_settings, connection, run_no)),
        *(
            (f"rows of {table}", partial(find, connection, table, run_no))
            for find, tables in (
                (statements.find_changed_rows, _ROW_DIGESTS),
                (statements.find_missing_rows, statements.TALLIED),
            )
            for table in tables
        ),
        ("rows of slot_outcome", partial(slot_checks.find_wrong_outcomes, connection, run_no)),
        ("gradings", partial(stored_runs.find_grading_problems, connection, run_no)),
    )
    for name, check in checks:
        yield from guarded(f"the run's {name} cannot be read", check)
    if store is not None:
        check = partial(_check_start, connection, run_no, run_id, store)
        yield from guarded("what it was started with cannot be read", check)


def guarded(failure: str, check: Callable[[], Iterator[Message]]) -> Iterator[Message]:
    """Yield the problems of a check; if it cannot read its rows, yield `failure` and the cause."""
    try:
        yield from check()
    except UNREADABLE as error:
        yield None, f"{failure}: {error}"


def _check_start(
    connection: Connection, run_no: int, run_id: str, store: ArtifactStore
) -> Iterator[Message]:
    for message in _find_missing_files(connection, store, run_no):
        yield None, message
    for name, root_id in stored_runs.find_orphan_regradings(connection):
        if name == run_id:
            yield None, f"it regrades {root_id}, which the ledger does not hold"


def _find_missing_files(connection: Connection, store: ArtifactStore, run_no: int) -> Iterator[str]:
    """Yield the frozen files of a run and its tasks that are missing from the store or changed."""
    try:
        frozen = [*_frozen_files(connection, run_no), *_tars_of_tasks(connection, run_no)]
        for _, sha256, _ in frozen:
            bytes.fromhex(sha256)  # Only a digest in hex can name a file of the store.
    except (ValueError, LookupError, TypeError, AttributeError):
        yield "the files that it was started with cannot be read from its resolved experiment"
        return
    for description, sha256, size in frozen:
        problem = store.find_damage(sha256, size)
        if problem is not None:
            yield f"{description}: artifact {sha256} {problem}"


def _frozen_files(connection: Connection, run_no: int) -> Iterator[tuple[str, str, int]]:
    yielded = set()
    for text in run_rows.read_resolved_texts(connection, run_no):
        for phase, entries in json.loads(text).get("files", {}).items():
            for entry in entries:
                file = (f"{phase} file {entry['name']}", entry["sha256"], entry["size"])
                if file not in yielded:
                    yield file
                    yielded.add(file)


def _tars_of_tasks(connection: Connection, run_no: int) -> Iterator[tuple[str, str, int]]:
    for noun, sql in (("workspace", _WORKSPACES_SQL), ("files", _TASK_FILES_SQL)):
        for sha256, size, task_id, count, _ in connection.execute(sql, (run_no,)):
            others = f" and {count - 1} more" if count > 1 else ""
            yield f"{noun} of task {task_id}{others}", sha256, size


def _check_progress(connection: Connection, run_no: int) -> Iterator[Message]:
    """Compare the run's progress, status, epoch and end with its commits."""
    row = connection.execute(_PROGRESS_SQL, (run_no,)).one()
    next_idx, status, epoch, updated_at, ended_at, total, last_epoch, committed, last_commit = row
    committed = committed or 0
    if next_idx != committed:
        yield None, f"the progress says {next_idx} slots are committed; {committed} are"
    if status == RunStatus.COMPLETED.value and committed != total:
        yield None, f"the progress says the run is completed; {committed} of {total} slots are"
    if epoch < (last_epoch or 0):
        yield None, f"the progress is in epoch {epoch}; a slot was committed in {last_epoch}"
    RunStatus(status)  # Raises `ValueError`, which the caller reports, if it is unknown.
    if not clock.TIME.fullmatch(updated_at):
        yield None, f"the progress says {updated_at!r} where it should say a time"
    if ended_at is not None and (
        status == RunStatus.RUNNING.value or ended_at not in (updated_at, last_commit)
    ):
        yield None, f"the run cannot have ended at {ended_at!r}"


def _check_staged_results(
    connection: Connection, run_no: int, run_id: str, store: ArtifactStore | None
) -> Iterator[Message]:
    """Check the digests, form and files of events of staged results."""
    is_owned = bool(connection.execute(_IS_OWNED_SQL, (run_no,)).scalar())
    for (idx,) in connection.execute(_COMMITTED_STAGED_SQL, (run_no,)):
        yield idx, "a staged result was left behind by the commit"
    for row in connection.execute(_UNCOMMITTED_STAGED_SQL, (run_no,)):
        _, idx, attempt, _, payload, staged_at, _ = row
        if not statements.fits_its_digest("staged_result", row):
            yield idx, "a staged result was changed since it was staged"
            continue
        try:
            folder = Path() if store is None else store.staged_events
            result = AttemptResult.from_json(json.loads(payload), folder)
            key = (result.schedule_idx, result.attempt, result.slot_commit_id, result.ids.run_id)
            is_staged_form = canonical_json.dumps(result.as_json()) == payload
            if not is_staged_form or not clock.TIME.fullmatch(staged_at):
                yield idx, "a staged result is not in the form in which results are staged"
            elif key != (idx, attempt, slot_commit_id(run_id, idx), run_id):
                yield idx, "a staged result is about another slot or attempt"
            elif store is not None:
                yield from ((idx, message) for message in _check_event_file(result, is_owned))
        except UNREADABLE as error:
            yield idx, f"a staged result cannot be read: {error}"


def _check_event_file(result: AttemptResult, is_owned: bool) -> Iterator[str]:
    """Check the file of a staged result's events, if they are in a file.

    The owner of the run may have committed the result since, and deleted the file.
    """
    events = result.events
    problem = events.find_damage() if isinstance(events, EventFile) else None
    if isinstance(events, EventFile) and problem and (events.path.exists() or not is_owned):
        yield f"the file of events of a staged result {problem}: {events.path}"


def _check_dispatches(connection: Connection, run_no: int, run_id: str) -> Iterator[Message]:
    """Check the dispatch journal, whose containers are named after slot and attempt."""
    (epoch,) = connection.execute(
        "SELECT epoch FROM schedule_progress WHERE run_no = ?", (run_no,)
    ).one()
    for idx, attempt, dispatch_epoch, container, dispatched_at in connection.execute(
        _DISPATCH_SQL, (run_no,)
    ):
        if not container.endswith(f"-{run_id}-{idx}-{attempt}"):
            yield idx, f"the journal names a container of another slot: {container!r}"
        if not 1 <= dispatch_epoch <= epoch or not clock.TIME.fullmatch(dispatched_at):
            yield idx, "the journal has a dispatch of no possible time"


def _check_settings(connection: Connection, run_no: int) -> Iterator[Message]:
    """Check the form of the budget and the lease."""
    for kind, amount in connection.execute(_BUDGET_SQL, (run_no,)):
        if not math.isfinite(amount):
            yield None, f"the budget of {kind} is no amount: {amount}"
    for lease_epoch, run_epoch, *times in connection.execute(_LEASE_SQL, (run_no,)):
        if lease_epoch != run_epoch or not all(map(clock.TIME.fullmatch, times)):
            yield None, "the row of lease does not belong to the run's owner"
