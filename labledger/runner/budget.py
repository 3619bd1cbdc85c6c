"""`--budget-usd` and `--budget-tokens`: stops dispatching when what is known to be spent is enough.

What a trial cost is what the experiment's metrics of the ids `cost_usd`, `tokens_in` and
`tokens_out` say of it. The limits are the run's own: the ledger has them, whoever goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from labledger.errors import InvalidInput, Problem
from labledger.ledger.model import SPENT_METRICS, RunInfo, Spent
from labledger.ledger.reader import LedgerReader
from labledger.ledger.spending import OPTIONS, UNITS, amounts, used_up
from labledger.records import JsonObject, TrialResult
from labledger.runner.events import Listener, event


@dataclass(slots=True)
class Budget:
    """What a run may spend, and what it has spent."""

    limits: Mapping[str, float]
    """By kind: `cost_usd`, `tokens`; a kind that is not here has no limit."""
    spent: dict[str, Spent]
    """Empty of a regrading: its trials repeat what they said when their agents ran."""
    tell: Listener
    _warned: set[str] = field(default_factory=set)
    _at_stop: Mapping[str, Spent] = field(default_factory=dict)
    """What was spent when dispatch was stopped; empty before."""

    @classmethod
    def of(cls, run: RunInfo, reader: LedgerReader, tell: Listener) -> Self:
        """The run's budget, with all counted that earlier coordinators made durable."""
        if run.regrades is not None:
            return cls({}, {}, tell)
        return cls(run.budget, reader.spent_so_far(run.run_id), tell)

    def note(self, result: TrialResult) -> None:
        """Take an attempt into account that was just made durable."""
        for kind, amount in self.amounts(result).items():
            self.spent[kind] = self.spent[kind].plus(amount)
            if amount is None and kind in self.limits and kind not in self._warned:
                self._warned.add(kind)
                message = (
                    f"slot {result.schedule_idx} does not say its {kind}: "
                    f"{OPTIONS[kind]} counts only trials that do"
                )
                self.tell(event("warning", message=message))

    def amounts(self, result: TrialResult) -> dict[str, float | None]:
        """What an attempt spent of each kind, as far as it is known."""
        return amounts(result) if self.spent else {}

    def used_up(self) -> tuple[str, ...]:
        """The kinds of which nothing is left."""
        return used_up(self.limits, self.spent)

    def stop(self, in_flight: int) -> None:
        """Take note that nothing more is started, and tell what may still come.

        `in_flight` is the largest number of trials that run now: they finish, and are paid for.
        """
        if self._at_stop:
            return
        self._at_stop = dict(self.spent)
        for kind in self.used_up():
            self.tell(
                event(
                    "budget_spent",
                    budget=kind,
                    limit=self.limits[kind],
                    spent=self.spent[kind].as_json(),
                    in_flight=in_flight,
                    message=self._stopping(kind, in_flight),
                )
            )

    def _stopping(self, kind: str, in_flight: int) -> str:
        spent = self.spent[kind]
        message = f"{_of_limit(spent, kind, self.limits[kind])}: nothing more is started"
        if not in_flight:
            return message
        trials = "1 trial" if in_flight == 1 else f"up to {in_flight} trials"
        message += f"; {trials} in flight still add to it"
        if spent.known:
            about = in_flight * spent.total / spent.known
            message += f", by their mean so far about {about:,.3g} {UNITS[kind]}"
        return message

    def message(self) -> str:
        """Why the run stopped, by what is spent now; empty while there is something left."""
        for kind in self.used_up():
            spent, before = self.spent[kind], self._at_stop.get(kind)
            message = _of_limit(spent, kind, self.limits[kind])
            if before is not None and spent.total > before.total:
                late = spent.total - before.total
                message += f", {late:,.10g} of them by trials in flight when the budget was spent"
            if spent.unknown:
                message += f"; {_trials(spent.unknown)} did not say theirs"
            return f"{message}; resume with a larger {OPTIONS[kind]} to go on"
        return ""


def _of_limit(spent: Spent, kind: str, limit: float) -> str:
    return f"{spent.total:,.10g} of {limit:,.10g} {UNITS[kind]} are spent ({OPTIONS[kind]})"


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def check_limits(document: JsonObject, limits: Mapping[str, float]) -> None:
    """Raise `InvalidInput` for a limit on what a resolved experiment does not measure.

    And for one below 0. An infinite limit is none.
    """
    measured = {metric["id"] for metric in document["metrics"]}
    problems = []
    for kind, limit in limits.items():
        if not limit >= 0:
            problems.append(Problem(OPTIONS[kind], f"found {limit:g}; expected 0 or more"))
        elif math.isfinite(limit) and measured.isdisjoint(SPENT_METRICS[kind]):
            what = f"the experiment measures no {' or '.join(SPENT_METRICS[kind])}"
            hint = f"give `metrics` an entry with the id {SPENT_METRICS[kind][0]}"
            problems.append(Problem(OPTIONS[kind], what, hint=hint))
    if problems:
        raise InvalidInput("the budget", problems)
