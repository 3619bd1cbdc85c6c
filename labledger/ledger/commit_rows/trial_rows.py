"""The rows of `trial` and `attempt`, and the `trial_record_v1` that a commit makes of them.

No other module maps their columns to fields. A commit makes rows of a result and a record of the
rows; readers make that record again; import and verification make the rows of a record. A column
that has the same name in `AttemptResult` and in the record is mapped by that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from labledger.ledger.database.table_rows import AttemptRow, TrialRow
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.identity import Stamp

OPTIONAL: tuple[str, ...] = ()
"""Columns that records of earlier versions lack. If null, a record does not have the field."""

_PHASES = {
    phase: tuple(f"{phase}_{name}" for name in ("exit_status", "duration_ms", "timed_out"))
    for phase in ("setup", "agent", "grader")
}
"""The columns of each phase; all are null if it did not run."""
_RENAMED = {"image_ref", "image_id"}.union(*_PHASES.values())
_SAME_NAMES = tuple(name for name in TrialRow._fields[2:] if name not in _RENAMED)
"""The columns of `trial` after its key that have the name of a field."""
_ATTEMPT_COLUMNS = AttemptRow._fields[2:]


def _values(names: Iterable[str]) -> attrgetter[tuple[Any, ...]]:
    """Return a function that returns these attributes of a result, enumerations as text."""
    return attrgetter(*("status.value" if name == "status" else name for name in names))


_trial_values, _attempt_values = _values(_SAME_NAMES), _values(_ATTEMPT_COLUMNS)


def trial_row(run_no: int, result: AttemptResult) -> TrialRow:
    """Return the row of `trial` for the result of a slot's last attempt."""
    columns: dict[str, Any] = dict(zip(_SAME_NAMES, _trial_values(result), strict=True))
    for phase, names in _PHASES.items():
        columns |= zip(names, _phase_columns(result.phases.get(phase)), strict=True)
    columns |= {"image_ref": result.image_ref, "image_id": result.image_id}
    return TrialRow(run_no, result.schedule_idx, **columns)


def attempt_row(run_no: int, result: AttemptResult) -> AttemptRow:
    """Return the row of `attempt` for the result of an attempt."""
    return AttemptRow(run_no, result.schedule_idx, *_attempt_values(result))


def trial_record(stamp: Stamp, trial: TrialRow, attempts: Sequence[AttemptRow]) -> str:
    """Return the `trial_record_v1` of these rows, as canonical text."""
    columns = trial._asdict()
    record = {
        **stamp.as_json("trial_record_v1"),
        **{name: columns[name] for name in _SAME_NAMES},
        "phases": {
            phase: _phase(*(columns[name] for name in names)) for phase, names in _PHASES.items()
        },
        "image": {"ref": trial.image_ref, "id": trial.image_id},
        "attempts": [dict(zip(_ATTEMPT_COLUMNS, row[2:], strict=True)) for row in attempts],
    }
    for name in OPTIONAL:
        if record[name] is None:
            del record[name]
    return canonical_json.dumps(record)


def trial_row_of_record(run_no: int, idx: int, record: JsonObject) -> TrialRow:
    """Return the row of `trial` that a `trial_record_v1` was made of.

    Raises `LookupError`, `TypeError` or `ValueError` if `record` is not a valid one.
    """
    columns: dict[str, Any] = dict.fromkeys(OPTIONAL) | {
        name: record[name] for name in _SAME_NAMES if name in record or name not in OPTIONAL
    }
    for phase, names in _PHASES.items():
        columns |= zip(names, _phase_columns_of_record(record["phases"][phase]), strict=True)
    columns |= {"image_ref": record["image"]["ref"], "image_id": record["image"]["id"]}
    return TrialRow(run_no, idx, **columns)


def fits_its_record(row: TrialRow) -> bool:
    """Return whether `trial_row_of_record` makes this row again of its `trial_record`.

    Only the columns of phases can say more than their record, in which a phase that did not run is
    null. Raises `TypeError` if one of them is not a number.
    """
    columns = row._asdict()
    phases = (tuple(columns[name] for name in names) for names in _PHASES.values())
    return all(_phase_columns_of_record(_phase(*phase)) == phase for phase in phases)


def attempt_rows_of_record(run_no: int, idx: int, record: JsonObject) -> list[AttemptRow]:
    """Return the rows of `attempt` that a `trial_record_v1` was made of.

    Raises as `trial_row_of_record` does.
    """
    return [AttemptRow(run_no, idx, **fields) for fields in record["attempts"]]


_PhaseColumns = tuple[int | None, int | None, int | None]


def _phase_columns(phase: Phase | None) -> _PhaseColumns:
    if phase is None:
        return None, None, None
    return phase.exit_status, phase.duration_ms, int(phase.timed_out)


def _phase(exit_status: int | None, duration_ms: int | None, timed_out: int | None) -> Any:
    if duration_ms is None:
        return None
    return {"exit_status": exit_status, "duration_ms": duration_ms, "timed_out": bool(timed_out)}


def _phase_columns_of_record(phase: JsonObject | None) -> _PhaseColumns:
    if phase is None:
        return None, None, None
    return phase["exit_status"], phase["duration_ms"], int(phase["timed_out"])
