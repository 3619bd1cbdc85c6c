"""The one declaration of the ledger's tables, as SQLAlchemy metadata.

Alembic creates the tables, and a test compares what it creates with this module. Importing
SQLAlchemy takes longer than most commands: everything else uses `table_rows`, which
`scripts/table_rows.py` generates from here.

A run has a small number (`run_no`) inside the ledger; the views show its `run_id`. Tables whose
rows are small are clustered by (`run_no`, `schedule_idx`, …), so that commits append.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    Computed,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import UserDefinedType

from labledger.ledger.database.model import USUAL_METRICS
from labledger.records.outcomes import RunStatus, SlotStatus, Verdict


class AnyValue(UserDefinedType[Any]):
    """SQLite's `ANY` of STRICT tables: an integer, a float or text is stored without conversion."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "ANY"


EVENT_TYPE = "CASE json_type(body, '$.type') WHEN 'text' THEN body ->> '$.type' END"
"""An event's type is the `type` of its body, if that is text."""

metadata = MetaData()

_CLUSTERED: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}
_STRICT: dict[str, Any] = {"sqlite_strict": True}
_NUMBERED_BY_SQLITE: dict[str, Any] = {"numbered_by_sqlite": True}


def _integer(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=null)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _row_digest() -> Column[str]:
    """The digest of the other columns (`row_digests`); null if an older labledger wrote the row."""
    return _text("row_digest", null=True)


