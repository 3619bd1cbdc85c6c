"""Stops giving slots to a variant that only fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from labledger.records import JsonObject, SlotStatus


class Pruning:
    """Counts, for each variant, the committed slots in a row that did not complete.

    A slot counts as failed when its status is not `completed`; a verdict of `fail` is a result,
    not a failure. Slots that were skipped neither count nor end a row.
    """

    def __init__(self, design: JsonObject, failures: Mapping[str, int]) -> None:
        prune = design["prune"]
        self._limit: int | None = prune["max_consecutive_failures"] if prune else None
        self._failures = Counter(failures)

    def note(self, variant_id: str, status: SlotStatus) -> None:
        """Take a committed slot into account."""
        if status is SlotStatus.COMPLETED:
            self._failures[variant_id] = 0
        elif status is not SlotStatus.SKIPPED_PRUNED:
            self._failures[variant_id] += 1

    def is_pruned(self, variant_id: str) -> bool:
        return self._limit is not None and self._failures[variant_id] >= self._limit

    def reason(self, variant_id: str) -> str:
        return f"variant {variant_id} failed {self._failures[variant_id]} slots in a row"
