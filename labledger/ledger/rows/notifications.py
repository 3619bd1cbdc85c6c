"""Notifications for the receivers of a run, and the state of their delivery.

A notification is a row for each receiver, inserted in the transaction of its event. It waits while
it has a `due_at`. Its id is a digest of ledger, run, event and subject, so an event is stored once.
The chain does not cover receivers and notifications.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from labledger import clock
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection, Database
from labledger.ledger.database.run_info import Stop
from labledger.ledger.database.sqlite import reading, translated, writable_engine
from labledger.ledger.rows.control_requests import ControlRequest
from labledger.ledger.rows.ledger_identity import ledger_id
from labledger.ledger.rows.lookup import run_number
from labledger.records import JsonObject, canonical_json
from labledger.records.pass_rate import PassCounts
from labledger.records.task_coverage import TaskCoverage
from labledger.text.control_phrases import applied_sentence
from labledger.text.escaping import escape_line
from labledger.text.notice_sentences import (
    finished_sentence,
    host_lost_sentence,
    passed_phrase,
    stopped_sentence,
)

VERSION = 1
"""The version of the payload, which `schemas/run_notification_v1.jsonschema` describes."""

MAX_TEXT = 1_000
"""A longer text of a notification is cut to this number of characters."""
MAX_VARIANTS = 50
"""The largest number of variants whose results a notification gives."""


class NoticeEvent(StrEnum):
    """An event that receivers are notified of."""

    FINISHED = "finished"
    STOPPED = "stopped"
    BUDGET_HIGH = "budget_high"
    HOST_DECLARED_LOST = "host_declared_lost"
    ERRORS_HIGH = "errors_high"
    REQUEST_APPLIED = "request_applied"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of a run."""

    event: NoticeEvent
    subject: str
    """Distinguishes events of the same kind. A run announces each subject once."""
    text: str
    """A sentence for people, without the run's id."""
    details: JsonObject = field(default_factory=dict)

    def payload(self, facts: Mapping[str, object], at: str) -> JsonObject:
        """Return the payload for receivers. `facts` describe the run."""
        return {
            "version": VERSION,
            **facts,
            "event": self.event.value,
            "at": at,
            "text": _cut(f"{facts['run_id']}: {self.text}"),
            "details": {
                name: _cut(value) if isinstance(value, str) else value
                for name, value in self.details.items()
            },
        }


def _cut(text: str) -> str:
    line = escape_line(text)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def finished(
    total_slots: int, passes: Mapping[str, PassCounts], coverage: TaskCoverage | None = None
) -> Notice:
    """Return the notice that every slot is committed. A run that was extended finishes again."""
    shown = list(passes.items())[:MAX_VARIANTS]
    rates = [
        passed_phrase(variant_id, counts.passed, counts.counted)
        for variant_id, counts in shown
        if counts.counted
    ]
    coverage = coverage or TaskCoverage(0)
    has_skipped = bool(coverage.skipped)
    return Notice(
        NoticeEvent.FINISHED,
        f"{total_slots} slots",
        finished_sentence(total_slots, rates, coverage.share if has_skipped else None),
        {
            "variants": [{"variant_id": name, **counts.as_json()} for name, counts in shown],
            **(
                {"tasks": coverage.run, "skipped_tasks": len(coverage.skipped)}
                if has_skipped
                else {}
            ),
        },
    )


def stopped(epoch: int, stop: Stop | None) -> Notice:
    """Return the notice that a coordinator ended before every slot was committed."""
    cause, message = (stop.cause, stop.message) if stop else (None, None)
    details = {"cause": cause, "message": message}
    return Notice(NoticeEvent.STOPPED, f"epoch {epoch}", stopped_sentence(message), details)


def host_lost(host: str, because: str) -> Notice:
    """Return the notice that a person declared a host lost."""
    details = {"host": host, "because": because}
    sentence = host_lost_sentence(host, because)
    return Notice(NoticeEvent.HOST_DECLARED_LOST, host, sentence, details)


def request_applied(request: ControlRequest) -> Notice:
    """Return the notice that the run's owner has applied a request."""
    outcome = request.outcome or {}
    details = {
        "request": request.number,
        "kind": request.kind.value,
        "requested_by": request.requested_by,
        "because": request.because,
        "outcome": outcome.get("text"),
    }
    text = applied_sentence(request.source, request.phrase, outcome)
    return Notice(NoticeEvent.REQUEST_APPLIED, str(request.number), text, details)