def _key(table: str, *columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _references(table: str, parent: str, *columns: str) -> ForeignKeyConstraint:
    """Return a foreign key whose columns have the same names in parent and child."""
    return ForeignKeyConstraint(
        columns, [f"{parent}.{column}" for column in columns], name=f"fk_{table}_{parent}"
    )


def _check(table: str, name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=f"ck_{table}_{name}")


def _one_of(table: str, column: str, values: type[SlotStatus | Verdict | RunStatus]) -> Any:
    literals = ", ".join(f"'{value.value}'" for value in values)
    return _check(table, column, f"{column} IN ({literals})")


def _slot_columns() -> tuple[Column[int], Column[int]]:
    return _integer("run_no"), _integer("schedule_idx")


def _phase_columns(phase: str) -> Iterator[Column[int]]:
    for name in ("exit_status", "duration_ms", "timed_out"):
        yield _integer(f"{phase}_{name}", null=True)


ledger_meta = Table(
    "ledger_meta",
    metadata,
    _text("key"),
    _text("value"),
    _key("ledger_meta", "key"),
    **_CLUSTERED,
)

run = Table(
    "run",
    metadata,
    _integer("run_no"),
    _text("run_id"),
    _text("experiment_id"),
    _text("name"),
    _text("created_at"),
    _text("resolved"),
    _text("authored"),
    _text("digest"),
    _text("source_path"),
    _text("images"),
    _text("labledger_version"),
    _key("run", "run_no"),
    UniqueConstraint("run_id", name="uq_run_run_id"),
    **_STRICT,
)

Index("ix_run_experiment_id", run.c.experiment_id)

grading = Table(
    "grading",
    metadata,
    _integer("run_no"),
    _text("root_id"),
    _integer("generation"),
    _key("grading", "run_no"),
    UniqueConstraint("root_id", "generation", name="uq_grading_generation"),
    _references("grading", "run", "run_no"),
    _check("grading", "generation", "generation >= 1"),
    **_STRICT,
)
"""Each run's generation of scores and root run, which is the run itself unless it regrades."""

counted = Table(
    "counted",
    metadata,
    _integer("root_no"),
    _integer("run_no"),
    _key("counted", "root_no"),
    UniqueConstraint("run_no", name="uq_counted_run_no"),
    ForeignKeyConstraint(["root_no"], ["run.run_no"], name="fk_counted_root"),
    _references("counted", "run", "run_no"),
    **_STRICT,
)
"""The run with the current grading of each root: the root, or its newest complete regrading."""

run_variant = Table(
    "run_variant",
    metadata,
    _integer("run_no"),
    _integer("variant_idx"),
    _text("variant_id"),
    _text("role"),
    _text("bindings"),
    _key("run_variant", "run_no", "variant_idx"),
    UniqueConstraint("run_no", "variant_id", name="uq_run_variant_variant_id"),
    _references("run_variant", "run", "run_no"),
    _check("run_variant", "role", "role IN ('baseline', 'treatment')"),
    **_CLUSTERED,
)

task_payload = Table(
    "task_payload",
    metadata,
    _text("payload_digest"),
    _text("body"),
    _key("task_payload", "payload_digest"),
    **_STRICT,
)

run_task = Table(
    "run_task",
    metadata,
    _integer("run_no"),
    _integer("task_idx"),
    _text("task_id"),
    _text("digest"),
    _text("payload_digest"),
    _key("run_task", "run_no", "task_idx"),
    UniqueConstraint("run_no", "task_id", name="uq_run_task_task_id"),
    _references("run_task", "run", "run_no"),
    _references("run_task", "task_payload", "payload_digest"),
    **_CLUSTERED,
)

Index("ix_run_task_task_id", run_task.c.task_id)

slot = Table(
    "slot",
    metadata,
    *_slot_columns(),
    _integer("variant_idx"),
    _integer("task_idx"),
    _integer("repl_idx"),
    _integer("supersedes", null=True),
    _key("slot", "run_no", "schedule_idx"),
    UniqueConstraint(
        *("run_no", "variant_idx", "task_idx", "repl_idx", "supersedes"), name="uq_slot_cell"
    ),
    ForeignKeyConstraint(
        ["run_no", "supersedes"], ["slot.run_no", "slot.schedule_idx"], name="fk_slot_slot"
    ),
    _references("slot", "run_variant", "run_no", "variant_idx"),
    _references("slot", "run_task", "run_no", "task_idx"),
    _check("slot", "schedule_idx", "schedule_idx >= 0"),
    _check("slot", "repl_idx", "repl_idx >= 0"),
    _check("slot", "supersedes", "supersedes < schedule_idx"),
    **_CLUSTERED,
)
"""The schedule. `supersedes` is the earlier slot of the same cell that a rerun replaces.

A trigger refuses a second slot of a cell that supersedes none.
"""

Index(
    "ix_slot_supersedes",
    slot.c.run_no,
    slot.c.supersedes,
    sqlite_where=text("supersedes IS NOT NULL"),
)

schedule = Table(
    "schedule",
    metadata,
    _integer("run_no"),
    _integer("total_slots"),
    _text("genesis_digest"),
    _key("schedule", "run_no"),
    _references("schedule", "run", "run_no"),
    **_STRICT,
)

run_part = Table(
    "run_part",
    metadata,
    _integer("run_no"),
    _integer("part"),
    _text("kind"),
    _integer("first_idx"),
    _integer("variant_count"),
    _integer("task_count"),
    _integer("slot_count"),
    _text("resolved", null=True),
    _text("authored", null=True),
    _text("run_digest", null=True),
    _text("source_path", null=True),
    _text("images", null=True),
    _text("because", null=True),
    _text("selection", null=True),
    _text("labledger_version"),
    _text("created_at"),
    _text("digest"),
    _key("run_part", "run_no", "part"),
    _references("run_part", "run", "run_no"),
    _check("run_part", "part", "part >= 2"),
    _check("run_part", "kind", "kind IN ('extended', 'rerun')"),
    _check("run_part", "slot_count", "slot_count >= 1"),
    _check("run_part", "counts", "variant_count >= 0 AND task_count >= 0"),
    _check(
        "run_part",
        "revision",
        "(kind = 'extended') = (resolved IS NOT NULL) AND (resolved IS NULL) = (authored IS NULL) "
        "AND (resolved IS NULL) = (run_digest IS NULL) "
        "AND (resolved IS NULL) = (source_path IS NULL) AND (resolved IS NULL) = (images IS NULL)",
    ),
    **_STRICT,
)
"""The parts of a run's schedule after the first, which is what the run was created with.

A part adds the last `variant_count` variants, `task_count` tasks and `slot_count` slots that the
run had then; the slots begin at `first_idx`. A part that extends the run has the resolved
experiment as it is from then on, a rerun has none. `digest` covers the row and all that was added.
"""

schedule_progress = Table(
    "schedule_progress",
    metadata,
    _integer("run_no"),
    _integer("next_schedule_idx"),
    _integer("epoch"),
    _text("status"),
    _text("updated_at"),
    _text("ended_at", null=True),
    _text("stop_cause", null=True),
    _text("stop_message", null=True),
    _row_digest(),
    _key("schedule_progress", "run_no"),
    _references("schedule_progress", "run", "run_no"),
    _one_of("schedule_progress", "status", RunStatus),
    **_STRICT,
)

lease = Table(
    "lease",
    metadata,
    _integer("run_no"),
    _integer("epoch"),
    _text("host"),
    _integer("pid"),
    _text("process_token"),
    _text("acquired_at"),
    _text("renewed_at"),
    _text("expires_at"),
    _row_digest(),
    _key("lease", "run_no"),
    _references("lease", "run", "run_no"),
    **_STRICT,
)

claim = Table(
    "claim",
    metadata,
    _integer("run_no"),
    _text("host"),
    _integer("pid"),
    _text("process_token"),
    _text("claimed_at"),
    _text("expires_at"),
    _row_digest(),
    _key("claim", "run_no"),
    _references("claim", "run", "run_no"),
    **_STRICT,
)

budget = Table(
    "budget",
    metadata,
    _integer("run_no"),
    _text("kind"),
    Column("amount", REAL, nullable=False),
    _row_digest(),
    _key("budget", "run_no", "kind"),
    _references("budget", "run", "run_no"),
    _check("budget", "kind", "kind IN ('cost_usd', 'tokens')"),
    _check("budget", "amount", "amount >= 0"),
    **_CLUSTERED,
)
"""Limits of what a run may spend; a kind without a row has none.

A budget is a setting that may change, not a result: the chain does not cover it, and imports do not
copy it.
"""

run_note = Table(
    "run_note",
    metadata,
    _integer("run_no"),
    _integer("note_no"),
    _text("noted_at"),
    _text("note"),
    _row_digest(),
    _key("run_note", "run_no", "note_no"),
    _references("run_note", "run", "run_no"),
    _check("run_note", "note_no", "note_no >= 1"),
    **_CLUSTERED,
)
"""What people wrote about a run. Notes say nothing about results: the chain does not cover them."""

run_tag = Table(
    "run_tag",
    metadata,
    _integer("run_no"),
    _text("tag"),
    _text("tagged_at"),
    _row_digest(),
    _key("run_tag", "run_no", "tag"),
    _references("run_tag", "run", "run_no"),
    **_CLUSTERED,
)
"""The tags of a run: first those of its experiment, then what people added and removed."""

run_setting = Table(
    "run_setting",
    metadata,
    _integer("run_no"),
    _text("name"),
    _text("value"),
    _row_digest(),
    _key("run_setting", "run_no", "name"),
    _references("run_setting", "run", "run_no"),
    _check("run_setting", "name", "name IN ('on', 'window')"),
    **_CLUSTERED,
)
"""Where a run's trials run, and how far dispatch may be ahead: options that `resume` uses again.

Like a budget, a setting may change: the chain does not cover it, and imports do not copy it.
"""

host_fence = Table(
    "host_fence",
    metadata,
    _integer("run_no"),
    _text("host"),
    _text("declared_at"),
    _text("because"),
    _row_digest(),
    _key("host_fence", "run_no", "host"),
    _references("host_fence", "run", "run_no"),
    **_CLUSTERED,
)
"""The hosts that somebody declared lost for a run: nothing that they deliver is accepted."""

deleted_run = Table(
    "deleted_run",
    metadata,
    _integer("deletion_no"),
    _integer("former_run_no"),
    _text("run_id"),
    _text("experiment_id"),
    _text("created_at"),
    _text("genesis_digest"),
    _integer("committed"),
    _text("chain_head"),
    _text("deleted_at"),
    _text("because"),
    _text("digest"),
    _key("deleted_run", "deletion_no"),
    UniqueConstraint("former_run_no", name="uq_deleted_run_former_run_no"),
    _check("deleted_run", "deletion_no", "deletion_no >= 1"),
    _check("deleted_run", "committed", "committed >= 0"),
    **_STRICT,
)
"""The tombstone of each run that was deleted. `digest` covers the row and that of the one before.

No run gets the number of a deleted one.
"""

Index("ix_deleted_run_run_id", deleted_run.c.run_id)

dispatch = Table(
    "dispatch",
    metadata,
    *_slot_columns(),
    _integer("attempt"),
    _integer("epoch"),
    _text("container"),
    _text("host"),
    _text("dispatched_at"),
    _row_digest(),
    _key("dispatch", "run_no", "schedule_idx", "attempt", "epoch"),
    _references("dispatch", "slot", "run_no", "schedule_idx"),
    _check("dispatch", "attempt", "attempt >= 1"),
    **_CLUSTERED,
)

staged_result = Table(
    "staged_result",
    metadata,
    *_slot_columns(),
    _integer("attempt"),
    _integer("final"),
    _text("payload"),
    _text("staged_at"),
    _row_digest(),
    _key("staged_result", "run_no", "schedule_idx", "attempt"),
    _references("staged_result", "slot", "run_no", "schedule_idx"),
    _check("staged_result", "final", "final IN (0, 1)"),
    **_STRICT,
)

run_tally = Table(
    "run_tally",
    metadata,
    _integer("run_no"),
    _text("table_name"),
    _integer("row_count"),
    _text("content"),
    _row_digest(),
    _key("run_tally", "run_no", "table_name"),
    _references("run_tally", "run", "run_no"),
    **_CLUSTERED,
)
"""How many rows a run has in each table that the chain does not cover, and the exclusive or of
their digests. Triggers keep it."""

slot_commit = Table(
    "slot_commit",
    metadata,
    *_slot_columns(),
    _text("slot_commit_id"),
    _text("status"),
    _text("reason", null=True),
    _integer("epoch"),
    _text("committed_at"),
    _text("payload_digest"),
    _text("chain_digest"),
    _key("slot_commit", "run_no", "schedule_idx"),
    UniqueConstraint("slot_commit_id", name="uq_slot_commit_slot_commit_id"),
    _references("slot_commit", "slot", "run_no", "schedule_idx"),
    _one_of("slot_commit", "status", SlotStatus),
    **_CLUSTERED,
)

trial = Table(
    "trial",
    metadata,
    *_slot_columns(),
    _integer("attempt"),
    _text("status"),
    _text("reason", null=True),
    _text("message", null=True),
    _text("verdict", null=True),
    _text("outcome", null=True),
    _integer("exit_status", null=True),
    _text("started_at"),
    _text("ended_at"),
    _integer("duration_ms"),
    *_phase_columns("setup"),
    *_phase_columns("agent"),
    *_phase_columns("grader"),
    _text("image_ref"),
    _text("image_id"),
    _integer("events_dropped"),
    _key("trial", "run_no", "schedule_idx"),
    _references("trial", "slot_commit", "run_no", "schedule_idx"),
    _one_of("trial", "status", SlotStatus),
    _one_of("trial", "verdict", Verdict),
    **_CLUSTERED,
)

attempt = Table(
    "attempt",
    metadata,
    *_slot_columns(),
    _integer("attempt"),
    _text("status"),
    _text("reason", null=True),
    _text("message", null=True),
    _integer("exit_status", null=True),
    _text("started_at"),
    _text("ended_at"),
    _integer("duration_ms"),
    _text("container"),
    _text("image_id"),
    _key("attempt", "run_no", "schedule_idx", "attempt"),
    _references("attempt", "trial", "run_no", "schedule_idx"),
    _check("attempt", "attempt", "attempt >= 1"),
    _one_of("attempt", "status", SlotStatus),
    **_CLUSTERED,
)

metric = Table(
    "metric",
    metadata,
    *_slot_columns(),
    _integer("row_seq"),
    _text("metric_id"),
    _text("source"),
    Column("value", AnyValue, nullable=False),
    _key("metric", "run_no", "schedule_idx", "row_seq"),
    _references("metric", "trial", "run_no", "schedule_idx"),
    **_CLUSTERED,
)

event = Table(
    "event",
    metadata,
    *_slot_columns(),
    _integer("row_seq"),
    _text("body"),
    Column("type", Text, Computed(EVENT_TYPE, persisted=False), nullable=True),
    _key("event", "run_no", "schedule_idx", "row_seq"),
    _references("event", "trial", "run_no", "schedule_idx"),
    **_CLUSTERED,
)

Index(
    "ix_metric_usual",
    metric.c.run_no,
    metric.c.metric_id,
    metric.c.schedule_idx,
    metric.c.value,
    sqlite_where=text(" OR ".join(f"metric_id = '{name}'" for name in USUAL_METRICS)),
)

prediction = Table(
    "prediction",
    metadata,
    *_slot_columns(),
    _integer("row_seq"),
    _text("kind"),
    _text("record"),
    _key("prediction", "run_no", "schedule_idx", "row_seq"),
    _references("prediction", "trial", "run_no", "schedule_idx"),
    **_STRICT,
)

score = Table(
    "score",
    metadata,
    *_slot_columns(),
    _integer("row_seq"),
    _text("verdict"),
    _text("primary_metric_name"),
    Column("primary_metric_value", REAL, nullable=False),
    _text("record"),
    _key("score", "run_no", "schedule_idx", "row_seq"),
    _references("score", "trial", "run_no", "schedule_idx"),
    _one_of("score", "verdict", Verdict),
    **_STRICT,
)
Index(
    "ix_score_outcome",
    score.c.run_no,
    score.c.schedule_idx,
    score.c.row_seq,
    score.c.verdict,
    score.c.primary_metric_name,
    score.c.primary_metric_value,
)

evidence_record = Table(
    "evidence_record",
    metadata,
    *_slot_columns(),
    _integer("attempt"),
    _integer("row_seq"),
    _text("record"),
    _key("evidence_record", "run_no", "schedule_idx", "attempt", "row_seq"),
    _references("evidence_record", "trial", "run_no", "schedule_idx"),
    **_STRICT,
)

slot_outcome = Table(
    "slot_outcome",
    metadata,
    _integer("run_no"),
    _integer("variant_idx"),
    _integer("task_idx"),
    _integer("repl_idx"),
    _integer("schedule_idx"),
    _text("status"),
    _text("verdict", null=True),
    _integer("passed", null=True),
    _text("metric_name", null=True),
    Column("metric_value", REAL, nullable=True),
    _integer("duration_ms", null=True),
    _key("slot_outcome", "run_no", "variant_idx", "task_idx", "repl_idx"),
    _references("slot_outcome", "slot_commit", "run_no", "schedule_idx"),
    _check("slot_outcome", "passed", "passed IN (0, 1)"),
    **_CLUSTERED,
)
"""An index over several tables, written by triggers: committed slots in the order of the views.

Verdict and primary metric are those that count: a `grade_error` has none, although it may have a
score. `passed` is how the slot counts for the pass rate (`labledger.records.pass_rate`); null if it
does not.
"""

artifact = Table(
    "artifact",
    metadata,
    Column("artifact_no", Integer, nullable=False, info=_NUMBERED_BY_SQLITE),
    Column("sha256", LargeBinary, nullable=False),
    _integer("size"),
    Column("content", LargeBinary, nullable=True),
    _key("artifact", "artifact_no"),
    UniqueConstraint("sha256", name="uq_artifact_sha256"),
    _check("artifact", "sha256", "length(sha256) = 32"),
    _check("artifact", "size", "content IS NULL OR length(content) = size"),
    **_STRICT,
)
