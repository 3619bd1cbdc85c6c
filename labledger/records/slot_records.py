"""What the commit of one slot publishes, as the canonical lines that the mirrors hold."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from labledger.records import JsonObject
from labledger.records.outcomes import SlotStatus

RECORD_KINDS = ("predictions", "scores", "evidence", "trials", "metrics", "events")
"""The kinds of record that a commit publishes: the fields of `SlotRecords`, one mirror each."""


@dataclass(frozen=True, slots=True)
class SlotRecords:
    """What one commit publishes: each record as the canonical JSON line that its mirror holds."""

    schedule_idx: int
    variant_id: str
    status: SlotStatus
    reason: str | None = None
    verdict: str | None = None
    trials: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    events: Collection[str] = ()
    """A tuple, but for more than should be held in memory."""

    def lines(self, kind: str) -> Collection[str]:
        """The records of one of `RECORD_KINDS`, as text without line ends."""
        found: Collection[str] = getattr(self, kind)
        return found

    def objects(self, kind: str) -> list[JsonObject]:
        """The records of one of `RECORD_KINDS`, parsed."""
        return [json.loads(line) for line in self.lines(kind)]

    @property
    def agent_exit_status(self) -> int | None:
        """The agent's exit status; None where no agent ran, or where it is not known."""
        for trial in self.objects("trials"):
            agent = trial["phases"]["agent"]
            return None if agent is None else int(agent["exit_status"])
        return None
