"""From the grader's two files to rows, a verdict, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from trial_kit import (
    BENCHMARK,
    GRADES,
    PREDICTION,
    PYTHON,
    SCORE,
    Trials,
    brief,
    phase,
    predicts,
    python,
    scores,
)

from labledger import schema
from labledger.records import GradeReason, TrialResult
from labledger.trial import outputs
from labledger.trial.worker import run_trial

pytestmark = [pytest.mark.docker]

PREDICTION_PATH = "AGENTLAB_BENCHMARK_PREDICTION_PATH"
SCORE_PATH = "AGENTLAB_BENCHMARK_SCORE_PATH"


def grade_error(trials: Trials, grader: str, image: str | None = None) -> TrialResult:
    """The result of a trial whose grader must come to a `grade_error` that says what and why."""
    image_setting = {"image": image} if image else {}
    result = trials.run("true", grader, **image_setting)
    assert (result.status, result.exit_status) == ("grade_error", 0)
    assert result.message
    assert result.verdict is None
    assert result.scores == ()
    return result


def test_rows_are_stamped(trials: Trials) -> None:
    """A grader's rows get our bookkeeping, whatever it wrote there, and fit their schemas."""
    claims = {"schedule_idx": 99, "slot_commit_id": "x", "attempt": 9, "row_seq": 5, "ts": "never"}
    spec_settings = {"benchmark": {"version": "2"}, "attempt": 3}
    result = trials.run(
        "true",
        predicts(PREDICTION | claims) + scores(SCORE | {"metrics": {"m": 1}, "ext": {"any": [1]}}),
        **spec_settings,
    )
    assert brief(result) == ("completed", None, 0)
    stamped = {
        "schedule_idx": 7,
        "slot_commit_id": result.slot_commit_id,
        "attempt": 3,
        "row_seq": 0,
        "ts": result.ended_at,
        "ids": result.ids.as_json(),
        "benchmark": {k: BENCHMARK[k] for k in ("adapter_id", "name", "split")} | {"version": "2"},
    }
    (prediction,), (score,) = result.predictions, result.scores
    isolation = result.evidence[0]["ext"]["isolation"]
    assert prediction == PREDICTION | stamped | {"schema_version": "benchmark_prediction_record_v1"}
    assert score == SCORE | stamped | {
        "schema_version": "benchmark_score_record_v1",
        "evaluator": BENCHMARK["evaluator"],
        "metrics": {"m": 1},
        "ext": {"any": [1], "isolation": isolation},
    }
    schema.check(prediction, "benchmark_prediction_record_v1")
    schema.check(score, "benchmark_score_record_v1")


def test_what_a_grader_says_itself_stands(trials: Trials) -> None:
    """A grader may give ids in part, its own benchmark and evaluator, and an error."""
    says: dict[str, Any] = {
        "ids": {"task_id": "t/1", "repl_idx": 2},
        "benchmark": {"adapter_id": "other", "version": "9"},
        "evaluator": {"name": "official", "mode": "official", "command": ["grade"]},
        "verdict": "error",
        "error": {"error_type": "E", "message": "m", "stack": "s"},
    }
    result = trials.run("true", predicts() + scores(SCORE | says))
    assert brief(result) == ("completed", None, 0)
    (score,) = result.scores
    assert score["ids"] == result.ids.as_json()
    assert score["benchmark"] == {
        "adapter_id": "other",
        "name": "demo-bench",
        "split": "test",
        "version": "9",
    }
    assert score["evaluator"] == says["evaluator"]
    assert result.verdict == "error"


def test_missing_rows(trials: Trials) -> None:
    """A file that the grader did not write is told by name; the first one missing is the reason."""
    assert grade_error(trials, scores()).reason == GradeReason.PREDICTION_MISSING
    result = grade_error(trials, predicts())
    assert result.reason == GradeReason.SCORE_MISSING
    assert len(result.predictions) == 1
    result = grade_error(trials, "true")
    assert result.reason == GradeReason.PREDICTION_MISSING
    assert result.message is not None
    assert "benchmark_prediction.json" in result.message


