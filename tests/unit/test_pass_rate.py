"""The pass rate has one definition in Python and in SQL, for every kind of slot."""

from __future__ import annotations

from itertools import product

import pytest

from labledger.ledger.database.sqlite import DRIVER
from labledger.ledger.database.views_and_triggers import TRIGGERS, VIEWS
from labledger.records.outcomes import SlotStatus, Verdict
from labledger.records.pass_rate import PASSED_SQL, PassCounts, has_passed

LEFT_OUT = ("infra_error", "setup_error", "cancelled", "skipped_pruned")


@pytest.mark.parametrize(
    ("status", "verdict", "agent_exit_status", "passed"),
    [
        ("completed", "pass", 0, True),
        ("completed", "fail", 0, False),
        ("completed", "missing", 0, False),
        ("completed", "error", 0, False),
        ("agent_error", "pass", 3, True),
        ("agent_error", "fail", 3, False),
        ("agent_error", None, 3, False),
        ("agent_error", None, None, False),
        ("agent_timeout", None, 124, False),
        ("grade_error", None, 0, None),
        ("grade_error", None, None, None),
        ("grade_error", None, 3, False),
        ("grade_error", "pass", 3, False),
        ("grade_error", "pass", 0, None),
        *((status, None, 3, None) for status in LEFT_OUT),
        *((status, "pass", 0, None) for status in LEFT_OUT),
    ],
)
def test_a_slot_counts_as_the_definition_says(
    status: str, verdict: str | None, agent_exit_status: int | None, passed: bool | None
) -> None:
    """An agent that failed without a verdict has not passed, and an infra_error does not count."""
    assert has_passed(status, verdict, agent_exit_status) is passed


def test_sql_and_python_agree() -> None:
    """The expression of the triggers equals `has_passed` for every kind of slot."""
    raw = DRIVER.connect(":memory:")
    sql = "SELECT " + PASSED_SQL.format(status="?1", verdict="?2", agent_exit_status="?3")
    slots = [*product(SlotStatus, (None, *Verdict), (None, 0, 1, 124))]
    for status, verdict, agent_exit_status in slots:
        [passed] = raw.execute(sql, (status.value, verdict, agent_exit_status)).fetchone()
        expected = has_passed(status, verdict, agent_exit_status)
        assert passed == (None if expected is None else int(expected)), (status, verdict)
    raw.close()


@pytest.mark.parametrize(
    ("name", "status", "verdict", "trial"),
    [
        ("all_trials", "slot_commit.status", "trial.verdict", "trial"),
        ("slot_outcome_unscored", "NEW.status", "NULL", "NEW"),
        ("slot_outcome_scored", "trial.status", "NEW.verdict", "trial"),
    ],
)
def test_views_and_triggers_have_that_expression(
    name: str, status: str, verdict: str, trial: str
) -> None:
    """Views and triggers contain `PASSED_SQL` with their own columns, and no other rule."""
    sql = VIEWS[name].sql if name in VIEWS else TRIGGERS[name]
    agent_exit_status = f"{trial}.agent_exit_status"
    expression = PASSED_SQL.format(
        status=status, verdict=verdict, agent_exit_status=agent_exit_status
    )
    assert expression in sql


def test_the_rate_is_over_what_is_counted() -> None:
    """Excluded slots are in no denominator, and a variant without counted slots has no rate."""
    counts = PassCounts()
    assert counts.rate is None
    for passed in (True, True, False, None, True):
        counts = counts.plus(passed)
    assert (counts.passed, counts.not_passed, counts.counted, counts.rate) == (3, 1, 4, 0.75)