# -- receivers

ReceiverSource = Literal["run", "lab"]
"""The origin of a receiver: the command that ran the run, or the settings of the lab."""

_DELETE_RECEIVERS = "DELETE FROM run_receiver WHERE run_no = ? AND source = ?"
_INSERT_RECEIVER = statements.insert("run_receiver", unless_exists="run_no, source, receiver")
_STORED_SQL = "SELECT source, receiver FROM run_receiver WHERE run_no = ?"
_RECEIVERS_SQL = "SELECT DISTINCT receiver FROM run_receiver WHERE run_no = ? ORDER BY receiver"


def write_receivers(
    connection: Connection, run_no: int, receivers: Mapping[ReceiverSource, Iterable[str]]
) -> None:
    """Replace the receivers from these sources, in the caller's transaction."""
    for source, named in receivers.items():
        connection.execute(_DELETE_RECEIVERS, (run_no, source))
        for receiver in named:
            connection.execute(_INSERT_RECEIVER, (run_no, source, receiver))


def read_receivers(connection: Connection, run_no: int) -> dict[ReceiverSource, set[str]]:
    """Return the receivers of a run by their source."""
    receivers: dict[ReceiverSource, set[str]] = {}
    for source, receiver in connection.execute(_STORED_SQL, (run_no,)):
        receivers.setdefault(source, set()).add(receiver)
    return receivers


# -- announcing

_FACTS_SQL = """
SELECT run.run_id, run.experiment_id, schedule_progress.next_schedule_idx AS committed,
  schedule.total_slots
FROM run
JOIN schedule ON schedule.run_no = run.run_no
JOIN schedule_progress ON schedule_progress.run_no = run.run_no
WHERE run.run_no = ?"""
_LAST_NUMBER_SQL = "SELECT coalesce(max(notification_no), 0) FROM notification WHERE run_no = ?"
_INSERT = statements.insert("notification", unless_exists="run_no, receiver, event, subject")


def announce(connection: Connection, run_no: int, notices: Collection[Notice], now: str) -> None:
    """Insert the notices for each of a run's receivers, in the caller's transaction.

    A notice that was announced before is ignored. A run without receivers gets no row.
    """
    if not notices:
        return
    receivers = list(connection.execute(_RECEIVERS_SQL, (run_no,)).scalars())
    if not receivers:
        return
    facts = connection.execute(_FACTS_SQL, (run_no,)).one()._asdict()
    ledger = ledger_id(connection)
    number = connection.execute(_LAST_NUMBER_SQL, (run_no,)).scalar_one()
    for notice in notices:
        identity = canonical_json.digest([ledger, facts["run_id"], notice.event, notice.subject])
        payload = notice.payload({"id": identity[:32], **facts}, now)
        text = canonical_json.dumps(payload)
        for receiver in receivers:
            number += 1
            happened = (notice.event.value, notice.subject, now, text)
            row = (run_no, number, receiver, *happened, 0, now, None, None)
            connection.execute(_INSERT, row)


# -- delivering

_IS_NEEDED_SQL = """
SELECT EXISTS (SELECT 1 FROM notification WHERE due_at IS NOT NULL) OR EXISTS (
  SELECT 1 FROM run_receiver JOIN run ON run.run_no = run_receiver.run_no WHERE run.run_id = ?)"""
_ALL_RECEIVERS_SQL = """
SELECT receiver FROM run_receiver
UNION SELECT receiver FROM notification WHERE due_at IS NOT NULL"""
_NEXT_SQL = """
SELECT waiting.run_no, run.run_id, waiting.notification_no, waiting.receiver, waiting.attempts
FROM notification AS waiting
JOIN run ON run.run_no = waiting.run_no
WHERE waiting.due_at IS NOT NULL AND (?1 IS NULL OR waiting.due_at <= ?1)
  AND (?2 IS NULL OR run.run_id = ?2)
  AND NOT EXISTS (
    SELECT 1 FROM notification AS earlier
    WHERE earlier.run_no = waiting.run_no AND earlier.receiver = waiting.receiver
      AND earlier.due_at IS NOT NULL AND earlier.notification_no < waiting.notification_no)
ORDER BY waiting.run_no, waiting.notification_no"""
_PAYLOAD_SQL = """
SELECT payload FROM notification WHERE run_no = ? AND notification_no = ? AND due_at IS NOT NULL"""
_SETTLE = statements.update(
    "notification",
    "run_no = ?4 AND notification_no = ?5 AND due_at IS NOT NULL",
    attempts="attempts + 1",
    due_at="?1",
    delivered_at="?2",
    problem="?3",
)
_DISCARD = statements.update("notification", "due_at IS NOT NULL AND run_no = ?1", due_at="NULL")