ROW = json.dumps(SCORE)
NOT_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "NaN": (ROW.replace("1.0", "NaN").encode(), "NaN"),
    "Infinity": (ROW.replace("1.0", "-Infinity").encode(), "Infinity"),
    "beyond a double": (ROW.replace("1.0", "1e999").encode(), "not finite"),
    "key twice": (ROW.replace("{", '{"verdict": "fail", ').encode(), "twice"),
    "cut short": (ROW[:-2].encode(), "line 1"),
    "two values": ((ROW + ROW).encode(), "Extra data"),
    "byte order mark": (b"\xef\xbb\xbf" + ROW.encode(), "byte order mark"),
    "UTF-16": (ROW.encode("utf-16"), "not UTF-8"),
    "UTF-16 without mark": (ROW.encode("utf-16-le"), "not JSON"),
    "Latin-1": (ROW.replace("resolved", "gr\u00fcn").encode("latin-1"), "not UTF-8"),
    "deep": (ROW.replace("1.0", "[" * 500 + "]" * 500).encode(), "deeper than 64"),
    "very deep": (b"[" * 400_000, "deep"),
    "big integer": (ROW.replace("1.0", "9" * 30).encode(), "64 bits"),
    "half a pair": (ROW.replace("resolved", "\\ud83d").encode(), "surrogate"),
    "comment": (b"// hi\n" + ROW.encode(), "not JSON"),
}
NOT_VALID: dict[str, tuple[Any, str]] = {
    "not an object": ([SCORE], "object"),
    "field unknown": (SCORE | {"verdikt": "pass"}, "verdikt"),
    "field missing": ({"verdict": "pass", "primary_metric_name": "m"}, "primary_metric_value"),
    "wrong type": (SCORE | {"primary_metric_value": "1"}, "primary_metric_value"),
    "true as a number": (SCORE | {"primary_metric_value": True}, "primary_metric_value"),
    "unknown verdict": (SCORE | {"verdict": "maybe"}, "verdict"),
    "wrong version": (SCORE | {"schema_version": "benchmark_score_record_v2"}, "schema_version"),
    "ids not an object": (SCORE | {"ids": "t/1"}, "ids"),
    "ids unknown": (SCORE | {"ids": {"tasks": 1}}, "ids"),
    "benchmark not an object": (SCORE | {"benchmark": None}, "benchmark"),
    "evaluator null": (SCORE | {"evaluator": None}, "evaluator"),
}
OTHERS_IDS: dict[str, tuple[Any, str]] = {
    "other task": (SCORE | {"ids": {"task_id": "t/2"}}, "t/2"),
    "other run": (SCORE | {"ids": {"run_id": "run-2"}}, "run-2"),
    "other repetition": (SCORE | {"ids": {"repl_idx": 0}}, "repl_idx"),
    "other type": (SCORE | {"ids": {"repl_idx": "2"}}, "repl_idx"),
}


def bad_rows(reason: GradeReason) -> dict[str, tuple[bytes, str]]:
    if reason is GradeReason.INVALID_JSON:
        return NOT_JSON
    rows = NOT_VALID if reason is GradeReason.SCHEMA_INVALID else OTHERS_IDS
    return {what: (json.dumps(row).encode(), word) for what, (row, word) in rows.items()}


@pytest.mark.parametrize(
    "reason",
    [GradeReason.INVALID_JSON, GradeReason.SCHEMA_INVALID, GradeReason.IDENTITY_MISMATCH],
)
def test_rows_that_are_not_valid(trials: Trials, reason: GradeReason) -> None:
    """A row that is no row has its reason, a message that says what is wrong, and is kept."""
    rejudge = Rejudge(trials)
    for what, (content, word) in bad_rows(reason).items():
        result = rejudge(content)
        assert result.reason == reason, what
        assert result.message is not None
        assert word in result.message, what
        assert result.message.startswith("benchmark_score.json"), what
        assert trials.rejected(result, "score") == content, what
        assert len(result.predictions) == 1, what


class Rejudge:
    """One container; its exit and its prediction are collected with many a score file."""

    def __init__(self, trials: Trials) -> None:
        self.spec = trials.spec("true", GRADES)
        run_trial(self.spec)

    def __call__(self, score: bytes) -> TrialResult:
        (self.spec.folder / "out" / "benchmark_score.json").write_bytes(score)
        result = run_trial(replace(self.spec, may_exist=True))
        assert (result.status, result.verdict, result.exit_status) == ("grade_error", None, 0)
        return result


