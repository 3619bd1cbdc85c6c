"""Digests that make a changed, removed or inserted row show: a chain from each run's genesis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from labledger import canonical
from labledger.records import RECORD_KINDS, SlotRecords


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
        self._hasher.update(canonical.dump_bytes(value) + b"\n")


def payload_digest(records: SlotRecords) -> str:
    """SHA-256 (hex) of the canonical JSON of everything a commit publishes.

    The records are canonical text already, so the text of the whole is put together from them.
    """
    pairs = {kind: f"[{','.join(records.lines(kind))}]" for kind in RECORD_KINDS}
    pairs["reason"] = canonical.dumps(records.reason)
    pairs["schedule_idx"] = str(records.schedule_idx)
    pairs["status"] = canonical.dumps(records.status.value)
    text = ",".join(f'"{key}":{pairs[key]}' for key in sorted(pairs))
    return canonical.sha256_hex(f"{{{text}}}".encode())


def chain_digest(
    previous: str, slot_commit_id: str, epoch: int, committed_at: str, payload: str
) -> str:
    """SHA-256 (hex) of a commit's own row and of the chain before it."""
    parts = (previous, slot_commit_id, str(epoch), committed_at, payload)
    return canonical.sha256_hex("\n".join(parts).encode())
