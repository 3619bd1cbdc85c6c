"""Failures of calls that excuse an agent: the journal, and when the agent ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labledger import clock
from labledger.records.model_calls import (
    JOURNAL,
    SCHEMA,
    CallFault,
    CallState,
    ModelCall,
    Usage,
    asked_line,
    ended_line,
    judged_line,
    opened_line,
)
from labledger.records.outcomes import Reason, SlotStatus
from labledger.trial.evidence.gateway_calls import AttemptCalls
from labledger.trial.evidence.grading import GradingOutcome
from labledger.trial.evidence.redaction import Redactor

BEGAN = "2026-11-28T12:00:00.000Z"
OLD = {"schema_version": SCHEMA, "opened_at": BEGAN}
"""The first line of a journal of an earlier version."""
SOON, LATE = 100.0, 200.0
"""Seconds after the first call at which the agent ends: 100 and 200 after a failure there."""
SECRET = "hunter2-of-the-run"


def call(number: int, status: int | None = 200, **fields: Any) -> ModelCall:
    """Return a call of one second, answered with a status."""
    answered = ModelCall(
        call=number,
        started_at=BEGAN,
        provider="one",
        api="openai-chat",
        model="m",
        state=CallState.ANSWERED,
        status=status,
        usage=Usage(10, output=1) if status == 200 else None,
        duration_ms=1000,
    )
    return replace(answered, **fields)


def down(number: int, fault: CallFault | None = CallFault.PROVIDER, **fields: Any) -> ModelCall:
    """Return a call that the provider failed."""
    return call(number, 500, **{"reason": "provider_error", "fault": fault, **fields})


def refused(number: int, **fields: Any) -> ModelCall:
    """Return a call that the provider refused because of the account."""
    reason = {"reason": "credit_exhausted", "detail": f"No credit for {SECRET}."}
    fault = CallFault.CONFIGURATION
    return call(number, 402, **{**reason, "fault": fault, **fields})


def written(folder: Path, calls: Iterable[ModelCall], first: Any = None) -> Path:
    """Write a trial's folder with a journal."""
    rows = [first or opened_line(BEGAN)]
    for call in calls:
        rows.append(asked_line(call))
        if call.state is not CallState.UNKNOWN:
            rows.append(ended_line(replace(call, fault=None)))
        if call.fault is not None:
            rows.append(judged_line(call.call, call.fault))
    journal = folder / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def judged(
    folder: Path, *calls: ModelCall, after_s: float = SOON, first: Any = None
) -> GradingOutcome:
    """Return the outcome of a trial whose grader failed and whose agent made these calls."""
    use = AttemptCalls.read(written(folder, calls, first), Redactor({"RUN_SECRET": SECRET}))
    assert use.problems == ()
    score = {"verdict": "fail"}
    outcome = GradingOutcome(SlotStatus.COMPLETED, None, None, score=score)
    return use.judge(outcome, clock.later(BEGAN, 1 + after_s))


def test_an_account_that_was_refused_explains_a_grader_that_failed(tmp_path: Path) -> None:
    """An agent without an answer may leave files that the grader cannot read."""
    use = AttemptCalls.read(written(tmp_path, [refused(1)]), Redactor({}))
    outcome = GradingOutcome(SlotStatus.GRADE_ERROR, Reason.INVALID_JSON, "no JSON")
    ended = use.judge(outcome, clock.later(BEGAN, 1 + SOON))
    assert (ended.status, ended.reason) == (SlotStatus.INFRA_ERROR, Reason.PROVIDER_FAILED)
    assert "No credit" in str(ended.message)


@pytest.mark.parametrize("reason", [Reason.OUT_OF_MEMORY, Reason.OUT_OF_PROCESSES])
def test_no_failed_call_explains_memory_that_an_agent_used_up(
    tmp_path: Path, reason: Reason
) -> None:
    """A provider's failure does not excuse an agent that used up the memory."""
    use = AttemptCalls.read(written(tmp_path, [refused(1)]), Redactor({}))
    outcome = GradingOutcome(SlotStatus.AGENT_ERROR, reason, "killed")
    assert use.judge(outcome, clock.later(BEGAN, 1 + SOON)) is outcome


EXCUSED = {
    "the provider fails": [call(1), down(2)],
    "the account is refused": [refused(1)],
    "after credit ran out": [call(1), refused(2)],
    "another model of the provider answered": [call(1, model="small"), down(2)],
    "a refused request follows": [call(1), down(2), call(3, 404, state=CallState.REFUSED)],
    "another call was given up": [
        call(1),
        down(2),
        call(3, None, state=CallState.CUT, reason="agent_gone"),
    ],
    "the gateway died": [call(1), call(2, None, state=CallState.UNKNOWN)],
    "the gateway had no key": [call(1, None, state=CallState.FAILED, reason="no_key")],
}
NOT_EXCUSED = {
    "nothing shows it": [call(1), down(2, None)],
    "a refusal that nothing confirms": [refused(1, fault=None)],
    "a call was answered since": [call(1), down(2), call(3)],
    "an answer has begun since": [
        call(1),
        down(2),
        call(3, 200, state=CallState.CUT, reason="agent_gone"),
    ],
    "another provider answered": [call(1), refused(2, provider="two")],
    "another provider began to answer": [
        call(1, 200, state=CallState.CUT, reason="agent_gone"),
        refused(2, provider="two"),
    ],
    "another model answered": [call(1), refused(2, model="unknown")],
    "another API answered": [call(1), refused(2, api="openai-responses")],
    "another provider answered, and one is down": [call(1), down(2, provider="two")],
    "a cap was reached": [
        call(1),
        down(2),
        call(3, 403, state=CallState.REFUSED, reason="cap_usd"),
    ],
    "no call": [],
}


