"""The screen of all runs: progress, coordinator, cost, and waiting requests of each run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from labledger import clock
from labledger.api.run_state import SORT_KEYS, RunSelection, controls_of, sort_runs
from labledger.errors import InvalidInput, Problem, RunNotFound
from labledger.ledger.database.run_info import RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.reading.progress_rows import OpenSlot, ProgressRow
from labledger.ledger.rows.control_requests import Controls
from labledger.records import JsonObject
from labledger.records.outcomes import RunStatus
from labledger.view.ledgers import DocumentSource
from labledger.view.parameters import Parameters

PARAMETERS = ("q", "experiment", "status", "tag", "sort", "reverse", "after")
TO_THE_SECOND = 19
"""The length of a timestamp down to the second."""
_LEAST = 3
"""The smallest number of slots from which a rate is computed."""
PAGE = 200
"""The maximum number of runs on a page."""


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return a page of the matching runs, with the cursor of the next page in `next`.

    `after` is the id of the last run on the previous page. If that run no longer exists, the first
    page is returned.
    """
    selection = _selection(parameters)
    words = (parameters.text("q") or "").casefold().split()
    sort = parameters.choice("sort", SORT_KEYS)
    is_reverse = parameters.choice("reverse", ("no", "yes")) == "yes"
    runs = source.kept.get(("runs",), None, _KnownRuns).value.read(source.reader)
    fitting = [
        run
        for run in runs
        if selection.includes(run) and all(word in _searched(run) for word in words)
    ]
    ordered = sort_runs(fitting, sort, reverse=is_reverse)
    after = parameters.text("after")
    start = next((n + 1 for n, run in enumerate(ordered) if run.run_id == after), 0)
    page_runs = ordered[start : start + PAGE]
    has_ended = not any(source.ledger.is_owned(run) for run in runs)
    # Spending between commits is read at most once a second.
    committed = sum(row.committed for row in source.reader.progress())
    version = (committed, None if has_ended else clock.utc_now()[:TO_THE_SECOND])
    costs, incomplete = source.kept.get(
        ("costs",),
        version,
        lambda: (source.ledger.costs(), source.ledger.incomplete_costs()),
        is_final=has_ended,
    ).value
    following = page_runs[-1].run_id if start + PAGE < len(ordered) else None
    query = {name: parameters.text(name) for name in PARAMETERS if name != "after"} | {"sort": sort}
    recent = source.reader.recent_commits([run.run_id for run in page_runs])
    return {
        "lab": str(source.lab.root),
        "runs": [
            _run(source, run, costs, recent.get(run.run_id))
            | {"cost_is_incomplete": run.run_id in incomplete}
            for run in page_runs
        ],
        "total": len(ordered),
        "next": following,
        "next_url": None if following is None else _url(query | {"after": following}),
        "query": query,
        "statuses": [*RunStatus],
        "sort_keys": list(SORT_KEYS),
    }


def _url(query: Mapping[str, str | None]) -> str:
    return f"/?{urlencode({name: value for name, value in query.items() if value})}"


class _KnownRuns:
    """The runs of a ledger as last read, because a lab may have thousands. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[ProgressRow, RunInfo]] = {}

    def read(self, reader: LedgerReader) -> list[RunInfo]:
        """Return every run. Only changed and running ones are read again."""
        rows = reader.progress()
        with self._lock:
            before, self._known = self._known, {}
            for row in rows:
                known_run = before.get(row.run_id)
                if known_run is None or known_run[0] != row or row.status == RunStatus.RUNNING:
                    # Leave out a run that was deleted in the meantime.
                    with suppress(RunNotFound):
                        self._known[row.run_id] = row, reader.run(row.run_id)
                else:
                    self._known[row.run_id] = known_run
            return [run for _, run in self._known.values()]


def _selection(parameters: Parameters) -> RunSelection:
    status = parameters.text("status")
    if status is not None and status not in [*RunStatus]:
        message = f"found {status[:80]!r}; expected one of {', '.join(RunStatus)}"
        raise InvalidInput("the request", [Problem("status", message)])
    return RunSelection(
        parameters.text("experiment"),
        None if status is None else RunStatus(status),
        None,
        parameters.text("tag"),
    )


def _searched(run: RunInfo) -> str:
    return " ".join((run.run_id, run.experiment_id, run.name, *run.tags)).casefold()


def _run(
    source: DocumentSource, run: RunInfo, costs: dict[str, float], recent: tuple[int, str] | None
) -> JsonObject:
    is_owned = source.ledger.is_owned(run)
    open_slots = source.reader.open_slots(run.run_id) if is_owned else []
    staged = sum(bool(slot.final) for slot in open_slots)
    rate = rate_per_h(recent, finished_of_owner(run, open_slots)) if is_owned else None
    slots_left = run.total_slots - run.next_schedule_idx - staged
    requests = source.ledger.control_requests(run.run_id)
    controls = controls_of(run, requests)
    return {
        "run_id": run.run_id,
        "experiment_id": run.experiment_id,
        "name": run.name,
        "status": run.status.value,
        "committed": run.next_schedule_idx,
        "total_slots": run.total_slots,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "ended_at": run.ended_at,
        "owner": owner(run) if is_owned else None,
        "lost": run.status is RunStatus.RUNNING and not is_owned,
        "stop": None if run.stop is None else run.stop.as_json(),
        "cost_usd": costs.get(run.run_id),
        "budget": dict(run.budget),
        "rate_per_h": rate,
        "eta_s": seconds_left(slots_left, rate, controls),
        "tags": list(run.tags),
        "notes": len(source.ledger.notes(run.run_id)),
        "paused": [str(latch) for latch in controls.pauses],
        "waiting_requests": sum(request.waits for request in requests),
    }


def owner(run: RunInfo) -> Any:
    """Return a run's owner: machine, process id, and the time since when."""
    if run.lease is None:
        return None
    holder = run.lease.owner
    return {"host": holder.machine, "pid": holder.pid, "since": run.lease.acquired_at}


def finished_of_owner(run: RunInfo, slots: Iterable[OpenSlot]) -> int:
    """Return how many results of trials that the current owner dispatched wait to be committed."""
    since = "" if run.lease is None else run.lease.acquired_at
    return sum(bool(slot.final) and slot.since >= since for slot in slots)


def rate_per_h(recent: tuple[int, str] | None, staged: int) -> float | None:
    """Return how many slots an hour were finished recently, or None if there were too few.

    `recent` is the number of slots committed since a time, and that time. `staged` is the number of
    finished slots that wait to be committed.
    """
    if recent is None or recent[0] + staged < _LEAST:
        return None
    count, since = recent
    elapsed = clock.now() - clock.parse(since)
    return (count + staged) / max(elapsed, timedelta(seconds=1)).total_seconds() * 3600


def seconds_left(slots_left: int, rate: float | None, controls: Controls) -> float | None:
    """Return the seconds until a run ends, from its remaining slots and its rate per hour.

    None if unknown, also while the run, or variants or tasks of it, are paused.
    """
    return slots_left / rate * 3600 if rate and slots_left and not controls.holds_slots else None
