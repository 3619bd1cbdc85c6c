"""What is checked before a part is appended to a run, by extending it or running slots again.

A part cannot be taken back. What would keep its slots from running is therefore refused before it
is appended. Used by `extend`, `rerun` and `rerun_choice`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.ledger.database.model import RunInfo
from labledger.ledger.read.spending import BUDGET_OPTIONS, UNITS, exhausted_kinds
from labledger.ledger.reader import LedgerReader

MAX_BECAUSE = 1_000
"""The largest number of characters of the reason for a part."""


def because_problems(because: str | None) -> Iterator[Problem]:
    """Yield what is wrong with the reason that somebody gives for a part."""
    if because is None:
        return
    length = len(because.strip())
    if not length or len(because) > MAX_BECAUSE:
        message = f"found {length:,} characters; expected 1 to {MAX_BECAUSE:,}"
        yield Problem(Parameter("because"), message)
    try:
        because.encode()
    except UnicodeEncodeError:
        yield Problem(Parameter("because"), "found bytes that are not UTF-8; expected text")


def check_because(because: str | None) -> None:
    """Raise `InvalidInput` unless a reason, if there is one, can be stored and read."""
    if problems := list(because_problems(because)):
        raise InvalidInput("the reason", problems)


def require_budget(reader: LedgerReader, run: RunInfo, new_limits: Mapping[str, float]) -> None:
    """Raise `InvalidInput` if the run has spent its budget, so that no new slot would run.

    `new_limits` take the place of the run's own, by kind; an infinite one removes it.
    """
    limits = {kind: n for kind, n in {**run.budget, **new_limits}.items() if math.isfinite(n)}
    spent = reader.spent_so_far(run.run_id)
    problems = [
        Problem(
            BUDGET_OPTIONS[kind],
            f"{spent[kind].total:,.10g} of {limits[kind]:,.10g} {UNITS[kind]} are spent; nothing "
            "was added",
            hint=f"give the run a larger {BUDGET_OPTIONS[kind]}",
        )
        for kind in exhausted_kinds(limits, spent)
    ]
    if problems:
        raise InvalidInput(f"the budget of {run.run_id}", problems)
