"""`--max-error-rate`: stops a run that mostly produces errors of setup, grader or machine."""

from __future__ import annotations

from dataclasses import dataclass

from labledger.records import SlotStatus

_ERRORS = frozenset({SlotStatus.SETUP_ERROR, SlotStatus.GRADE_ERROR, SlotStatus.INFRA_ERROR})
"""Statuses that say nothing about an agent."""

_AT_LEAST = 10
"""A share of fewer slots says little."""


OF_REGRADING = frozenset({SlotStatus.GRADE_ERROR})
"""Those of a regrading: the others are of the run that it regrades, as they were."""


@dataclass(slots=True)
class ErrorRate:
    """The share of errors among the slots that this coordinator committed after a trial."""

    limit: float | None
    """The largest share that is put up with; None puts up with any."""
    counted: frozenset[SlotStatus] = _ERRORS
    committed: int = 0
    errors: int = 0

    def note(self, status: SlotStatus) -> None:
        if status is not SlotStatus.SKIPPED_PRUNED:
            self.committed += 1
            self.errors += status in self.counted

    def trouble(self) -> str | None:
        """Why to stop; None where the share is within the limit."""
        if self.limit is None or self.committed < _AT_LEAST:
            return None
        share = self.errors / self.committed
        if share <= self.limit:
            return None
        kinds = " or ".join(sorted(self.counted))
        return (
            f"{self.errors} of {self.committed} slots committed since this start "
            f"({share:.0%}) ended as {kinds}: more than "
            f"--max-error-rate {self.limit:g}; mend the cause, or resume with a higher rate"
        )
