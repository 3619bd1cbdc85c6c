"""Check that the rows of committed slots are as they were committed, by ranges of slots.

Records and digests are computed again from the rows, and rows from the records, so every column is
compared. If a range cannot be read, its slots are read one by one, so damage to one slot hides
nothing about the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection, batched
from labledger.ledger.database.sqlite import DRIVER
from labledger.ledger.database.table_rows import COLUMNS, KEYS
from labledger.ledger.reading import committed_rows
from labledger.ledger.reading.committed_rows import Commit
from labledger.ledger.rows import digest_chain, slot_rows
from labledger.ledger.rows.slot_rows import TEXT_TABLES, RowOfRecord
from labledger.records import canonical_json
from labledger.records.attempt_result import RECORD_KINDS, REFERENCE
from labledger.records.identity import slot_commit_id

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
"""Yields the problems of a commit of a run, as sentences."""

Message = tuple[int | None, str]
"""A problem in a sentence, with its slot or None."""

_EVIDENCE_SQL = (
    "SELECT schedule_idx, record FROM evidence_record "
    "WHERE run_no = ? AND schedule_idx >= ? AND schedule_idx < ? ORDER BY run_no, schedule_idx"
)
_ARTIFACTS_SQL = "SELECT sha256, content, size FROM artifact WHERE sha256 IN ({})"
_PREVIOUS_COMMIT_SQL = """
SELECT schedule_idx, chain_digest FROM slot_commit WHERE run_no = ? AND schedule_idx < ?
ORDER BY schedule_idx DESC LIMIT 1"""
_GENESIS_SQL = "SELECT genesis_digest FROM schedule WHERE run_no = ?"
_MAX_REMEMBERED = 10_000
"""How many artifacts are remembered as unchanged."""
_REFERENCES_PER_BATCH = 500


class Piece(NamedTuple):
    """A part of a file's expected content."""

    size: int
    sha256: str


class PieceHasher:
    """Makes a `Piece` of lines that are added to it."""

    def __init__(self) -> None:
        self._size = 0
        self._hasher = hashlib.sha256()

    def add_lines(self, lines: Collection[str]) -> None:
        """Add lines that have no line end, in order."""
        texts = lines if not isinstance(lines, tuple) else ("\n".join(lines),) if lines else ()
        for text in texts:
            content = f"{text}\n".encode()
            self._size += len(content)
            self._hasher.update(content)

    def piece(self) -> Piece:
        return Piece(self._size, self._hasher.hexdigest())


@dataclass
class CheckedSlots:
    """How many slots and artifacts were checked, and the problems in them."""

    slots: int = 0
    artifacts: int = 0
    messages: list[Message] = field(default_factory=list)
    mirrors: dict[str, list[Piece]] = field(default_factory=dict)
    """The pieces of each mirror that the records make, by the kind of its records."""

    def add(self, other: CheckedSlots) -> None:
        self.slots += other.slots
        self.artifacts += other.artifacts
        self.messages += other.messages
        for kind, pieces in other.mirrors.items():
            self.mirrors.setdefault(kind, []).extend(pieces)


class SlotChecks:
    """Checks ranges of slots of a ledger on one connection."""

    def __init__(
        self,
        connection: Connection,
        store: ArtifactStore | None,
        extra_check: CommitCheck | None = None,
    ) -> None:
        # The driver's own connection, which reads rows without the cost of `Row` objects.
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
        """Check a slot that some checks cannot read. The other checks still report problems."""
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
            self._check_references(run_no, start, stop, checked),
            find_wrong_columns(self._driver, run_no, start, stop),
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
        part_digests = dict(self._driver.execute(digest_chain.PARTS_SQL, (run_no,)))
        mirrors = {kind: PieceHasher() for kind in RECORD_KINDS}
        for commit in committed_rows.commits(
            self._driver, run_id, run_no, start, stop, holds_events=False
        ):
            idx = commit.records.schedule_idx
            checked.slots += 1
            if idx != next_idx:
                yield next_idx, f"the commits of slots {next_idx} to {idx - 1} are missing"
                head = None
            if head is not None:
                head = digest_chain.with_part(head, part_digests.get(idx))
            messages = list(_check_digests(run_id, commit, head))
            if commit.trial is not None and not slot_rows.fits_its_record(commit.trial):
                messages.append("the columns of the row of trial do not fit its record")
            yield from ((idx, message) for message in messages)
            if self._extra_check is not None:
                yield from ((idx, message) for message in self._extra_check(run_id, commit))
            for kind, mirror in mirrors.items():
                mirror.add_lines(commit.records.lines(kind))
            head, next_idx = commit.chain_digest, idx + 1
        checked.mirrors = {kind: [mirror.piece()] for kind, mirror in mirrors.items()}

    def _check_references(
        self, run_no: int, start: int, stop: int, checked: CheckedSlots
    ) -> Iterator[Message]:
        """Check the artifacts that evidence refers to."""
        if self._store is None:
            return
        references = self._references(run_no, start, stop)
        for batch in batched(references, _REFERENCES_PER_BATCH):
            checked.artifacts += len(batch)
            unchecked = {sha256 for _, sha256 in batch} - self._unchanged
            damage = self._find_damage(self._store, unchecked)
            for idx, sha256 in batch:
                if sha256 in damage:
                    yield idx, f"artifact {sha256} {damage[sha256]}"
            if len(self._unchanged) >= _MAX_REMEMBERED:
                self._unchanged.clear()
            self._unchanged |= unchecked - damage.keys()

    def _references(self, run_no: int, start: int, stop: int) -> Iterator[tuple[int, str]]:
        """Yield each artifact that the evidence of a slot refers to, with the slot."""
        rows = self._driver.execute(_EVIDENCE_SQL, (run_no, start, stop))
        for idx, group in groupby(rows, key=itemgetter(0)):
            referred = {sha256 for _, text in group for sha256 in REFERENCE.findall(text)}
            yield from ((idx, sha256) for sha256 in sorted(referred))

    def _find_damage(self, store: ArtifactStore, digests: Collection[str]) -> dict[str, str]:
        """Return how artifacts differ from their digests, each as the rest of a sentence."""
        damage = dict.fromkeys(digests, "is missing from the ledger")
        sql = _ARTIFACTS_SQL.format(", ".join("?" * len(digests)))
        for key, content, size in self._driver.execute(sql, [*map(bytes.fromhex, digests)]):
            sha256 = key.hex()
            if content is None:
                problem = store.find_damage(sha256, size)
            elif canonical_json.sha256_hex(content) == sha256 and len(content) == size:
                problem = None
            else:
                problem = "was changed"
            if problem is None:
                del damage[sha256]
            else:
                damage[sha256] = problem
        return damage


