"""The only definition of the pass rate: slots that passed, did not pass, or are left out.

A slot passed if its verdict is `pass`. It did not pass with another verdict, or without one if its
agent failed. Others are left out, unless `pass_rate.sql` finds that nothing excuses the agent.
Triggers contain `PASSED_SQL`: a change needs a migration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import NEVER_RUN, SlotStatus, Verdict


def has_passed(status: str, verdict: str | None, agent_exit_status: int | None) -> bool | None:
    """Return whether a committed slot passed; None if it is left out of the pass rate.

    `verdict` comes from its score row. The score of a `grade_error` is stored, but never counted.
    `agent_exit_status` is None if no agent ran, or if its status is not known.

    This is the same definition as `PASSED_SQL`; tests compare the two.
    """
    match status:
        case SlotStatus.COMPLETED:
            return None if verdict is None else verdict == Verdict.PASS
        case SlotStatus.AGENT_ERROR | SlotStatus.AGENT_TIMEOUT:
            return verdict == Verdict.PASS
        case SlotStatus.GRADE_ERROR:
            return False if agent_exit_status else None
        case _:
            return None


def is_clean_pass(status: str | None, verdict: str | None) -> bool:
    """Return whether a trial passed and nothing about it needs a look.

    An agent that failed may have passed (`has_passed`), but is worth a look.
    """
    return status == SlotStatus.COMPLETED and verdict == Verdict.PASS


PASSED_SQL = """\
CASE
    WHEN {status} = 'completed' THEN {verdict} = 'pass'
    WHEN {status} IN ('agent_error', 'agent_timeout') THEN coalesce({verdict} = 'pass', 0)
    WHEN {status} = 'grade_error' AND {agent_exit_status} <> 0 THEN 0
  END"""
"""`has_passed` as an SQL expression: 1, 0 or null. Format it with the three column names."""


@dataclass(frozen=True, slots=True)
class PassCounts(JsonForm):
    """How many slots the pass rate counts, and how many that ran it leaves out."""

    passed: int = 0
    not_passed: int = 0
    graders_broken: int = 0
    """How many of `not_passed` have no verdict, although their agent did not fail."""
    left_out: int = 0
    """Slots that ran and are in neither `passed` nor `not_passed`."""

    _JSON = ("passed", "not_passed", "rate", "graders_broken")
    _KEYS: ClassVar = {"rate": "pass_rate"}
    _OPTIONAL = frozenset({"graders_broken"})

    @property
    def counted(self) -> int:
        """The rate's denominator."""
        return self.passed + self.not_passed

    @property
    def rate(self) -> float | None:
        """`passed` divided by `counted`; None if no slot is counted."""
        return self.passed / self.counted if self.counted else None

    @property
    def rate_of_all(self) -> float | None:
        """The rate with every slot that ran: slots that were not graded did not pass.

        Harbor and SWE-bench count so.
        """
        of_all = self.counted + self.left_out
        return self.passed / of_all if of_all else None

    @classmethod
    def of_variant(cls, counts: JsonObject) -> Self:
        """Return the counts of a variant from the keys of `as_json` and its `statuses`."""
        passed, not_passed = counts["passed"], counts["not_passed"]
        ran = sum(
            number for status, number in counts["statuses"].items() if status not in NEVER_RUN
        )
        broken = counts.get("graders_broken", 0)
        return cls(passed, not_passed, broken, ran - passed - not_passed)

    def alone(self) -> PassCounts:
        """Return the counts as before ledger revision 0013, when each slot counted alone."""
        return PassCounts(self.passed, self.not_passed - self.graders_broken)

    def plus(self, passed: bool | None, count: int = 1) -> PassCounts:
        """Return the counts with `count` more slots. Slots with `passed` None are not counted."""
        if passed is None:
            return self
        name = "passed" if passed else "not_passed"
        return replace(self, **{name: getattr(self, name) + count})
