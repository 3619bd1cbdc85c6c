"""Pruning: gives up on a variant whose slots fail one after the other.

Its remaining slots are committed as `skipped_pruned`. Slots are counted in schedule order, so that
the decision does not depend on which trial happened to end first. Used by the commit queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from labledger.experiment.plan_sections import Prune
from labledger.records.outcomes import SlotStatus


class Pruning:
    """Counts, for each variant, how many committed slots in a row did not complete.

    A slot counts as failed when its status is not `completed`; a verdict of `fail` is a result,
    not a failure. A skipped slot does not change the count.
    """

    def __init__(self, prune: Prune | None, failures: Mapping[str, int]) -> None:
        self._limit = None if prune is None else prune.max_consecutive_failures
        self._failures = Counter(failures)

    def count(self, variant_id: str, status: SlotStatus) -> None:
        """Count a slot that is committed."""
        if status is SlotStatus.COMPLETED:
            self._failures[variant_id] = 0
        elif status is not SlotStatus.SKIPPED_PRUNED:
            self._failures[variant_id] += 1

    def is_pruned(self, variant_id: str) -> bool:
        return self._limit is not None and self._failures[variant_id] >= self._limit

    def reason(self, variant_id: str) -> str:
        return f"variant {variant_id} failed {self._failures[variant_id]} slots in a row"
