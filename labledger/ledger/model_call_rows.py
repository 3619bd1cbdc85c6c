"""The rows of calls to models, and the records that a commit makes of them, as in `slot_rows`.

A row has what the gateway counted of one call, one column for each kind of tokens, and what the
provider said of its usage as canonical text. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from labledger.ledger.database.table_rows import ModelCallRow
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import AttemptResult
from labledger.records.identity import Stamp
from labledger.records.model_calls import ModelCall, Usage

SCHEMA = "model_call_record_v1"


def model_call_rows(run_no: int, result: AttemptResult) -> list[ModelCallRow]:
    """Return the rows of `model_call` for the result of an attempt, in order."""
    return [
        _row(run_no, result.schedule_idx, result.attempt, call) for call in result.model_calls
    ]


def _row(run_no: int, idx: int, attempt: int, call: ModelCall) -> ModelCallRow:
    used = call.usage
    return ModelCallRow(
        *(run_no, idx, attempt, call.call),
        *(call.started_at, call.provider, call.api, call.model, call.model_served),
        *(call.state.value, call.status, call.reason),
        input_tokens=used and used.input,
        cache_read_tokens=used and used.cache_read,
        cache_write_tokens=used and used.cache_write,
        cache_write_1h_tokens=used and used.cache_write_1h,
        output_tokens=used and used.output,
        reasoning_tokens=used and used.reasoning,
        raw_usage=None if call.raw_usage is None else canonical_json.dumps(call.raw_usage),
        first_byte_ms=call.first_byte_ms,
        duration_ms=call.duration_ms,
        waited_ms=call.waited_ms,
        request_id=call.request_id,
        reserved=call.reserved and canonical_json.dumps(call.reserved.as_json()),
    )


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
        f'"reason":{text(row.reason)},"request_id":{text(row.request_id)},'
        f'"reserved":{row.reserved or "null"},"schedule_idx":{stamp.schedule_idx},{stamped},'
        f'"started_at":{text(row.started_at)},"state":{text(row.state)},'
        f'"status":{text(row.status)},"ts":{text(stamp.ts)},"usage":{text(_usage(row))},'
        f'"waited_ms":{row.waited_ms}}}'
        for row in rows
    )


def _usage(row: ModelCallRow) -> JsonObject | None:
    if row.input_tokens is None:
        return None
    usage = {
        "input": row.input_tokens,
        "cache_read": row.cache_read_tokens,
        "cache_write": row.cache_write_tokens,
        "output": row.output_tokens,
    }
    rare = {
        "cache_write_1h": row.cache_write_1h_tokens,
        "reasoning": row.reasoning_tokens,
    }
    return usage | {name: tokens for name, tokens in rare.items() if tokens != 0}


def model_call_row_of_record(
    run_no: int, idx: int, _seq: int, _text: str, record: JsonObject
) -> ModelCallRow:
    """Return the row that a `model_call_record_v1` was made of.

    Raises `LookupError`, `TypeError` or `ValueError` if `record` is not a valid one.
    """
    call = ModelCall.from_json({name: record[name] for name in _FIELDS})
    return _row(run_no, idx, record["attempt"], call)


_FIELDS = tuple(ModelCall(1, "", "", "", "", reserved=Usage()).as_json())
"""The keys that a record has of its call."""
