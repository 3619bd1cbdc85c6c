"""Read a run as `RunInfo`, its tasks, gradings and reruns; check regradings against their roots.

All queries run inside the caller's snapshot. An extended run has the experiment of its newest
extension. A regrading stores its root's chain head, and no longer counts if the root has grown. A
slot counts until its replacement is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from labledger.errors import InvalidInput, Problem
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.run_info import (
    ExperimentRevision,
    Grading,
    LostHost,
    Rerun,
    RunInfo,
    RunPart,
    Stop,
    Variant,
)
from labledger.ledger.database.table_rows import KEYS
from labledger.ledger.rows.leases import read_lease, read_request
from labledger.ledger.rows.lookup import run_number
from labledger.ledger.rows.run_rows import read_total_slots
from labledger.records.outcomes import RunStatus

_RUN_SQL = statements.expand("""
SELECT run.run_no, run.run_id, run.experiment_id, run.name, run.created_at,
  {newest resolved run resolved} AS resolved_text,
  {newest authored run authored} AS authored,
  {newest run_digest run digest} AS digest,
  {newest source_path run source_path} AS source_path,
  {newest images run images} AS images,
  run.labledger_version, schedule.total_slots, schedule.genesis_digest,
  progress.next_schedule_idx, progress.epoch, progress.status, progress.updated_at,
  progress.ended_at, progress.stop_cause, progress.stop_message,
  (SELECT json_group_object(kind, amount) FROM budget WHERE budget.run_no = run.run_no) AS budget,
  (SELECT json_group_array(tag) FROM
    (SELECT tag FROM run_tag WHERE run_tag.run_no = run.run_no ORDER BY tag)) AS tags,
  (SELECT json_group_object(name, value) FROM run_setting
   WHERE run_setting.run_no = run.run_no) AS settings
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress AS progress ON progress.run_no = run.run_no
""")
"""Each column has the name of a field of `RunInfo`; `_run_info` makes the other fields."""


def read_runs(connection: Connection) -> list[RunInfo]:
    """Return every run, the newest first."""
    rows = connection.execute(f"{_RUN_SQL} ORDER BY run.run_no DESC").all()
    return [_run_info(connection, row) for row in rows]


def read_run(connection: Connection, run_no: int) -> RunInfo:
    """Return the run with the number `run_no`."""
    result = connection.execute(f"{_RUN_SQL} WHERE run.run_no = ?", (run_no,))
    return _run_info(connection, result.one())


def read_variants(connection: Connection, run_no: int) -> tuple[Variant, ...]:
    """Return the variants of a run, in the order of the experiment."""
    rows = connection.execute(
        "SELECT variant_id, role, bindings FROM run_variant WHERE run_no = ? ORDER BY variant_idx",
        (run_no,),
    ).all()
    return tuple(Variant(name, role, json.loads(bindings)) for name, role, bindings in rows)


_PARTS_SQL = (
    f"SELECT {', '.join(field.name for field in fields(RunPart))} FROM run_part "  # noqa: S608
    "WHERE run_no = ? ORDER BY part"
)
_REVISIONS_SQL = """
SELECT 1, resolved, authored, digest, source_path, images FROM run WHERE run_no = ?1
UNION ALL SELECT part, resolved, authored, run_digest, source_path, images FROM run_part
WHERE run_no = ?1 AND kind = 'extended' ORDER BY 1"""


def read_parts(connection: Connection, run_no: int) -> tuple[RunPart, ...]:
    """Return the parts of a run's schedule after the first, in order."""
    rows = connection.execute(_PARTS_SQL, (run_no,))
    return tuple(
        RunPart(**row._asdict() | {"selection": row.selection and json.loads(row.selection)})
        for row in rows
    )


def read_revisions(connection: Connection, run_no: int) -> dict[int, ExperimentRevision]:
    """Return each revision of a run's experiment by the number of its part, from 1."""
    return {
        part: ExperimentRevision(
            json.loads(resolved), authored, digest, source_path, json.loads(images)
        )
        for part, resolved, authored, digest, source_path, images in connection.execute(
            _REVISIONS_SQL, (run_no,)
        )
    }


def read_lost_hosts(connection: Connection, run_no: int) -> tuple[LostHost, ...]:
    """Return the hosts that were declared lost for a run, by name."""
    rows = connection.execute(
        "SELECT host, declared_at, because FROM host_fence WHERE run_no = ? ORDER BY host",
        (run_no,),
    ).all()
    return tuple(LostHost(*row) for row in rows)


def _run_info(connection: Connection, row: Any) -> RunInfo:
    stored = row._asdict()
    stop = row.stop_cause and Stop(row.stop_cause, row.stop_message or "")
    values: dict[str, Any] = {
        **{column.name: stored[column.name] for column in fields(RunInfo) if column.name in stored},
        **{name: json.loads(stored[name]) for name in ("images", "budget", "settings")},
        "tags": tuple(json.loads(row.tags)),
        "status": RunStatus(row.status),
        "variants": read_variants(connection, row.run_no),
        "parts": read_parts(connection, row.run_no),
        "lost_hosts": read_lost_hosts(connection, row.run_no),
        "stop": stop,
        "lease": read_lease(connection, row.run_no),
        "takeover_request": read_request(connection, row.run_no),
    }
    return RunInfo(**values)


