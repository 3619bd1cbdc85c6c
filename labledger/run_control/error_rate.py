"""`--max-error-rate`: stops a run in which too many slots end with an error.

Counts setup, grader and infrastructure errors, which say nothing about an agent. Only slots that
this coordinator committed are counted. Used by the commit queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.records.outcomes import SlotStatus

_ERRORS = frozenset({SlotStatus.SETUP_ERROR, SlotStatus.GRADE_ERROR, SlotStatus.INFRA_ERROR})
"""Statuses that say nothing about an agent."""

_MIN_SLOTS = 10
"""The rate of fewer slots is not evaluated: it would say little."""

REGRADING_ERRORS = frozenset({SlotStatus.GRADE_ERROR})
"""The errors of a regrading. Other statuses come unchanged from the run that it regrades."""


@dataclass(slots=True)
class ErrorRate:
    """The share of errors among the slots that this coordinator committed after a trial."""

    limit: float | None
    """The largest share allowed; None allows any."""
    error_statuses: frozenset[SlotStatus] = _ERRORS
    committed: int = 0
    errors: int = 0

    def count(self, status: SlotStatus) -> None:
        """Count a committed slot. Slots that were never run do not count."""
        if status is not SlotStatus.SKIPPED_PRUNED:
            self.committed += 1
            self.errors += status in self.error_statuses

    def stop_cause(self) -> str | None:
        """Return why the run should stop, or None while the share is within the limit."""
        if self.limit is None or self.committed < _MIN_SLOTS:
            return None
        share = self.errors / self.committed
        if share <= self.limit:
            return None
        statuses = " or ".join(sorted(self.error_statuses))
        return (
            f"{self.errors} of {self.committed} slots committed since this start "
            f"({share:.0%}) ended as {statuses}: more than "
            f"--max-error-rate {self.limit:g}; fix the cause, or resume with a higher rate"
        )
