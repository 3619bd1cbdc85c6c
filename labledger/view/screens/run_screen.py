"""The screen of a run, and two documents that open pages request: `changes` and `now`.

`changes` contains new commits, and `now` what changes between commits. Both are small however
large the run is.
"""

from __future__ import annotations

import platform
from datetime import datetime
from itertools import pairwise

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.ledger.reading.progress_rows import OpenSlot, SeriesPoint
from labledger.records import JsonObject
from labledger.records.json_codec import to_json
from labledger.view.ledgers import DocumentSource
from labledger.view.live_outputs import PREPARING
from labledger.view.parameters import Parameters
from labledger.view.screens import control_screen, grid_screen, run_sentences
from labledger.view.screens.run_facts import RunFacts

PAGE = 200
_MAX_PAGE = 1000
_MAX_RUNNING = 200
"""The maximum number of running trials that the document lists."""
PARAMETERS = ("after", "limit")
"""The parameters of `changes`."""


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return the state of a run, with the results of its variants so far."""
    facts = RunFacts(source, parameters.run_id)
    last_failed = facts.last_failed
    return {
        **facts.state().as_json(),
        "regrades": facts.run.regrades,
        "takes_requests": facts.name == facts.run_id,
        **_now(facts),
        **_totals(facts),
        "spending": [list(point) for point in facts.series],
        "throughput": _throughput(facts.series),
        "last_failed": None if last_failed is None else last_failed._asdict(),
        "next": facts.run.next_schedule_idx,
        "grid": grid_screen.document(source, parameters),
    }


def now(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return what changes between the commits of a run."""
    facts = RunFacts(source, parameters.run_id)
    return _now(facts) | run_sentences.sentences(facts)


def changes(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return the committed slots from number `after` on, and the totals."""
    facts = RunFacts(source, parameters.run_id)
    after = parameters.number("after", 0)
    limit = parameters.number("limit", PAGE, 1, _MAX_PAGE)
    slots = facts.reader.committed_slots(facts.scored_id, after, limit)
    last_failed = facts.last_failed
    return {
        "run_id": facts.name,
        "after": after,
        "slots": [slot._asdict() for slot in slots],
        "next": slots[-1].schedule_idx + 1 if slots else min(after, facts.run.next_schedule_idx),
        "committed": facts.run.next_schedule_idx,
        "total": facts.run.total_slots,
        "status": facts.run.status.value,
        "progress": facts.progress,
        **_totals(facts),
        "point": _newest_point(facts),
        "last_failed": None if last_failed is None else last_failed._asdict(),
    }


def _newest_point(facts: RunFacts) -> list[object] | None:
    """Return the last point of the series if it belongs to the newest commit, else None."""
    newest = facts.series[-1] if facts.series else None
    if newest is None or newest.schedule_idx + 1 != facts.run.next_schedule_idx:
        return None
    return list(newest)


def _totals(facts: RunFacts) -> JsonObject:
    return {
        "variants": facts.variants(),
        "as_of": facts.counts_as_of,
        "spent": to_json(dict(facts.spent)),
        "errors": [failure.as_json() for failure in facts.failures],
        "interim": run_sentences.interim(facts),
        **run_sentences.sentences(facts),
    }


def _now(facts: RunFacts) -> JsonObject:
    run = facts.run
    return {
        "run_id": facts.name,
        "status": run.status.value,
        "committed": run.next_schedule_idx,
        "total": run.total_slots,
        "updated_at": run.updated_at,
        "ended_at": run.ended_at,
        "owned": facts.is_owned,
        "owner": facts.owner,
        "lost": facts.is_lost,
        "progress": facts.progress,
        "spent": to_json(dict(facts.spent)),
        "hosts": facts.hosts(),
        "running": [_running(facts, slot) for slot in facts.running[:_MAX_RUNNING]],
        "waiting": [
            {"schedule_idx": slot.schedule_idx, "attempt": slot.attempt, "final": bool(slot.final)}
            for slot in facts.waiting[:_MAX_RUNNING]
        ],
        **control_screen.requests_of(facts.requests, facts.pauses),
    }


def _running(facts: RunFacts, slot: OpenSlot) -> JsonObject:
    attempt = facts.attempt(slot)
    is_here = slot.host == platform.node()
    phase, lines, withheld = attempt.phase or (PREPARING if is_here else None), list[str](), None
    if phase is None:
        withheld = f"its folder is on {slot.host}, not on this machine"
    elif phase != PREPARING:
        try:
            lines = facts.source.live.last_lines(facts.reader, attempt, phase)
        except LabLedgerError as error:
            withheld = error.message
    return {
        "schedule_idx": slot.schedule_idx,
        "variant_id": slot.variant_id,
        "task_id": slot.task_id,
        "repl_idx": slot.repl_idx,
        "attempt": slot.attempt,
        "host": slot.host,
        "since": slot.since,
        "seconds": round(facts.phase_s(slot), 1),
        "phase": phase,
        "paused": not facts.has_begun(slot) and facts.pauses_slot(slot),
        "last_lines": lines,
        "withheld": withheld,
    }


def _throughput(series: list[SeriesPoint]) -> list[list[str | float]]:
    """Return how many slots an hour were committed between the points of a series."""
    points: list[list[str | float]] = []
    begin: tuple[int, datetime] | None = None
    for one, two in pairwise(series):
        begin = begin or (one.schedule_idx, clock.parse(one.committed_at))
        passed_s = (clock.parse(two.committed_at) - begin[1]).total_seconds()
        # Slots that were committed together, such as after a slow one, are one point.
        if passed_s >= 1:
            per_hour = (two.schedule_idx - begin[0]) / passed_s * 3600
            points.append([two.committed_at, round(per_hour, 2)])
            begin = None
    return points
