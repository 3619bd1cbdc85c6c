"""The ids in records: of a run, a slot of its schedule, and the trial that executes the slot.

All ids are derived from the run's id and the slot's number, so that every process that works on a
slot writes the same ids.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm
from labledger.records.json_schemas import Count, Text

MAX_RUN_ID = 100
"""The length of the longest run id."""
RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_RUN_ID - 1}}}")
"""The form of a run's id, which also names its folder and its containers."""

RUN_SEPARATOR = "+"
"""Between the ids of several runs that are taken as one; no run's id can hold it."""


@dataclass(frozen=True, slots=True)
class Slot(JsonForm):
    """A cell (variant, task, replication) with its position in the schedule."""

    schedule_idx: int
    variant_id: str
    task_id: str
    repl_idx: int
    supersedes: int | None = None
    """The earlier slot of the same cell that this one replaces in all answers once committed."""

    _OPTIONAL = frozenset({"supersedes"})


@dataclass(frozen=True, slots=True)
class TrialIds(JsonForm):
    """The `ids` of every record: the run, trial and cell that it is about."""

    run_id: Text
    trial_id: Text
    variant_id: Text
    task_id: Text
    repl_idx: Count

    @classmethod
    def of(cls, run_id: str, slot: Slot) -> Self:
        trial_id = f"{run_id}-s{slot.schedule_idx:06d}"
        return cls(run_id, trial_id, slot.variant_id, slot.task_id, slot.repl_idx)


def slot_commit_id(run_id: str, schedule_idx: int) -> str:
    """Return the id of a slot's commit. Workers write it into records before the commit."""
    return "sc_" + hashlib.sha256(f"{run_id}\n{schedule_idx}".encode()).hexdigest()[:24]


class Stamp(NamedTuple):
    """The fields that all records of a slot share."""

    ids: TrialIds
    schedule_idx: int
    slot_commit_id: str
    attempt: int
    ts: str

    def as_json(self, schema_version: str) -> JsonObject:
        """Return the fields with which the first record of a kind of the slot begins."""
        return {
            "schema_version": schema_version,
            "schedule_idx": self.schedule_idx,
            "slot_commit_id": self.slot_commit_id,
            "attempt": self.attempt,
            "row_seq": 0,
            "ts": self.ts,
            "ids": self.ids.as_json(),
        }
