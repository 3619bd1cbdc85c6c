"""The records that the commit of one slot publishes, as canonical JSON.

The digest of the commit is computed from them, and each is one line of a mirror.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from labledger.records import JsonObject
from labledger.records.outcomes import SlotStatus

RECORD_KINDS = ("predictions", "scores", "evidence", "trials", "metrics", "events", "model_calls")
"""The kinds of record that a commit publishes: the fields of `SlotRecords`, one mirror each."""

ONLY_IF_ANY = frozenset({"model_calls"})
"""Kinds that came later: only a commit that has some covers them, and only a run that has some has
their mirror, so that the digests and mirrors of other runs stay as they were."""

MAX_LINE_BYTES = 64 << 20
"""No line of a mirror is longer: the largest record has a prediction of 8 MiB, of which each byte
becomes six at most."""


@dataclass(frozen=True, slots=True)
class SlotRecords:
    """The records of one commit, each as the canonical JSON line of its mirror."""

    schedule_idx: int
    variant_id: str
    status: SlotStatus
    reason: str | None = None
    verdict: str | None = None
    agent_exit_status: int | None = None
    """The agent's exit status; None if no agent ran, or if it is not known."""
    trials: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    events: Collection[str] = ()
    """A tuple, unless they are too many to be held in memory."""
    model_calls: tuple[str, ...] = ()
    """Those of every attempt."""

    def lines(self, kind: str) -> Collection[str]:
        """Return the records of one of `RECORD_KINDS`, as text without line ends."""
        lines: Collection[str] = getattr(self, kind)
        return lines

    def objects(self, kind: str) -> list[JsonObject]:
        """Return the records of one of `RECORD_KINDS`, parsed."""
        return [json.loads(line) for line in self.lines(kind)]
