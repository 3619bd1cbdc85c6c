"""The chain of digests of a run, by which a changed, removed or inserted row is detected.

It begins with the genesis digest of what the run was created with. Each commit adds a digest of the
one before, its own row, and all records that it publishes. The first commit of a part that was
appended later also adds the part's digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping

from labledger.ledger.database.table_rows import COLUMNS
from labledger.records import canonical_json
from labledger.records.slot_records import ONLY_IF_ANY, RECORD_KINDS, SlotRecords

_PAYLOAD_KEYS = sorted([*RECORD_KINDS, "reason", "schedule_idx", "status"])
"""The keys of everything that a commit publishes."""
RUN_COLUMNS = COLUMNS["run"][1:]
"""The columns of a run's own row without its number: what the genesis digest covers first."""
PART_COLUMNS = COLUMNS["run_part"][1:-1]
"""The columns of a part's row without the run's number and `digest`, which covers them."""


class PlannedRows:
    """A digest of prices, variants, tasks and slots, computed while their rows are streamed."""

    def __init__(self, heading: bytes) -> None:
        self._hasher = hashlib.sha256(heading)

    def add_price(self, *columns: str | int | None) -> None:
        """Add a row of `model_price`, without the run's number and its own."""
        self._add(["model_price", *columns])

    def add_variant(self, variant_id: str, role: str, bindings: str) -> None:
        self._add([variant_id, role, bindings])

    def add_task(self, task_id: str, digest: str, payload_digest: str) -> None:
        self._add([task_id, digest, payload_digest])

    def add_slot(
        self, variant_idx: int, task_idx: int, repl_idx: int, supersedes: int | None = None
    ) -> None:
        line = b"%d,%d,%d" % (variant_idx, task_idx, repl_idx)
        self._hasher.update(line + (b"\n" if supersedes is None else b",%d\n" % supersedes))

    def _add(self, value: object) -> None:
        self._hasher.update(canonical_json.dump_bytes(value) + b"\n")


class Genesis(PlannedRows):
    """The digest of what a run was created with.

    It covers the columns of the run's row, then its prices of models, variants, tasks and slots,
    each in order.
    """

    def __init__(self, run: Mapping[str, str]) -> None:
        super().__init__(b"labledger genesis 1\n")
        self._add(dict(run))

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class AppendedPart(PlannedRows):
    """The digest of a part of a run's schedule.

    It covers the prices, variants, tasks and slots that the part added, and then the columns of its
    row.
    """

    def __init__(self) -> None:
        super().__init__(b"labledger part 1\n")

    def hexdigest(self, row: Mapping[str, object]) -> str:
        """Return the digest; `row` has the columns of the part without `run_no` and `digest`."""
        self._add(dict(row))
        return self._hasher.hexdigest()


def payload_digest(records: SlotRecords) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of everything that a commit publishes.

    The records are canonical text already, so that the whole text is put together from them, piece
    by piece: a slot may have more events than fit in memory.
    """
    other_values = {
        "reason": canonical_json.dumps(records.reason),
        "schedule_idx": str(records.schedule_idx),
        "status": canonical_json.dumps(records.status.value),
    }
    hasher = hashlib.sha256()
    opening = "{"
    for key in _PAYLOAD_KEYS:
        if key in ONLY_IF_ANY and not records.lines(key):
            continue
        opening += f'"{key}":'
        for piece in [other_values[key]] if key in other_values else _as_array(records.lines(key)):
            hasher.update(f"{opening}{piece}".encode())
            opening = ""
        opening = ","
    hasher.update(b"}")
    return hasher.hexdigest()


def _as_array(lines: Collection[str]) -> Iterator[str]:
    """Yield the text of an array of the lines, in pieces."""
    if isinstance(lines, tuple):
        yield f"[{','.join(lines)}]"
        return
    opening = "["
    for line in lines:
        yield f"{opening}{line}"
        opening = ","
    yield "]" if opening == "," else "[]"


def with_part(previous: str, part_digest: str | None) -> str:
    """Return the digest from which a commit goes on: `previous`, or with a part that it begins."""
    if part_digest is None:
        return previous
    return canonical_json.sha256_hex(f"labledger part\n{previous}\n{part_digest}".encode())


def chain_digest(
    previous: str, slot_commit_id: str, epoch: int, committed_at: str, payload: str
) -> str:
    """Return the SHA-256 (hex) of a commit's own row and of the chain's digest before it."""
    parts = (previous, slot_commit_id, str(epoch), committed_at, payload)
    return canonical_json.sha256_hex("\n".join(parts).encode())
