"""What results make a run's receivers be told: most of a budget is used, or many slots are errors.

It is decided before a result is written, so that the notification is in the same transaction. The
ledger stores each of them once: after a restart, what is still true is announced again, and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from labledger.execution.budget import Budget
from labledger.execution.failure_limits import ErrorRate
from labledger.ledger.counts import UNITS
from labledger.ledger.notifications import Notice, NoticeEvent

BUDGET_SHARE = 0.8
"""Receivers are told when this share of a budget is used."""
ERROR_SHARE = 0.2
"""Receivers are told when a larger share of the slots since the start are errors."""


@dataclass(slots=True)
class RunNotices:
    """What a session has to tell of the results that it has counted."""

    epoch: int
    budget: Budget
    error_rate: ErrorRate
    _written: set[tuple[NoticeEvent, str]] = field(default_factory=set)

    def new(self) -> list[Notice]:
        """Return what is true now and not written yet."""
        notices = [*self._of_budget(), *self._of_errors()]
        return [each for each in notices if (each.event, each.subject) not in self._written]

    def written(self, notices: Iterable[Notice]) -> None:
        """Note that these are in the ledger."""
        self._written.update((each.event, each.subject) for each in notices)

    def _of_budget(self) -> Iterator[Notice]:
        for kind, spent in self.budget.used(BUDGET_SHARE).items():
            limit = self.budget.limits[kind]
            share = f"{spent.total / limit:.0%} of the budget is used"
            text = f"{share}, {spent.total:,.10g} of {limit:,.10g} {UNITS[kind]}"
            details = {"budget": kind, "limit": limit, "spent": spent.as_json()}
            yield Notice(NoticeEvent.BUDGET_HIGH, f"{kind} {limit:.17g}", text, details)

    def _of_errors(self) -> Iterator[Notice]:
        rate = self.error_rate
        if rate.exceeds(ERROR_SHARE) or rate.exceeds(rate.limit):
            details = {"errors": rate.errors, "of_slots": rate.committed, "limit": rate.limit}
            subject = f"epoch {self.epoch}"
            yield Notice(NoticeEvent.ERRORS_HIGH, subject, rate.sentence, details)
