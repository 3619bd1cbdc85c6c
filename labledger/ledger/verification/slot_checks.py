"""Check that the rows of committed slots are those that were committed, a range of slots at a time.

Records are made again from the rows, and digests from these records. Rows are made again from the
records, so that every column is compared. If a range cannot be read, its slots are read one by
one: damage to one slot hides nothing about the others. Verification calls this module, in several
processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from labledger.ledger.commit_rows import digest_chain, trial_rows
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import DRIVER
from labledger.ledger.read import commit_stream
from labledger.ledger.read.commit_stream import Commit
from labledger.ledger.verification import chain_check, derived_copies
from labledger.records import canonical_json
from labledger.records.artifacts import REFERENCE
from labledger.records.identity import slot_commit_id
from labledger.records.slot_records import SlotRecords
from labledger.storage.artifact_store import ArtifactStore

UNREADABLE = (
    DRIVER.Error,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""Exceptions from reading damaged rows: texts that are not UTF-8 or JSON, unknown statuses, missing
rows, pages that SQLite cannot read."""

CommitCheck = Callable[[str, Commit], Iterable[str]]
"""Yields the problems of a commit of the run with this id, as sentences."""

Message = tuple[int | None, str]
"""A problem in a sentence, with its slot or None."""

_ARTIFACT_SQL = "SELECT content, size FROM artifact WHERE sha256 = ?"
_PREVIOUS_COMMIT_SQL = """
SELECT schedule_idx, chain_digest FROM slot_commit WHERE run_no = ? AND schedule_idx < ?
ORDER BY schedule_idx DESC LIMIT 1"""
_GENESIS_SQL = "SELECT genesis_digest FROM schedule WHERE run_no = ?"
_TRIALS_SQL = f"{row_sql.select('trial')} AND schedule_idx >= ? AND schedule_idx < ?"
_MAX_REMEMBERED = 10_000
"""How many artifacts are remembered as unchanged."""


@dataclass
class CheckedSlots:
    """How many slots and artifacts were checked, and the problems in them."""

    slots: int = 0
    artifacts: int = 0
    messages: list[Message] = field(default_factory=list)

    def add(self, other: CheckedSlots) -> None:
        self.slots += other.slots
        self.artifacts += other.artifacts
        self.messages += other.messages