_TASKS_SQL = f"{statements.select('run_task', start=2)} ORDER BY task_idx"
_SCHEDULED_SQL = statements.expand("""
SELECT run_variant.variant_id, run_task.task_id, count(*)
FROM slot
{slot_names}
WHERE slot.run_no = ? AND slot.supersedes IS NULL
GROUP BY slot.variant_idx, slot.task_idx""")


def read_task_digests(connection: Connection, run_no: int) -> dict[str, str]:
    """Return the digest of each task by its id, in the order of the dataset."""
    return {row[0]: row[1] for row in connection.execute(_TASKS_SQL, (run_no,))}


def read_task_row_digests(connection: Connection, run_no: int) -> dict[str, str]:
    """Return the digest of each task's whole frozen row by the task's id."""
    return {row[0]: row[2] for row in connection.execute(_TASKS_SQL, (run_no,))}


def read_scheduled(connection: Connection, run_no: int) -> Iterator[tuple[str, str, int]]:
    """Yield variant id, task id and number of cells, for each pair that has any.

    A slot that supersedes another one belongs to the same cell.
    """
    yield from connection.execute(_SCHEDULED_SQL, (run_no,))


# -- gradings

_GRADINGS_SQL = statements.expand("""
SELECT
  grading.root_id, grading.generation, own.run_id, {grading_id} AS grading_id,
  {grader_digest} AS grader_digest,
  schedule_progress.next_schedule_idx = schedule.total_slots AS complete,
  {is_counted} AS counts, own.created_at, schedule.total_slots AS slots
FROM grading AS given
JOIN grading ON grading.root_id = given.root_id
JOIN run AS own ON own.run_no = grading.run_no
JOIN schedule ON schedule.run_no = own.run_no
JOIN schedule_progress ON schedule_progress.run_no = own.run_no
WHERE given.run_no = ?
ORDER BY grading.generation""")
"""Each column has the name of its field of `Grading`."""


def read_gradings(connection: Connection, run_no: int) -> list[Grading]:
    """Return every grading of the run, or of the root of a regrading, the oldest first."""
    return [
        Grading(**row._asdict() | {"complete": bool(row.complete), "counts": bool(row.counts)})
        for row in connection.execute(_GRADINGS_SQL, (run_no,))
    ]


def with_regradings(connection: Connection, run_id: str) -> list[str]:
    """Return a run and its regradings, the oldest first.

    Raises `RunNotFound`, and `InvalidInput` for a regrading, which cannot leave its run.
    """
    gradings = read_gradings(connection, run_number(connection, run_id))
    if gradings[0].run_id != run_id:
        message = f"it is a regrading of {gradings[0].root_id}, and cannot be separated from it"
        hint = f"name {gradings[0].root_id}: its regradings go with it"
        raise InvalidInput("the run", [Problem(run_id, message, hint=hint)])
    return [grading.run_id for grading in gradings]


class StoredRegrades(NamedTuple):
    """The run that a regrading grades again, as stored in its resolved experiment."""

    root_id: str
    generation: int
    head: str
    """The root's chain head."""


_REGRADES_KEYS = ("run_id", "generation", "head")


