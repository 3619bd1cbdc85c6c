"""Decide how a trial counts if its tests did not work, in the transaction of its commit.

`records.grader_failures.decide` has the rule. This module finds the facts and applies the decision.
A left-out trial with the reward 0 becomes a `grade_error`. Committed slots never change, so a
decision stays even if later trials show something else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Self

from labledger.ledger.database import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.run_info import FailedGradings, ToldSince
from labledger.records import JsonObject, canonical_json
from labledger.records.attempt_result import Artifact, AttemptResult
from labledger.records.grader_failures import (
    KEY,
    CountedAs,
    FailureDecision,
    GraderFailure,
    TellingTrial,
    decide,
)
from labledger.records.outcomes import Reason, SlotStatus, Verdict

_MAX_REPLICATIONS = 10
"""How many replications of a task are read for each variant of a run."""

_CANDIDATES_SQL = f"""
SELECT other.run_no, run.run_id, other.schedule_idx, other.verdict, trial.reason, trial.attempt
FROM run_task AS own
JOIN run_task AS same ON same.task_id = own.task_id AND same.digest = own.digest
CROSS JOIN run_variant ON run_variant.run_no = same.run_no
CROSS JOIN slot_outcome AS other
  ON other.run_no = same.run_no AND other.variant_idx = run_variant.variant_idx
  AND other.task_idx = same.task_idx AND other.repl_idx < {_MAX_REPLICATIONS}
CROSS JOIN trial ON trial.run_no = other.run_no AND trial.schedule_idx = other.schedule_idx
CROSS JOIN slot_commit
  ON slot_commit.run_no = other.run_no AND slot_commit.schedule_idx = other.schedule_idx
CROSS JOIN run ON run.run_no = other.run_no
WHERE own.run_no = ?1 AND own.task_id = ?2 AND trial.image_id = ?3
  AND (other.verdict = '{Verdict.PASS}' OR (other.status = '{SlotStatus.GRADE_ERROR}' AND EXISTS (
    SELECT 1 FROM evidence_record
    WHERE evidence_record.run_no = trial.run_no
      AND evidence_record.schedule_idx = trial.schedule_idx
      AND evidence_record.attempt = trial.attempt
      AND evidence_record.record ->> '$.ext.{KEY}.by_reference')))
ORDER BY slot_commit.committed_at DESC, other.run_no DESC, other.schedule_idx DESC"""  # noqa: S608
_SCORE_SQL = "SELECT record FROM score WHERE run_no = ? AND schedule_idx = ? AND row_seq = 0"
_EVIDENCE_SQL = """
SELECT record FROM evidence_record WHERE run_no = ? AND schedule_idx = ? AND attempt = ?"""


@dataclass(frozen=True, slots=True)
class GraderSetting:
    """The setting of a grader. A trial shows something about another only in the same setting."""

    image_id: str
    """The image of the trial."""
    grader: str | None
    """The digest of the grader."""
    network: str | None
    grader_image: str | None
    """The image of a separate grader."""

    @classmethod
    def of(cls, image_id: str, grader: str | None, isolation: JsonObject) -> Self:
        """Return the setting of a trial with these isolation facts."""
        image = isolation.get("grader_image", {})
        return cls(image_id, grader, isolation.get("grader_network"), image.get("id"))


def find_telling(
    connection: Connection, run_no: int, task_id: str, setting: GraderSetting
) -> TellingTrial | None:
    """Return the newest committed trial that shows whether a grader works; None if none does.

    It can be in any run, but has the same task and setting. It passed, or it ran the reference
    solution and could not be graded.
    """
    candidates = connection.execute(_CANDIDATES_SQL, (run_no, task_id, setting.image_id)).all()
    for other_no, run_id, idx, verdict, reason, attempt in candidates:
        if verdict is not None:
            text = connection.execute(_SCORE_SQL, (other_no, idx)).scalar_one()
            ext = json.loads(text).get("ext", {})
            grader, telling = ext.get("grader", {}).get("digest"), TellingTrial(run_id, idx, None)
        else:
            text = connection.execute(_EVIDENCE_SQL, (other_no, idx, attempt)).scalar_one()
            record = json.loads(text)
            failure = GraderFailure.of_evidence(record)
            if failure is None:
                continue
            ext, grader = record["ext"], failure.grader
            telling = TellingTrial(run_id, idx, failure.way(reason))
        if GraderSetting.of(setting.image_id, grader, ext.get("isolation", {})) == setting:
            return telling
    return None


_FAILED_SQL = statements.expand("""
SELECT evidence_record.record ->> '$.ext.grader_failure.counts' AS counts,
  evidence_record.record ->> '$.ext.grader_failure.ground' AS ground,
  count(*), max(trial.schedule_idx)
