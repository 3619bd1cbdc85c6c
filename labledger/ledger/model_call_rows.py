"""The rows of calls to models, and the records that a commit makes of them, as in `slot_rows`.

A row has what the gateway counted of one call, one column for each kind of tokens, and what the
provider said of its usage as canonical text. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields
from typing import Any

from labledger.ledger.database.table_rows import ModelCallRow
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import AttemptResult
from labledger.records.identity import Stamp
from labledger.records.model_calls import ModelCall, Usage

SCHEMA = "model_call_record_v1"


def model_call_rows(run_no: int, result: AttemptResult) -> list[ModelCallRow]:
    """Return the rows of `model_call` for the result of an attempt, in order."""
    return [_row(run_no, result.schedule_idx, result.attempt, call) for call in result.model_calls]


def _row(run_no: int, idx: int, attempt: int, call: ModelCall) -> ModelCallRow:
    columns: dict[str, Any] = {name: getattr(call, name) for name in _SAME_NAMES}
    columns |= zip(_TOKENS, _NO_TOKENS if call.usage is None else astuple(call.usage), strict=True)
    columns["state"] = call.state.value
    columns["raw_usage"] = _text(call.raw_usage)
    columns["reserved"] = None if call.reserved is None else _text(call.reserved.as_json())
    return ModelCallRow(run_no, idx, attempt, **columns)


def _text(value: JsonObject | None) -> str | None:
    return None if value is None else canonical_json.dumps(value)


_TOKENS = tuple(f"{field.name}_tokens" for field in fields(Usage))
"""The columns of a call's usage; all are null if it is not known."""
_NO_TOKENS = (None,) * len(_TOKENS)
_SAME_NAMES = tuple(name for name in ModelCallRow._fields[3:] if name not in _TOKENS)
"""The columns after an attempt's key that have the name of a field."""


def model_call_records(stamp: Stamp, rows: Iterable[ModelCallRow]) -> tuple[str, ...]:
    """Return the `model_call_record_v1` of each row, as canonical text.

    `stamp` is that of the slot; each record has the attempt of its call.
    """
    text = canonical_json.dumps
    ids = text(stamp.ids.as_json())
    stamped = f'"schema_version":"{SCHEMA}","slot_commit_id":{text(stamp.slot_commit_id)}'
    return tuple(
        f'{{"api":{text(row.api)},"attempt":{row.attempt},"call":{row.call},'
        f'"duration_ms":{text(row.duration_ms)},"first_byte_ms":{text(row.first_byte_ms)},'
        f'"ids":{ids},"model":{text(row.model)},"model_served":{text(row.model_served)},'
        f'"provider":{text(row.provider)},"raw_usage":{row.raw_usage or "null"},'
        f'"reason":{text(row.reason)},{_REPLAYED if row.replayed else ""}'
        f'"request_id":{text(row.request_id)},'
        f'"reserved":{row.reserved or "null"},"schedule_idx":{stamp.schedule_idx},{stamped},'
        f'"started_at":{text(row.started_at)},"state":{text(row.state)},'
        f'"status":{text(row.status)},"ts":{text(stamp.ts)},"usage":{text(_usage(row))},'
        f'"waited_ms":{row.waited_ms}}}'
        for row in rows
    )


_REPLAYED = '"replayed":true,'
"""What records of replayed calls alone have."""


def _usage(row: ModelCallRow) -> JsonObject | None:
    tokens: tuple[Any, ...] = row[_FIRST_TOKENS : _FIRST_TOKENS + len(_TOKENS)]
    return None if row.input_tokens is None else Usage(*tokens).as_json()


_FIRST_TOKENS = ModelCallRow._fields.index(_TOKENS[0])


def model_call_row_of_record(
    run_no: int, idx: int, _seq: int, _text: str, record: JsonObject
) -> ModelCallRow:
    """Return the row that a `model_call_record_v1` was made of.

    Raises `LookupError`, `TypeError` or `ValueError` if `record` is not a valid one.
    """
    return _row(run_no, idx, record["attempt"], call_of_record(record))


def call_of_record(record: JsonObject) -> ModelCall:
    """Return the call of a `model_call_record_v1`. Raises as `model_call_row_of_record`."""
    return ModelCall.from_json(
        {name: record[name] for name in _CALL_FIELDS}
        | {name: record[name] for name in ("replayed",) if name in record}
    )


_CALL_FIELDS = tuple(ModelCall(1, "", "", "", "", reserved=Usage()).as_json())
"""The keys that each record has of its call."""