def read_regrades(connection: Connection, run_no: int) -> StoredRegrades | None:
    """Return which run a regrading grades again; None for a run whose agents ran."""
    sql = "SELECT resolved FROM run WHERE run_no = ?"
    text = connection.execute(sql, (run_no,)).scalar_one()
    try:
        stored = json.loads(text).get("regrades")
        return (
            None if stored is None else StoredRegrades(*(stored[name] for name in _REGRADES_KEYS))
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


_ROOT_SQL = """
SELECT root.run_no, schedule_progress.next_schedule_idx,
  (SELECT chain_digest FROM slot_commit
   WHERE slot_commit.run_no = root.run_no AND slot_commit.schedule_idx = ?2 - 1)
FROM run AS root
JOIN schedule_progress ON schedule_progress.run_no = root.run_no
WHERE root.run_id = ?1"""


def root_mismatch(connection: Connection, regraded: StoredRegrades, slots: int) -> str | None:
    """Return why the root in this ledger is not the run that was regraded; None if it is.

    `slots` is the number of slots of the regrading, which the root had at that time. A root that
    the ledger does not have is a mismatch.
    """
    root = connection.execute(_ROOT_SQL, (regraded.root_id, slots)).first()
    if root is None:
        return f"it regrades {regraded.root_id}, which the ledger does not have"
    _, committed, head = root
    if committed < slots:
        return f"it regrades {regraded.root_id}, which is not complete"
    if head != regraded.head:
        return (
            f"it regrades another history of {regraded.root_id}: "
            f"{regraded.head} was its last digest"
        )
    return None


_ORPHANS_SQL = """
SELECT run.run_id, grading.root_id FROM grading JOIN run ON run.run_no = grading.run_no
WHERE NOT EXISTS (SELECT 1 FROM run AS root WHERE root.run_id = grading.root_id)
ORDER BY run.run_no"""


def find_orphan_regradings(connection: Connection) -> list[tuple[str, str]]:
    """Return regradings whose root the ledger does not have, each with the root's id."""
    return [(row[0], row[1]) for row in connection.execute(_ORPHANS_SQL)]


_GRADING_ROW_SQL = """
SELECT run.run_id, grading.root_id, grading.generation
FROM run LEFT JOIN grading ON grading.run_no = run.run_no WHERE run.run_no = ?"""
_COUNTS_NEWEST_SQL = """
SELECT (SELECT run_no FROM counted WHERE counted.root_no = run.run_no) IS (
  SELECT grading.run_no FROM grading
  JOIN schedule_progress ON schedule_progress.run_no = grading.run_no
  WHERE grading.root_id = run.run_id AND (grading.run_no = run.run_no
    OR schedule_progress.next_schedule_idx =
      (SELECT total_slots FROM schedule WHERE schedule.run_no = run.run_no))
  ORDER BY grading.generation DESC LIMIT 1)
FROM run WHERE run.run_no = ?"""
_HAS_COUNTED_SQL = "SELECT 1 FROM counted WHERE root_no = ?"
_PARTS = {"variants": "run_variant", "tasks": "run_task", "slots": "slot"}
"""Tables whose rows a regrading copies from its root, as they were at that time."""


def find_grading_problems(connection: Connection, run_no: int) -> Iterator[tuple[None, str]]:
    """Yield problems of a run's rows in `grading` and `counted`, and of the run it regrades."""
    regraded = read_regrades(connection, run_no)
    run_id, *stored = connection.execute(_GRADING_ROW_SQL, (run_no,)).one()
    if stored != ([run_id, 1] if regraded is None else [regraded.root_id, regraded.generation]):
        yield None, "the run's row of grading does not fit its resolved experiment"
    if regraded is None:
        if not connection.execute(_COUNTS_NEWEST_SQL, (run_no,)).scalar():
            difference = "is not the run's newest complete grading"
            yield None, f"the row of counted, which views use, {difference}"
        return
    if connection.execute(_HAS_COUNTED_SQL, (run_no,)).first():
        yield None, "it is a regrading, but has a row of counted, as only other runs do"
    slots = read_total_slots(connection, run_no)
    root = connection.execute(_ROOT_SQL, (regraded.root_id, slots)).first()
    if root is None:
        return
    problem = root_mismatch(connection, regraded, slots)
    if problem is not None:
        yield None, problem
    for part, table in _PARTS.items():
        number = KEYS[table][1]
        rows = f"SELECT {statements.columns(table, start=1)} FROM {table} WHERE run_no = "  # noqa: S608
        of_run = f"{rows} ?1"
        of_root = f"{rows} ?2 AND {number} < (SELECT count(*) FROM {table} WHERE run_no = ?1)"  # noqa: S608
        sql = (
            f"SELECT 1 FROM ({of_run} EXCEPT {of_root}) "  # noqa: S608
            f"UNION ALL SELECT 1 FROM ({of_root} EXCEPT {of_run})"
        )
        if connection.execute(sql, (run_no, root[0])).first():
            yield None, f"its {part} differ from the {part} of {regraded.root_id}"


# -- reruns

_RERUNS_SQL = statements.expand("""
SELECT run_part.part, run_part.created_at, run_part.slot_count, {rerun_commits}, {rerun_statuses},
  run_part.because, run_part.selection
FROM run_part
WHERE run_part.run_no = ? AND run_part.kind = 'rerun' AND run_part.first_idx < coalesce(?,
  run_part.first_idx + 1)
ORDER BY run_part.part""")
_PENDING_SQL = """
SELECT slot.supersedes FROM slot
WHERE slot.run_no = ? AND slot.supersedes IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM slot_commit
  WHERE slot_commit.run_no = slot.run_no AND slot_commit.schedule_idx = slot.schedule_idx)"""
_REPLACEMENT_SQL = "SELECT schedule_idx FROM slot WHERE run_no = ? AND supersedes = ?"


def read_reruns(connection: Connection, run_no: int, slots: int | None = None) -> list[Rerun]:
    """Return the reruns of a run, the oldest first: all, or those among its first `slots` slots."""
    reruns = []
    rows = connection.execute(_RERUNS_SQL, (run_no, slots))
    for part, created_at, again, committed, superseded, because, selection in rows:
        chosen = {} if selection is None else json.loads(selection)
        despite_verdict = chosen.get("despite_verdict") is True
        statuses = json.loads(superseded)
        reruns.append(Rerun(part, created_at, again, committed, statuses, despite_verdict, because))
    return reruns


def read_pending_slots(connection: Connection, run_no: int) -> set[int]:
    """Return the slots of a run whose replacement is scheduled and not committed yet."""
    return set(connection.execute(_PENDING_SQL, (run_no,)).scalars())


def read_replacement(connection: Connection, run_no: int, schedule_idx: int) -> int | None:
    """Return the slot that supersedes another one, committed or not; None if none does."""
    idx = connection.execute(_REPLACEMENT_SQL, (run_no, schedule_idx)).scalar()
    return None if idx is None else int(idx)
