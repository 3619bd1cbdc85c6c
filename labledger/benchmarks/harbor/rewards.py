"""Derive a trial's score from the rewards that a grader left in its output folder.

For test scripts that know nothing of labledger: `reward.json`, an object of numbers, or else
`reward.txt`, one number. All are metrics of the score, and the primary one decides, or the lowest
if no reward has that name and none was authored. The exit status of the grader does not matter. A
reward of 0 of a grader that could not install what it needs says nothing of the agent: a log line
that matches `_FAILURES`, with none that matches `_TESTS_RAN`, makes it a `grade_error`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from labledger.errors import MalformedJson, SchemaInvalid
from labledger.experiment.grading_settings import ResultReader, ResultSource
from labledger.files.untrusted_files import MAX_VALUES, MIB, SCORE_CAP, UnsafeFile, UntrustedFile
from labledger.records import JsonObject, canonical_json
from labledger.records.outcomes import Reason, SlotStatus, Verdict
from labledger.trial.evidence.grading import (
    SCORE_SCHEMA,
    GradedTrial,
    GradingOutcome,
    parse_json,
    stamped_row,
)
from labledger.trial.evidence.redaction import Redactor

MAX_LOG_BYTES = 2 * MIB
"""A longer log is not searched: a grader that could not begin writes little."""
MAX_QUOTED = 300
"""How many characters of a matching line are quoted."""

_MAX_LINE = 2_000
"""How many characters of a line are searched."""

_LOCAL = r"(?!(?:https?://)?(?:localhost|127\.|0\.0\.0\.0|\[?::1))"
"""Not a host of the container itself: a grader may ask a service of the agent there."""

_FAILURES = (
    # curl: host not found, not reached, proxy refuses, certificate not trusted
    r"^curl: \(6\) Could not resolve host: " + _LOCAL,
    r"^curl: \(56\) (?:CONNECT tunnel failed|Received HTTP code \d+ from proxy)",
    r"^curl: \(60\) SSL certificate problem: ",
    # wget of GNU and of busybox
    r"^wget: unable to resolve host address [‘'\"]" + _LOCAL,
    r"^wget: bad address '" + _LOCAL,
    r"^Proxy tunneling failed: ",
    # pip
    r"^ERROR: Could not find a version that satisfies the requirement .*: none\)$",
    r"^ERROR: No matching distribution found for ",
    # uv
    r"^(?:error: |  cause: )(?:Failed to (?:fetch|download)\b|Request failed after )",
    # apt-get
    r"^E: (?:Failed to fetch|Unable to locate package) ",
    # git
    r"^fatal: unable to access '" + _LOCAL,
    r"^ssh: Could not resolve hostname ",
    # npm
    r"^npm (?:ERR!|error) code (?:EAI_AGAIN|ENOTFOUND|ECONN\w+|ETIMEDOUT|\w*CERT\w*)$",
    # tools for testing that were to be installed
    r"(?:^|: )(?:uvx?|pytest|bats): (?:command )?not found$",
    r"\.local/bin/env: No such file",
    r": No module named '?pytest'?$",
)

_TESTS_RAN = (
    # pytest
    r"^collect(?:ed|ing \.\.\. collected) [1-9]\d* items?",
    r"\b[1-9]\d* (?:passed|failed|skipped|xfailed|xpassed)\b",
    r"^(?:PASSED|FAILED|ERROR) \S+::",
    # unittest
    r"^Ran [1-9]\d* tests? in ",
    # TAP, and node's own
    r"^\s*(?:not )?ok [1-9]\d*\b",
    r"^# tests [1-9]\d*$",
    r"^ℹ tests [1-9]\d*$",
    # jest, go, cargo
    r"^Tests: +[1-9]\d* ",
    r"^\s*--- (?:PASS|FAIL|SKIP): ",
    r"^test result: \w+\. [1-9]\d* passed|^test result: \w+\. \d+ passed; [1-9]\d* failed",
)


_INSTALL_FAILED, _TEST_RAN = (
    re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for patterns in (_FAILURES, _TESTS_RAN)
)


def failure_in(
    logs: Iterable[UntrustedFile], report: UntrustedFile, max_log_bytes: int
) -> str | None:
    """Return the first line of the logs that shows the failure; None if a test may have run.

    Many published graders first install tools over the network, and report the reward 0 if that
    fails. `docs/reference/outcomes.md` documents the patterns, and tests try them on logs of real
    tools. `report` is a report of tests in the format CTRF, which need not exist. A log of
    `max_log_bytes` or more may be incomplete, and then nothing is known.
    """
    limit = min(max_log_bytes or MAX_LOG_BYTES, MAX_LOG_BYTES)
    found: str | None = None
    try:
        if _has_tests(report):
            return None
        for log in logs:
            for line in _lines(log.read(limit) or b""):
                if _TEST_RAN.search(line):
                    return None
                if found is None and _INSTALL_FAILED.search(line):
                    found = line
    except UnsafeFile:
        return None
    return found


def _lines(content: bytes) -> Iterator[str]:
    for line in content.splitlines():
        if line:
            yield _ESCAPES.sub("", line[:_MAX_LINE].decode("utf-8", "replace"))


_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
"""Colours of a terminal."""


def _has_tests(report: UntrustedFile) -> bool:
    """Return whether a CTRF report counts at least one test."""
    content = report.read(MAX_LOG_BYTES)
    if content is None:
        return False
    try:
        tests = canonical_json.loads(content, max_values=MAX_VALUES)["results"]["summary"]["tests"]
    except (MalformedJson, LookupError, TypeError):
        return False
    return isinstance(tests, int) and tests > 0


PRIMARY = "reward"
"""The name of the primary reward, and of the one in reward.txt."""
PASS_AT = 1.0
TOLERANCE = 1e-9
"""By which share of `pass_at` a reward may miss it and still reach it.

