"""Trials whose graders are kept from their agents, and what their scores say of that."""

from __future__ import annotations

from typing import Any

from sample_trials import GRADES, Trials

from labledger.experiment.grading_settings import Sealing
from labledger.experiment.staged_files import StagedFile
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.shared_files import stage_dependencies

SECRET = "the-right-answer-is-42"
GRADER = f"answer={SECRET}; {GRADES}"
"""A grader whose command holds what the agent must not know."""
READS = 'test "$(cat /agentlab/deps/grader/key/answer.txt)" = ' + SECRET + f" && {{ {GRADER} }}"
"""One that passes where its staged file holds that too."""
WAYS: dict[str, dict[str, Any]] = {
    "none": {"sealing": Sealing.NONE},
    "unreadable": {"sealing": Sealing.UNREADABLE, "runtime": {"agent_user": "agent"}},
    "after_agent": {"sealing": Sealing.AFTER_AGENT},
    "after_agent, all as one user": {"sealing": Sealing.AFTER_AGENT, "runtime": {"user": "1000"}},
}
SEALED = {name: way for name, way in WAYS.items() if name != "none"}
AFTER = SEALED["after_agent"]
DELIVERED: dict[str, Any] = {"sealing": Sealing.DELIVERED, "grading": {"mode": "delivered"}}
"""Settings of trials whose running containers get the grader's files when the agent has ended."""
KEPT: dict[str, Any] = {**DELIVERED, "runtime": {"processes": "keep"}}
"""As `DELIVERED`, and what setup and agent leave running goes on."""
SERVES = "( while :; do echo alive >/tmp/alive; sleep 0.02; done ) &"
"""A service that an agent starts."""
LOOKS = "rm -f /tmp/alive; until [ -e /tmp/alive ]; do sleep 0.02; done; echo alive"
"""Shell text of a grader, which says so when the service is seen at work."""


def isolation(result: AttemptResult) -> JsonObject:
    """The facts of a trial; where there is a score it must say the same as the evidence."""
    isolation: JsonObject = result.evidence[0]["ext"]["isolation"]
    for score in result.scores:
        assert score["ext"]["isolation"] == isolation
    return isolation


def stage(trials: Trials, spec: AttemptSpec) -> AttemptSpec:
    """Give a trial's grader a staged file that holds the secret, as `Session` would."""
    digest = trials.store.put_bytes(SECRET.encode())
    files = {"agent": [], "grader": [StagedFile("key/answer.txt", digest, len(SECRET), False)]}
    sealed = spec.sealing is not Sealing.NONE
    spec.plan.deps_dir.rmdir()
    stage_dependencies(files, trials.store, spec.plan.deps_dir, sealed=sealed)
    return spec
