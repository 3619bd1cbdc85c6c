"""Digests that make a changed, removed or inserted row show: a chain from each run's genesis."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping

from labledger.records import canonical_json
from labledger.records.slot_records import RECORD_KINDS, SlotRecords


class Genesis:
    """The digest of a run's immutable part, taken while it streams by.

    It covers the columns of the run's row, then its variants, tasks and slots, each in order.
    """

    def __init__(self, run: Mapping[str, str]) -> None:
        self._hasher = hashlib.sha256(b"labledger genesis 1\n")
        self._line(dict(run))

    def variant(self, variant_id: str, role: str, bindings: str) -> None:
        self._line([variant_id, role, bindings])

    def task(self, task_id: str, digest: str, payload_digest: str) -> None:
        self._line([task_id, digest, payload_digest])

    def slot(self, variant_idx: int, task_idx: int, repl_idx: int) -> None:
        self._hasher.update(b"%d,%d,%d\n" % (variant_idx, task_idx, repl_idx))

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()

    def _line(self, value: object) -> None:
        self._hasher.update(canonical_json.dump_bytes(value) + b"\n")


def payload_digest(records: SlotRecords) -> str:
    """SHA-256 (hex) of the canonical JSON of everything a commit publishes.

    The records are canonical text already, so the text of the whole is put together from them,
    piece by piece: the events of a slot may be more than should be held in memory.
    """
    plain = {
        "reason": canonical_json.dumps(records.reason),
        "schedule_idx": str(records.schedule_idx),
        "status": canonical_json.dumps(records.status.value),
    }
    hasher = hashlib.sha256()
    opening = "{"
    for key in sorted([*RECORD_KINDS, *plain]):
        hasher.update(f'{opening}"{key}":'.encode())
        for piece in [plain[key]] if key in plain else _as_array(records.lines(key)):
            hasher.update(piece.encode())
        opening = ","
    hasher.update(b"}")
    return hasher.hexdigest()


def _as_array(lines: Collection[str]) -> Iterator[str]:
    """The text of an array of these, in few pieces."""
    if isinstance(lines, tuple):
        yield f"[{','.join(lines)}]"
        return
    opening = "["
    for line in lines:
        yield f"{opening}{line}"
        opening = ","
    yield "]" if opening == "," else "[]"


def chain_digest(
    previous: str, slot_commit_id: str, epoch: int, committed_at: str, payload: str
) -> str:
    """SHA-256 (hex) of a commit's own row and of the chain before it."""
    parts = (previous, slot_commit_id, str(epoch), committed_at, payload)
    return canonical_json.sha256_hex("\n".join(parts).encode())