@pytest.mark.parametrize("name", EXCUSED)
def test_what_excuses(tmp_path: Path, name: str) -> None:
    """An agent that ended soon after a call failed without its fault is excused."""
    outcome = judged(tmp_path, *EXCUSED[name])
    assert outcome.status is SlotStatus.INFRA_ERROR, outcome
    assert outcome.reason in {Reason.PROVIDER_FAILED, Reason.GATEWAY_FAILED}


@pytest.mark.parametrize("name", NOT_EXCUSED)
def test_what_does_not_excuse(tmp_path: Path, name: str) -> None:
    """A failure that an agent can arrange leaves its trial as graded."""
    outcome = judged(tmp_path, *NOT_EXCUSED[name])
    assert (outcome.status, outcome.reason) == (SlotStatus.COMPLETED, None)


def test_an_agent_that_goes_on_is_not_excused(tmp_path: Path) -> None:
    """An agent that works on for minutes after a failed call, or times out, is not excused."""
    calls = [call(1), down(2)]
    assert judged(tmp_path / "late", *calls, after_s=LATE).status is SlotStatus.COMPLETED
    long = [call(1), down(2, duration_ms=240_000)]
    assert judged(tmp_path / "long", *long, after_s=LATE).status is SlotStatus.INFRA_ERROR


def test_a_model_that_the_variant_does_not_use_excuses_nobody(tmp_path: Path) -> None:
    """A call that the gateway found needless is no excuse."""
    rows = [opened_line(BEGAN), asked_line(refused(1)), ended_line(refused(1))]
    rows.append(judged_line(1, CallFault.CONFIGURATION, needless=True))
    journal = tmp_path / JOURNAL
    journal.parent.mkdir()
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    use = AttemptCalls.read(tmp_path, Redactor({}))
    assert use.failure(clock.later(BEGAN, SOON)) is None
    assert use.as_json()["faults"] == {"configuration": 1}


def test_the_message_has_the_providers_sentence(tmp_path: Path) -> None:
    """The message has the provider's sentence, redacted, and blames the configuration."""
    outcome = judged(tmp_path, refused(1))
    assert outcome.message is not None
    assert "one refuses the run's configuration" in outcome.message
    assert "credit_exhausted: No credit for" in outcome.message
    assert SECRET not in outcome.message


def test_the_evidence_says_how_calls_went(tmp_path: Path) -> None:
    """The evidence counts answers, also 0, and refusals, with the last sentence."""
    calls = [
        call(1),
        down(2, detail="Sorry."),
        refused(3, fault=None),
        call(4, state=CallState.CUT),
    ]
    use = AttemptCalls.read(written(tmp_path / "some", calls), Redactor({}))
    summary = use.as_json()
    assert {key: summary[key] for key in ("calls", "answered", "refused_by_provider")} == {
        "calls": 4,
        "answered": 1,
        "refused_by_provider": 2,
    }
    assert summary["faults"] == {"provider": 1}
    assert summary["detail"] == f"No credit for {SECRET}."
    none = AttemptCalls.read(tmp_path / "none", Redactor({})).as_json()
    assert (none["calls"], none["answered"]) == (0, 0)
    assert "detail" not in none


@pytest.mark.parametrize(
    ("last", "is_excused"),
    [
        (call(2, 500), True),
        (call(2, 429), True),
        (call(2, 401), True),
        (call(2, None, state=CallState.FAILED, reason="no_answer"), True),
        (call(2, 400), False),
        (call(2, 402), False),
    ],
)
def test_journals_of_earlier_versions_are_read_by_status(
    tmp_path: Path, last: ModelCall, is_excused: bool
) -> None:
    """A journal of an earlier version without faults is judged by its statuses."""
    expected = SlotStatus.INFRA_ERROR if is_excused else SlotStatus.COMPLETED
    assert judged(tmp_path / "a", call(1), last, first=OLD).status is expected
    late = judged(tmp_path / "b", call(1), last, first=OLD, after_s=LATE)
    assert late.status is SlotStatus.COMPLETED
    other = replace(last, provider="two")
    assert judged(tmp_path / "c", call(1), other, first=OLD).status is SlotStatus.COMPLETED
    new = judged(tmp_path / "d", call(1), last)
    assert new.status is SlotStatus.COMPLETED


def test_an_old_journal_that_a_new_gateway_continued(tmp_path: Path) -> None:
    """A failure that the new gateway probed is judged by the probe."""
    rows = [OLD, *(asked_line(call(1)), ended_line(call(1)))]
    rows += [asked_line(call(2)), ended_line(call(2, 500)), judged_line(2, None)]
    journal = tmp_path / JOURNAL
    journal.parent.mkdir()
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    use = AttemptCalls.read(tmp_path, Redactor({}))
    assert use.failure(clock.later(BEGAN, SOON)) is None