FROM trial
JOIN evidence_record ON evidence_record.run_no = trial.run_no
  AND evidence_record.schedule_idx = trial.schedule_idx
  AND evidence_record.attempt = trial.attempt
WHERE trial.run_no = ?1 AND trial.schedule_idx >= ?2 AND trial.message IS NOT NULL
  AND trial.status IN ('completed', 'grade_error') AND {not_superseded trial}
  AND evidence_record.record ->> '$.ext.grader_failure.counts' IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2""")
_UNDECIDED_SQL = statements.expand("""
SELECT trial.schedule_idx, run_task.task_id, trial.image_id, evidence_record.record
FROM trial
JOIN slot ON slot.run_no = trial.run_no AND slot.schedule_idx = trial.schedule_idx
JOIN run_task ON run_task.run_no = slot.run_no AND run_task.task_idx = slot.task_idx
JOIN evidence_record ON evidence_record.run_no = trial.run_no
  AND evidence_record.schedule_idx = trial.schedule_idx
  AND evidence_record.attempt = trial.attempt
WHERE trial.run_no = ?1 AND trial.message IS NOT NULL
  AND trial.status IN ('completed', 'grade_error') AND {not_superseded trial}
  AND evidence_record.record ->> '$.ext.grader_failure.ground' = 'nothing_known'
ORDER BY trial.schedule_idx DESC LIMIT 20""")


def count_failed_gradings(
    connection: Connection, run_no: int, start: int = 0
) -> list[FailedGradings]:
    """Return the number of trials for each decision, from the slot `start` on."""
    return [FailedGradings(*row) for row in connection.execute(_FAILED_SQL, (run_no, start))]


def find_told_since(connection: Connection, run_no: int) -> list[ToldSince]:
    """Return the trials, among the newest 20 undecided ones, that a later trial now decides."""
    told_since = []
    for idx, task_id, image_id, text in connection.execute(_UNDECIDED_SQL, (run_no,)).all():
        record = json.loads(text)
        failure = GraderFailure.of_evidence(record)
        if failure is None:
            continue
        isolation = record.get("ext", {}).get("isolation", {})
        setting = GraderSetting.of(image_id, failure.grader, isolation)
        telling = find_telling(connection, run_no, task_id, setting)
        if telling is not None:
            told_since.append(ToldSince(idx, telling.as_json(), telling.way is None))
    return told_since


def settle(connection: Connection, run_no: int, result: AttemptResult) -> AttemptResult:
    """Return the last result of a slot, with the decision if its tests did not work.

    An agent that failed has not passed in any case. A trial that a regrading carries over keeps the
    decision of its own run.
    """
    record = result.evidence[-1] if result.evidence else {}
    failure = GraderFailure.of_evidence(record)
    agent = result.phases.get("agent")
    has_failed = agent is not None and agent.exit_status != 0
    if failure is None or failure.counts is not None or has_failed:
        return result
    if result.reason == Reason.EVIDENCE_INCOMPLETE or result.status not in _DECIDED:
        return result
    isolation = record.get("ext", {}).get("isolation", {})
    setting = GraderSetting.of(result.image_id, failure.grader, isolation)
    telling = find_telling(connection, run_no, result.ids.task_id, setting)
    has_reward = result.status is SlotStatus.COMPLETED
    decision = decide(
        failure.facts(isolation, result.reason, has_reward=has_reward, telling_trial=telling)
    )
    return _decided(result, record, failure.decided(decision), decision)


_DECIDED = frozenset({SlotStatus.COMPLETED, SlotStatus.GRADE_ERROR})
"""The statuses of trials whose grader ran or was expected to run."""


def _decided(
    result: AttemptResult, record: JsonObject, failure: GraderFailure, decision: FailureDecision
) -> AttemptResult:
    """Return a result with a decision in its evidence and its message."""
    ext = record.get("ext", {}) | {KEY: failure.as_json()}
    own_message = result.message or ""
    quoted = "" if failure.sentence in own_message else failure.sentence
    message = "; ".join(filter(None, (own_message, quoted, decision.sentence)))
    result = replace(result, message=message)
    if result.status is SlotStatus.COMPLETED and decision.counts is CountedAs.LEFT_OUT:
        rejected = [Artifact.inline(canonical_json.dump_bytes(row)) for row in result.scores[:1]]
        ext |= {"rejected": {"score": rejected[0].reference}}
        result = replace(
            result,
            status=SlotStatus.GRADE_ERROR,
            reason=Reason.GRADER_BOOTSTRAP_FAILED.value,
            scores=(),
            metrics=tuple(metric for metric in result.metrics if metric.source != "score"),
            artifacts=(*result.artifacts, *rejected),
        )
    return replace(result, evidence=(*result.evidence[:-1], {**record, "ext": ext}))