class SlotChecks:
    """Checks ranges of slots of a ledger on one connection."""

    def __init__(
        self,
        connection: Connection,
        store: ArtifactStore | None,
        extra_check: CommitCheck | None = None,
    ) -> None:
        self._driver: Any = connection.driver
        self._store = store
        self._extra_check = extra_check
        self._unchanged: set[str] = set()
        """Digests of artifacts that were checked already: many slots share the same ones."""

    def check(self, run_no: int, run_id: str, start: int, stop: int) -> CheckedSlots:
        """Check the committed slots from `start` to `stop` (exclusive)."""
        try:
            checked = CheckedSlots()
            for messages in self._checks(run_no, run_id, start, stop, checked):
                checked.messages += messages
            return checked
        except UNREADABLE:
            if stop - start == 1:
                return self._check_slot(run_no, run_id, start)
        middle = (start + stop) // 2
        checked = self.check(run_no, run_id, start, middle)
        checked.add(self.check(run_no, run_id, middle, stop))
        return checked

    def _check_slot(self, run_no: int, run_id: str, idx: int) -> CheckedSlots:
        """Check a slot that some checks cannot read; the others still report their problems."""
        checked = CheckedSlots(slots=1)
        for check in self._checks(run_no, run_id, idx, idx + 1, CheckedSlots()):
            try:
                checked.messages += check
            except UNREADABLE as error:
                checked.messages.append(
                    (idx, f"the slot's rows are not as labledger writes them: {error}")
                )
        return checked

    def _checks(
        self, run_no: int, run_id: str, start: int, stop: int, checked: CheckedSlots
    ) -> tuple[Iterator[Message], ...]:
        return (
            self._check_commits(run_no, run_id, start, stop, checked),
            derived_copies.find_wrong_columns(self._driver, run_no, start, stop),
        )

    def _check_commits(
        self, run_no: int, run_id: str, start: int, stop: int, checked: CheckedSlots
    ) -> Iterator[Message]:
        """Compare every commit with its digests and the chain."""
        previous = self._driver.execute(_PREVIOUS_COMMIT_SQL, (run_no, start)).fetchone()
        if previous is None:
            (head,) = self._driver.execute(_GENESIS_SQL, (run_no,)).fetchone() or (None,)
            next_idx = 0
        else:
            next_idx, head = previous[0] + 1, previous[1]
        part_digests = dict(self._driver.execute(chain_check.PARTS_SQL, (run_no,)))
        trials = {row[1]: row for row in self._driver.execute(_TRIALS_SQL, (run_no, start, stop))}
        for commit in commit_stream.commits(
            _Rows(self._driver), run_id, run_no, start, stop, holds_events=False
        ):
            idx = commit.records.schedule_idx
            checked.slots += 1
            if idx != next_idx:
                yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
                head = None
            if head is not None:
                head = digest_chain.with_part(head, part_digests.get(idx))
            messages = [
                *_check_digests(run_id, commit, head),
                *_check_trial_columns(trials.get(idx), commit.records),
            ]
            messages += self._check_references(commit.records, checked)
            yield from ((idx, message) for message in messages)
            if self._extra_check is not None:
                yield from ((idx, message) for message in self._extra_check(run_id, commit))
            head, next_idx = commit.chain_digest, idx + 1

    def _check_references(self, records: SlotRecords, checked: CheckedSlots) -> Iterator[str]:
        """Check the artifacts that a slot's evidence refers to."""
        if self._store is None:
            return
        referred = {sha256 for line in records.evidence for sha256 in REFERENCE.findall(line)}
        checked.artifacts += len(referred)
        for sha256 in sorted(referred - self._unchanged):
            problem = self._find_damage(self._store, sha256)
            if problem is not None:
                yield f"artifact {sha256} {problem}"
                continue
            if len(self._unchanged) >= _MAX_REMEMBERED:
                self._unchanged.clear()
            self._unchanged.add(sha256)

    def _find_damage(self, store: ArtifactStore, sha256: str) -> str | None:
        """Return how an artifact differs from its digest, as the rest of a sentence, or None."""
        row = self._driver.execute(_ARTIFACT_SQL, (bytes.fromhex(sha256),)).fetchone()
        if row is None:
            return "is missing from the ledger"
        content, size = row
        if content is None:
            return store.find_damage(sha256, size)
        if canonical_json.sha256_hex(content) == sha256 and len(content) == size:
            return None
        return "was changed"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The part of a connection that `commit_stream` uses, without the cost of `Row` objects."""

    driver: Any

    def exec_driver_sql(self, sql: str, params: tuple[Any, ...]) -> Iterable[Any]:
        rows: Iterable[Any] = self.driver.execute(sql, params)
        return rows


def _check_digests(run_id: str, commit: Commit, head: str | None) -> Iterator[str]:
    """Check a commit; `head` is the chain's digest before it, None if that is unknown."""
    records = commit.records
    if commit.slot_commit_id != slot_commit_id(run_id, records.schedule_idx):
        yield "the commit's id was changed"
    if digest_chain.payload_digest(records) != commit.payload_digest:
        yield "the records are not those that were committed"
    if commit.has_trial != bool(records.trials):
        yield "a trial row was inserted"
    expected_chain_digest = digest_chain.chain_digest(
        head or "",
        commit.slot_commit_id,
        commit.epoch,
        commit.committed_at,
        commit.payload_digest,
    )
    if head is not None and expected_chain_digest != commit.chain_digest:
        yield "the commit does not follow from the one before it"


def _check_trial_columns(row: tuple[Any, ...] | None, records: SlotRecords) -> Iterator[str]:
    """Compare the columns of a trial with its record, in which a phase that did not run is null."""
    if row is not None and records.trials:
        record = json.loads(records.trials[0])
        if trial_rows.trial_row_of_record(row[0], row[1], record) != row:
            yield "the columns of the row of trial do not fit its record"
