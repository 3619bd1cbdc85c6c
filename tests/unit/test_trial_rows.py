"""The one mapping between a trial's result, its rows and its record."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sample_ledgers as kit

from labledger.ledger.rows import slot_rows
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.identity import Stamp
from labledger.records.outcomes import Reason, SlotStatus

STAMP_FIELDS = {"schema_version", "schedule_idx", "slot_commit_id", "row_seq", "ts", "ids"}


@pytest.fixture
def result() -> AttemptResult:
    return replace(
        kit.result(1, status=SlotStatus.GRADE_ERROR, reason=Reason.GRADER_TIMEOUT),
        phases={"agent": Phase(0, 5), "grader": Phase(124, 9, timed_out=True)},
        message=None,
        outcome=None,
    )


def record_of(result: AttemptResult) -> str:
    stamp = Stamp(
        result.ids, result.schedule_idx, result.slot_commit_id, result.attempt, result.ended_at
    )
    attempts = [slot_rows.attempt_row(1, result)]
    return slot_rows.trial_record(stamp, slot_rows.trial_row(1, result), attempts)


def test_a_record_makes_its_rows_again(result: AttemptResult) -> None:
    """The record holds every column of both rows, and makes the same rows again."""
    record = json.loads(record_of(result))
    row = slot_rows.trial_row(1, result)
    assert slot_rows.trial_row_of_record(1, 1, record) == row
    assert slot_rows.attempt_rows_of_record(1, 1, record) == [slot_rows.attempt_row(1, result)]
    assert (type(row.status), row.reason, row.grader_timed_out) == (str, "grader_timeout", 1)
    assert set(record) - STAMP_FIELDS - set(row._fields) == {"phases", "image", "attempts"}
    assert record["phases"]["setup"] is None


@pytest.mark.parametrize("outcome", [None, "success"])
def test_a_field_that_came_later(
    result: AttemptResult, monkeypatch: pytest.MonkeyPatch, outcome: str | None
) -> None:
    """A null optional column is not in the record, as in records of earlier versions."""
    before = json.loads(record_of(result))
    monkeypatch.setattr(slot_rows, "OPTIONAL", ("outcome",))
    result = replace(result, outcome=outcome)
    record = json.loads(record_of(result))
    assert record == ({**before, "outcome": outcome} if outcome else _without(before, "outcome"))
    assert slot_rows.trial_row_of_record(1, 1, record) == slot_rows.trial_row(1, result)
    with pytest.raises(KeyError, match="message"):
        slot_rows.trial_row_of_record(1, 1, _without(record, "message"))


def _without(record: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in record.items() if key != name}