def delivery_is_needed(path: Path, run_id: str) -> bool:
    """Return whether a notification of any run waits, or this run may get one."""
    with reading(path, "read the notifications") as connection:
        return bool(connection.execute(_IS_NEEDED_SQL, (run_id,)).scalar_one())


def stored_receivers(path: Path) -> frozenset[str]:
    """Return every receiver of any run, and the receivers of waiting notifications."""
    with reading(path, "read the receivers") as connection:
        return frozenset(connection.execute(_ALL_RECEIVERS_SQL).scalars())


@dataclass(frozen=True, slots=True)
class WaitingNotification:
    """The next notification of a receiver of a run. Later ones wait for it."""

    run_no: int
    run_id: str
    notification_no: int
    receiver: str
    attempts: int
    """How often its delivery has failed."""


class NotificationOutbox:
    """The notifications that wait, on a connection that may write, for one thread.

    It locks nothing between its transactions, however long a delivery takes.
    """

    def __init__(self, path: Path, engine: Database) -> None:
        self._path = path
        self._engine = engine
        self._connection = engine.connect()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the outbox of an existing, current ledger. Raises `LedgerError`."""
        with translated("open the ledger", path):
            return cls(path, writable_engine(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._engine.dispose()

    def waiting(
        self, *, due_by: str | None = None, run_id: str | None = None
    ) -> list[WaitingNotification]:
        """Return the next notification for each receiver of each run, the oldest run first.

        With `due_by`, returns only notifications that are due by then; with `run_id`, only
        notifications of that run.
        """
        with translated("read the notifications", self._path):
            rows = self._connection.execute(_NEXT_SQL, (due_by, run_id)).all()
        return [WaitingNotification(*row) for row in rows]

    def payload(self, waiting: WaitingNotification) -> bytes | None:
        """Return the payload for the receiver; None if the notification no longer waits."""
        key = (waiting.run_no, waiting.notification_no)
        with translated("read a notification", self._path):
            payload = self._connection.execute(_PAYLOAD_SQL, key).scalar()
        return None if payload is None else str(payload).encode()

    def store_delivered(self, waiting: WaitingNotification) -> None:
        """Store that a receiver has accepted a notification."""
        self._settle(waiting, None, clock.utc_now(), None)

    def store_failed(self, waiting: WaitingNotification, problem: str, retry_at: str) -> None:
        """Store why a receiver did not accept a notification, and when it is tried again."""
        self._settle(waiting, retry_at, None, problem)

    def _settle(
        self,
        waiting: WaitingNotification,
        due_at: str | None,
        delivered_at: str | None,
        problem: str | None,
    ) -> None:
        values = (due_at, delivered_at, problem, waiting.run_no, waiting.notification_no)
        action = f"store how a notification of run {waiting.run_id} was delivered"
        with translated(action, self._path), self._connection.begin() as connection:
            connection.execute(_SETTLE, values)

    def discard(self, run_id: str) -> int:
        """Discard a run's waiting notifications; return their number. Raises `RunNotFound`."""
        action = f"discard the notifications of run {run_id}"
        with translated(action, self._path), self._connection.begin() as connection:
            return connection.execute(_DISCARD, (run_number(connection, run_id),)).rowcount


# -- listing

_LIST_SQL = """
SELECT run.run_id, notification.receiver, notification.payload, notification.attempts,
  notification.due_at, notification.delivered_at, notification.problem
FROM notification JOIN run ON run.run_no = notification.run_no
WHERE (?1 IS NULL OR run.run_id = ?1) AND (?2 OR notification.due_at IS NOT NULL)
ORDER BY notification.run_no, notification.notification_no"""


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification, as stored in the ledger."""

    run_id: str
    receiver: str
    payload: str
    attempts: int
    due_at: str | None
    delivered_at: str | None
    problem: str | None


def list_notifications(
    connection: Connection, run_id: str | None, *, with_settled: bool
) -> Iterator[NotificationRow]:
    """Yield the notifications of a run, or of all runs, in order."""
    for row in connection.execute(_LIST_SQL, (run_id, with_settled)):
        yield NotificationRow(*row)
