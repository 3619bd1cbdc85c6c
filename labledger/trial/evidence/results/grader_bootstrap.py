"""Recognize a grader that could not install or reach what it needs, and so ran no test.

Many published graders first install tools over the network, and report the reward 0 if that fails:
that says nothing of the agent. A log shows such a failure if a line of it matches `_FAILURES` and
none matches `_TESTS_RAN`. `docs/reference/outcomes.md` documents the patterns, and tests try them
on logs of real tools. Used by `rewards`; the logs are hostile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from labledger.errors import MalformedJson
from labledger.records import canonical_json
from labledger.workspace.untrusted_files import MAX_VALUES, MIB, UnsafeFile, UntrustedFile

MAX_LOG_BYTES = 2 * MIB
"""A longer log is not searched: a grader that could not begin writes little."""
MAX_QUOTED = 300
"""How many characters of a matching line are quoted."""

_MAX_LINE = 2_000
"""How many characters of a line are searched."""

_LOCAL = r"(?!(?:https?://)?(?:localhost|127\.|0\.0\.0\.0|\[?::1))"
"""Not a host of the container itself: a grader may ask a service of the agent there."""

_FAILURES = tuple(
    re.compile(pattern)
    for pattern in (
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
)

_TESTS_RAN = tuple(
    re.compile(pattern)
    for pattern in (
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
)


_FAILED, _TEST_RAN = (
    re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns))
    for patterns in (_FAILURES, _TESTS_RAN)
)


def failure_in(
    logs: Iterable[UntrustedFile], report: UntrustedFile, max_log_bytes: int
) -> str | None:
    """Return the first line of the logs that shows the failure; None if a test may have run.

    `report` is a report of tests in the format CTRF, which need not exist. A log of
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
                if found is None and _FAILED.search(line):
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
