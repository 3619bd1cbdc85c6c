"""`--budget-usd` and `--budget-tokens`: stops dispatching when what is known to be spent is enough.

What a trial cost is what the experiment's metrics of the ids `cost_usd`, `tokens_in` and
`tokens_out` say of it. What they do not say is unknown, and never taken for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labledger.errors import InvalidInput, Problem
from labledger.ledger.model import SPENT_METRICS, Spent
from labledger.records import JsonObject, TrialResult
from labledger.runner.events import Listener, event
from labledger.trial.worker import NOT_STARTED

_OPTIONS = {"cost_usd": "--budget-usd", "tokens": "--budget-tokens"}
_UNITS = {"cost_usd": "USD", "tokens": "tokens"}


@dataclass(slots=True)
class Budget:
    """What a run may spend, and what it has spent."""

    limits: Mapping[str, float]
    """By kind: `cost_usd`, `tokens`; a kind that is not here has no limit."""
    spent: dict[str, Spent]
    tell: Listener
    was_spent_before: bool = False
    """True of a regrading: its trials repeat what they said when their agents ran."""
    _warned: set[str] = field(default_factory=set)

    def note(self, result: TrialResult) -> None:
        """Take an attempt into account that was just made durable."""
        if result.reason in NOT_STARTED:
            return
        for kind, amount in self.amounts(result).items():
            self.spent[kind] = self.spent[kind].plus(amount)
            if amount is None and kind in self.limits and kind not in self._warned:
                self._warned.add(kind)
                message = (
                    f"slot {result.schedule_idx} does not say its {kind}: "
                    f"{_OPTIONS[kind]} counts only trials that do"
                )
                self.tell(event("warning", message=message))

    def amounts(self, result: TrialResult) -> dict[str, float | None]:
        """What an attempt spent of each kind, as far as it is known."""
        return {} if self.was_spent_before else _amounts(result)

    def trouble(self) -> str | None:
        """Why to stop; None while there is something left."""
        if self.was_spent_before:
            return None
        for kind, limit in self.limits.items():
            spent = self.spent[kind]
            if spent.total >= limit:
                unknown = (
                    f", and {spent.unknown} trials did not say theirs" if spent.unknown else ""
                )
                return (
                    f"{spent.total:,.10g} {_UNITS[kind]} are spent{unknown}: {_OPTIONS[kind]} is "
                    f"{limit:,.10g}; resume with a larger one to go on"
                )
        return None


def _amounts(result: TrialResult) -> dict[str, float | None]:
    """What an attempt spent of each kind, as far as its metrics say it, which 0 or more does."""
    known = {
        metric.metric_id: metric.value
        for metric in result.metrics
        if isinstance(metric.value, int | float) and metric.value >= 0
    }
    found: dict[str, float | None] = {}
    for kind, metric_ids in SPENT_METRICS.items():
        said = [known[metric_id] for metric_id in metric_ids if metric_id in known]
        found[kind] = sum(said) if said else None
    return found


def require_measured(document: JsonObject, limits: Mapping[str, float]) -> None:
    """Raise `InvalidInput` for a limit on what a resolved experiment does not measure."""
    measured = {metric["id"] for metric in document["metrics"]}
    problems = [
        Problem(
            _OPTIONS[kind],
            f"the experiment measures no {' or '.join(SPENT_METRICS[kind])}",
            hint=f"give `metrics` an entry with the id {SPENT_METRICS[kind][0]}",
        )
        for kind in limits
        if measured.isdisjoint(SPENT_METRICS[kind])
    ]
    if problems:
        raise InvalidInput("the budget", problems)
