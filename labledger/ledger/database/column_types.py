"""The type of each column of the views, for files and frames that need one.

SQLite types values, not columns. A name has the same type in every view, except in `_EXCEPTIONS`
(``view.column``). A column in none of the sets is text. Tests compare the types with ledgers, and
require that every name belongs to a column.
"""

from __future__ import annotations

from enum import StrEnum

from labledger.records.outcomes import SlotStatus, Verdict
from labledger.records.resource_use import NUMBERS


class ColumnKind(StrEnum):
    """The type of a view's column."""

    TEXT = "string"
    INTEGER = "int64"
    REAL = "double"
    TIME = "time"
    """Text with a time in the ledger's form."""


_INTEGERS = frozenset(
    {
        *(*SlotStatus, *Verdict),
        *(name for name, number in NUMBERS.items() if number.type is int),
        *("agent_duration_ms", "agent_exit_status", "agent_timed_out", "attempt", "attempts"),
        *("baseline_passed", "baseline_schedule_idx", "begun", "cache_read_tokens"),
        *("cache_write_1h_tokens", "cache_write_tokens", "call", "calls", "committed"),
        *("cost_known", "cost_unknown", "counts", "despite_verdict", "duration_ms"),
        *("events_dropped", "exit_status", "failed", "first_byte_ms", "first_schedule_idx"),
        *("from_tokens", "generation", "generations", "grade_errors", "grader_duration_ms"),
        *("grader_exit_status", "grader_timed_out", "infra_errors", "input_tokens", "is_copied"),
        *("left_out", "losses", "not_passed", "note_no", "output_tokens", "owner_pid", "pairs"),
        *("part", "passed", "reasoning_tokens", "refused", "repl_idx", "replayed", "request_no"),
        *("row_seq", "runs", "runs_that_differ", "schedule_idx", "scheduled", "scored"),
        *("setup_duration_ms", "setup_exit_status", "slots", "step", "superseded_by"),
        *("supersedes", "ties", "tokens_in", "tokens_out", "trials", "trials_ms", "unknown"),
        *("unpaired", "unscored", "variants", "waited_ms", "wins"),
    }
)
_REALS = frozenset(
    {
        *(name for name, number in NUMBERS.items() if number.type is float),
        *("baseline_pass_rate", "cache_read_usd", "cache_write_1h_usd", "cache_write_usd"),
        *("claimed_cost_usd", "claimed_tokens_in", "claimed_tokens_out", "cost_usd", "fees_usd"),
        *("input_usd", "number", "output_usd", "pass_rate", "pass_rate_of_all"),
        *("primary_metric_mean", "primary_metric_value", "temperature", "waited_s"),
    }
)
_EXCEPTIONS = {
    "model_calls.cost_unknown": ColumnKind.TEXT,
    "model_calls.status": ColumnKind.INTEGER,
    # A time in an agent's log may have any form.
    "steps.said_at": ColumnKind.TEXT,
    # Metrics are any number that an agent or the gateway reported.
    **dict.fromkeys(
        ("trial_facts.tokens_in", "trial_facts.tokens_out", "run_history.tokens_in"),
        ColumnKind.REAL,
    ),
    "run_history.tokens_out": ColumnKind.REAL,
}


def column_kind(view: str, column: str) -> ColumnKind:
    """Return the type of a view's column."""
    if (kind := _EXCEPTIONS.get(f"{view}.{column}")) is not None:
        return kind
    if column in _INTEGERS:
        return ColumnKind.INTEGER
    if column in _REALS:
        return ColumnKind.REAL
    return ColumnKind.TIME if column.endswith("_at") else ColumnKind.TEXT


def common_kind(column: str) -> ColumnKind:
    """Return the type that a column of this name has in most views; text if no view has it."""
    return column_kind("", column)