def test_a_row_may_say_numbers_as_it_likes(trials: Trials) -> None:
    """`2.0` for the repetition 2 is the same number, and the row holds ours."""
    result = trials.run("true", predicts() + scores(SCORE | {"ids": {"repl_idx": 2.0}}))
    assert brief(result) == ("completed", None, 0)
    assert json.dumps(result.scores[0]["ids"]["repl_idx"]) == "2"


UNSAFE = {
    "link to a host's file": ("ln -s /etc/shadow PATH", "symbolic link"),
    "link to a good row": ("echo '{}' >real; ln -s \"$PWD/real\" PATH", "symbolic link"),
    "FIFO": ("mkfifo PATH", "FIFO"),
    "folder": ("mkdir PATH", "folder"),
    "hard link": ("echo '{}' >PATH; ln PATH /agentlab/out/other", "hard links"),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_outputs_that_are_not_plain_files(trials: Trials, what: str) -> None:
    """A row that is no regular file with one name is not opened."""
    planted, word = UNSAFE[what]
    grader = predicts() + planted.replace("PATH", f'"${SCORE_PATH}"')
    result = grade_error(trials, grader)
    assert result.reason == GradeReason.OUTPUT_UNSAFE
    assert result.message is not None
    assert word in result.message
    assert "rejected" not in result.evidence[0].get("ext", {})


def test_sockets_and_devices(trials: Trials) -> None:
    """A socket is refused, and a device cannot be made in a container at all."""
    grader = f"""
import os, socket
socket.socket(socket.AF_UNIX).bind(os.environ["{SCORE_PATH}"])
try: os.mknod(os.environ["{PREDICTION_PATH}"], 0o20666, os.makedev(1, 5))
except PermissionError: pass
"""
    result = trials.run("true", phase(python(grader)), image=PYTHON)
    assert brief(result) == ("grade_error", "prediction_missing", 0)
    result = trials.run("true", phase(python(grader + predict_in_python())), image=PYTHON)
    assert brief(result) == ("grade_error", "output_unsafe", 0)
    assert result.message is not None
    assert "socket" in result.message


def predict_in_python() -> str:
    return f"open(os.environ['{PREDICTION_PATH}'], 'w').write({json.dumps(PREDICTION)!r})\n"


CAPS: dict[str, tuple[Callable[[], str], int]] = {
    "prediction": (scores, outputs.PREDICTION_CAP),
    "score": (predicts, outputs.SCORE_CAP),
}


@pytest.mark.parametrize("name", CAPS)
def test_outputs_that_are_too_large(trials: Trials, name: str) -> None:
    """A sparse file of many gigabytes is refused unread; the cap is in the message."""
    other, cap = CAPS[name]
    path = f"/agentlab/out/benchmark_{name}.json"
    for size in (cap + 1, 20 << 30):
        grader = f"{other()}dd if=/dev/zero of={path} bs=1 count=0 seek={size} 2>/dev/null"
        result = grade_error(trials, grader)
        assert result.reason == GradeReason.OUTPUT_TOO_LARGE
        assert result.message is not None
        assert f"{size:,}" in result.message
        assert f"{cap:,}" in result.message


def test_first_reason_stands(trials: Trials) -> None:
    """Of a failed grader's many faults its exit is the reason; of two bad rows the prediction."""
    bad = f'echo x >"${PREDICTION_PATH}"; mkdir "${SCORE_PATH}"'
    result = trials.run("true", f"{bad}; exit 1")
    assert brief(result) == ("grade_error", "grader_exit_nonzero", 40)
    result = grade_error(trials, bad)
    assert result.reason == GradeReason.INVALID_JSON
    assert trials.rejected(result, "prediction") == b"x\n"


def test_a_valid_score_beside_a_bad_prediction_is_rejected(trials: Trials) -> None:
    """Where the prediction is no row the score is none either; what it was is kept."""
    result = grade_error(trials, f'{scores()}echo {{}} >"${PREDICTION_PATH}"')
    assert result.reason == GradeReason.SCHEMA_INVALID
    assert json.loads(trials.rejected(result, "score"))["verdict"] == "pass"
    assert trials.rejected(result, "prediction") == b"{}\n"


def test_failed_agent_whose_grader_fails(trials: Trials) -> None:
    """An agent's failure does not hide that its grader wrote no rows."""
    result = trials.run("exit 1", "true")
    assert brief(result) == ("grade_error", "prediction_missing", 10)
    assert result.phases["agent"].exit_status == 1
