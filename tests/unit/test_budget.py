"""Budgets: what counts, when nothing more is started, and what is said then."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import sample_ledgers as kit
from experiment_files import Folder

from labledger.errors import InvalidInput
from labledger.execution.budget import Budget, check_limits
from labledger.ledger.database.model import Spent
from labledger.ledger.reader import LedgerReader
from labledger.records.attempt_result import Metric


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


def budget(told: list[dict[str, Any]], **limits: float) -> Budget:
    return Budget(limits, {"cost_usd": Spent(), "tokens": Spent()}, told.append, kit.PRICES)


def paid(idx: int, usd: float | None) -> Any:
    """A result whose agent reported what it cost."""
    metrics = () if usd is None else (Metric("cost_usd", "events", usd),)
    return kit.result(idx, metrics=metrics)


def test_a_budget_is_spent_when_it_is_reached(told: list[dict[str, Any]]) -> None:
    """What trials spent adds up; exactly the limit is spent, and less is not."""
    spent = budget(told, cost_usd=3)
    for idx, usd in enumerate((1, 1.5)):
        spent.add(paid(idx, usd))
    assert (spent.exhausted(), spent.message(), told) == ((), "", [])
    spent.add(paid(2, 0.5))
    assert spent.exhausted() == ("cost_usd",)
    spent.report_stop(2)
    [event] = told
    assert (event["event"], event["budget"], event["limit"]) == ("budget_spent", "cost_usd", 3)
    assert (event["in_flight"], event["spent"]["total"]) == (2, 3)
    assert event["message"] == (
        "3 of 3 USD are spent (--budget-usd): nothing more is started; up to 2 trials in flight "
        "still add to it, by their mean so far about 2 USD"
    )
    spent.add(paid(3, 0.25))
    spent.report_stop(1)
    assert len(told) == 1
    assert spent.message() == (
        "3.25 of 3 USD are spent (--budget-usd), 0.25 of them by trials in flight when the budget "
        "was spent; resume with a larger --budget-usd to continue"
    )


@pytest.mark.parametrize(
    ("in_flight", "rest"),
    [(0, ""), (1, "; 1 trial in flight still add to it, by their mean so far about 1 USD")],
)
def test_what_still_adds_is_said(told: list[dict[str, Any]], in_flight: int, rest: str) -> None:
    """The message of a spent budget says how much the trials in flight may add."""
    spent = budget(told, cost_usd=1)
    spent.add(paid(0, 1))
    spent.report_stop(in_flight)
    start = "1 of 1 USD are spent (--budget-usd): nothing more is started"
    assert told[0]["message"] == start + rest


def test_unknown_spending_is_told_once_and_never_nothing(told: list[dict[str, Any]]) -> None:
    """A trial that does not say what it spent is a warning, once, if that kind is limited."""
    spent = budget(told, cost_usd=1)
    for idx in range(3):
        spent.add(paid(idx, None))
    [event] = told
    assert event["event"] == "warning"
    assert event["message"] == (
        "slot 0 does not report its cost_usd: --budget-usd counts only trials that do"
    )
    assert spent.spent["cost_usd"] == Spent(0, 0, 3)
    assert spent.event_fields(paid(3, None)) == {"cost_usd": None, "tokens": None}
    spent.add(paid(3, 1))
    assert "; 3 trials did not report theirs;" in spent.message()


def test_calls_in_flight_count(told: list[dict[str, Any]]) -> None:
    """What the calls of running attempts have spent is counted, until their result replaces it."""
    limit = kit.model_call().usage.total * 2
    spent = budget(told, tokens=limit)
    calls = (kit.model_call(1), kit.model_call(2))
    spent.note_running({(0, 1): calls[:1]})
    assert spent.exhausted() == ()
    spent.note_running({(0, 1): calls[:1], (1, 1): calls[1:]})
    assert spent.exhausted() == ("tokens",)
    spent.add(kit.with_calls(kit.result(0), calls[0]))
    assert spent.exhausted() == ("tokens",)
    assert spent.spent["tokens"].total == limit / 2


def test_calls_of_unknown_usage_are_told(told: list[dict[str, Any]]) -> None:
    """Where a call's usage is unknown, the warning and the event of the trial say so."""
    spent = budget(told, tokens=10**9)
    result = kit.with_calls(kit.result(0), kit.model_call(1), kit.model_call(2, usage=None))
    spent.add(result)
    assert told[0]["message"] == (
        "slot 0 has calls to models whose tokens is not known: --budget-tokens counts only the "
        "others"
    )
    assert spent.event_fields(result)["incomplete"] == ["cost_usd", "tokens"]


def test_a_later_coordinator_knows_what_was_spent(tmp_path: Path) -> None:
    """The budget of a run has the limits and the spending that the ledger holds."""
    path = kit.make_ledger(tmp_path)
    with kit.open_writer(path) as writer:
        lease = kit.begin_run(writer, budget={"tokens": 100.0})
        writer.commit_result(lease, kit.result(0))
        with LedgerReader.open(path) as reader:
            found = Budget.of(reader.run(kit.RUN), reader, lambda _: None)
    assert dict(found.limits) == {"tokens": 100.0}
    assert found.spent["tokens"] == Spent(10, 1, 0)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"tokens": 5.0, "cost_usd": math.inf}, None),
        ({"tokens": 0.0}, None),
        ({"tokens": -1.0}, "budget_tokens: found -1; expected 0 or more"),
        ({"tokens": math.nan}, "budget_tokens: found nan; expected 0 or more"),
        ({"cost_usd": 1.0}, "budget_usd: the experiment measures no cost_usd"),
    ],
)
def test_a_limit_that_nothing_measures_is_refused(
    tmp_path: Path, limits: dict[str, float], problem: str | None
) -> None:
    """A limit needs a metric of the experiment that it limits, unless there is no limit."""
    folder = Folder(tmp_path)
    folder.data["metrics"] = [{"id": "tokens_out", "from": "result", "pointer": "/t"}]
    plan = folder.resolve().plan
    if problem is None:
        check_limits(plan, limits)
        return
    with pytest.raises(InvalidInput) as raised:
        check_limits(plan, limits)
    assert problem in raised.value.message