Graders add up weights such as 0.7, 0.2 and 0.1, and the sum in floating point is
0.9999999999999999. The stored reward stays as the grader wrote it.
"""

_JSON, _TEXT = "reward.json", "reward.txt"


class _BadRewards(Exception):
    """The rewards cannot be used. The argument says why, in a sentence."""


def grade(trial: GradedTrial, outcome: GradingOutcome) -> None:
    """Complete the outcome of a trial whose grader left rewards.

    If no test ran because the grader could not install or reach what it needs, the trial is a
    `grade_error`.
    """
    source = trial.source
    outcome.needs_prediction = True
    folder = trial.outputs.of_grader(source.folder or "")
    if outcome.status is SlotStatus.GRADE_ERROR or folder is None:
        return
    try:
        name, rewards = _read(folder, trial.redactor)
        primary = _primary(rewards, source)
        if rewards[primary] == 0 and (line := _bootstrap_failure(trial, folder)):
            outcome.as_grade_error(Reason.GRADER_BOOTSTRAP_FAILED, line)
            return
        outcome.score = _score(trial, name, rewards, primary)
    except FileNotFoundError:
        missing = f"the grader left neither {_JSON} nor {_TEXT} in {source.folder}"
        if line := _bootstrap_failure(trial, folder):
            outcome.as_grade_error(Reason.GRADER_BOOTSTRAP_FAILED, line)
        outcome.as_grade_error(Reason.REWARD_MISSING, missing)
    except UnsafeFile as error:
        outcome.as_grade_error(error.reason, error.message)
    except (_BadRewards, MalformedJson, SchemaInvalid) as error:
        outcome.as_grade_error(Reason.REWARD_INVALID, str(error))


def _read(folder: Path, redactor: Redactor) -> tuple[str, dict[str, float]]:
    """Return the name of the file with the rewards, and the rewards by name.

    Raises `FileNotFoundError` if there is none, `UnsafeFile`, `MalformedJson` or `_BadRewards`.
    """
    if (content := UntrustedFile(folder, _JSON).read(SCORE_CAP)) is not None:
        return _JSON, _rewards_of_json(content, redactor)
    if (content := UntrustedFile(folder, _TEXT).read(SCORE_CAP)) is not None:
        return _TEXT, {PRIMARY: _reward_of_text(content)}
    raise FileNotFoundError


def _rewards_of_json(content: bytes, redactor: Redactor) -> dict[str, float]:
    try:
        rewards = parse_json(content, redactor)
    except MalformedJson as error:
        raise _BadRewards(f"{_JSON} {error.message}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise _BadRewards(f"{_JSON} is not a JSON object with at least one number")
    for name, value in rewards.items():
        if not isinstance(value, int | float):
            raise _BadRewards(f"{_JSON}: {redactor.redact_text(name)[:100]!r} is not a number")
    # True and false are 1 and 0, as in the programs that write such files.
    return {
        redactor.redact_text(name): int(value) if isinstance(value, bool) else value
        for name, value in rewards.items()
    }


def _reward_of_text(content: bytes) -> float:
    try:
        value = float(content.decode("utf-8"))
    except ValueError:
        raise _BadRewards(f"{_TEXT} is not a number") from None
    if not math.isfinite(value):
        raise _BadRewards(f"{_TEXT} is {value}; a finite number is expected")
    return value


def _primary(rewards: dict[str, float], source: ResultSource) -> str:
    """Return the name of the reward that decides.

    A single one does, whatever its name is. Of several without the usual name the lowest does, so
    that a pass has reached `pass_at` in all of them.
    """
    wanted = source.primary or PRIMARY
    if wanted in rewards:
        return wanted
    if len(rewards) == 1 or wanted == PRIMARY:
        return min(rewards, key=rewards.__getitem__)
    listed = ", ".join(sorted(rewards)[:5])
    raise _BadRewards(f"none of the {len(rewards):,} rewards is called {wanted}: {listed}"[:500])


def reaches(reward: float, pass_at: float) -> bool:
    """Return whether a reward reaches the least one that passes, within `TOLERANCE`."""
    # A comparison works for integers that no float can hold.
    return reward >= pass_at - TOLERANCE * abs(pass_at)


def _score(trial: GradedTrial, file: str, rewards: dict[str, float], primary: str) -> JsonObject:
    source, benchmark = trial.source, trial.benchmark
    pass_at = PASS_AT if source.pass_at is None else source.pass_at
    is_chosen = len(rewards) > 1 and primary != (source.primary or PRIMARY)
    how = {"decided_by": "lowest"} if is_chosen else {}
    members = {
        "verdict": (Verdict.PASS if reaches(rewards[primary], pass_at) else Verdict.FAIL).value,
        "primary_metric_name": primary,
        "primary_metric_value": rewards[primary],
        "metrics": rewards,
        "evaluator": benchmark.evaluator,
        "ext": {"rewards": {"file": file, "pass_at": pass_at} | how},
    }
    return stamped_row(trial.stamp, benchmark, SCORE_SCHEMA, members)


def _bootstrap_failure(trial: GradedTrial, folder: Path) -> str | None:
    """Return why the grader could not work, if its logs show that it ran no test."""
    outputs = trial.outputs
    state = outputs.grader_folder / "state"
    logs = [UntrustedFile(state, f"grader.{stream}") for stream in ("stdout", "stderr")]
    if trial.source.log is not None:
        logs.append(UntrustedFile(folder, trial.source.log))
    line = failure_in(logs, UntrustedFile(folder, "ctrf.json"), outputs.max_log_bytes)
    if line is None:
        return None
    quoted = trial.redactor.redact_text(line)[:MAX_QUOTED]
    return f"the grader could not install or reach what it needs, and ran no test: {quoted}"


REWARDS = ResultReader(
    required={"folder": "where the grader leaves its results"},
    optional=frozenset({"primary", "pass_at", "log"}),
    ignores_exit_status=True,
    judge=grade,
)
"""`from: rewards`."""