def _check_digests(run_id: str, commit: Commit, head: str | None) -> Iterator[str]:
    """Check a commit; `head` is the chain's digest before it, None if that is unknown."""
    records = commit.records
    if commit.slot_commit_id != slot_commit_id(run_id, records.schedule_idx):
        yield "the commit's id was changed"
    if digest_chain.payload_digest(records) != commit.payload_digest:
        yield "the records are not those that were committed"
    if (commit.trial is not None) != bool(records.trials):
        yield "a trial row was inserted"
    link = (commit.slot_commit_id, commit.epoch, commit.committed_at, commit.payload_digest)
    if head is not None and digest_chain.chain_digest(head, *link) != commit.chain_digest:
        yield "the commit does not follow from the one before it"


_VALUES = [name for name in COLUMNS["slot_outcome"] if name not in KEYS["slot_outcome"]]
_OUTCOMES_SQL = statements.expand(f"""
WITH committed AS (
  SELECT slot.run_no, slot.variant_idx, slot.task_idx, slot.repl_idx, slot.schedule_idx,
    slot_commit.status, score.verdict,
    {{passed slot_commit.status score.verdict trial.agent_exit_status}} AS passed,
    score.primary_metric_name AS metric_name, score.primary_metric_value AS metric_value,
    trial.duration_ms
  FROM slot_commit
  JOIN slot ON slot.run_no = slot_commit.run_no AND slot.schedule_idx = slot_commit.schedule_idx
  {{trial_and_score}} AND slot_commit.status <> 'grade_error'
  WHERE slot_commit.run_no = ?1
)
SELECT committed.schedule_idx, stored.schedule_idx
FROM committed LEFT JOIN slot_outcome AS stored
  ON stored.run_no = committed.run_no AND stored.variant_idx = committed.variant_idx
  AND stored.task_idx = committed.task_idx AND stored.repl_idx = committed.repl_idx
WHERE stored.schedule_idx IS NULL OR stored.schedule_idx < committed.schedule_idx
  OR (stored.schedule_idx = committed.schedule_idx
    AND ({", ".join(f"stored.{name}" for name in _VALUES)})
      IS NOT ({", ".join(f"committed.{name}" for name in _VALUES)}))
UNION ALL
SELECT NULL, stored.schedule_idx FROM slot_outcome AS stored
WHERE stored.run_no = ?1 AND NOT EXISTS (
  SELECT 1 FROM committed WHERE committed.schedule_idx = stored.schedule_idx
    AND committed.variant_idx = stored.variant_idx AND committed.task_idx = stored.task_idx
    AND committed.repl_idx = stored.repl_idx)""")  # noqa: S608
"""Finds slots whose cell has no row, an older row, or a row with other values, and rows that belong
to no committed slot of their cell.

Each row is found by its primary key. A search for later slots of a cell would take quadratic time,
because SQLite has no statistics here and would search all later slots.
"""


def find_wrong_outcomes(connection: Connection, run_no: int) -> Iterator[tuple[int, str]]:
    """Yield the slots whose row of `slot_outcome` does not follow from their commit.

    A cell has the row of its newest committed slot.
    """
    rows = connection.execute(_OUTCOMES_SQL, (run_no,))
    for idx in sorted({idx for row in rows for idx in row if idx is not None}):
        yield idx, "the slot's row of slot_outcome, which views count by, does not fit its commit"


def find_wrong_columns(
    driver: Any, run_no: int, start: int, stop: int
) -> Iterator[tuple[int, str]]:
    """Yield the slots of a range with columns that differ from their records."""
    for table, row_of_record in TEXT_TABLES.values():
        key = KEYS[table]
        sql = (
            f"{statements.select(table)} AND schedule_idx >= ? AND schedule_idx < ? "
            f"ORDER BY {', '.join(key)}"
        )
        stored_rows = driver.execute(sql, (run_no, start, stop))
        # `row_seq`, the last column of the key, counts from 0 within the others.
        for _, group in groupby(stored_rows, key=itemgetter(slice(len(key) - 1))):
            for seq, row in enumerate(group):
                if not _repeats_record(row, seq, row_of_record):
                    yield row[1], f"the columns of a row of {table} do not fit its record"


def _repeats_record(row: tuple[Any, ...], seq: int, row_of_record: RowOfRecord) -> bool:
    text = row[-1]
    try:
        return row_of_record(row[0], row[1], seq, text, json.loads(text)) == row
    except (ValueError, KeyError, TypeError):
        return False
