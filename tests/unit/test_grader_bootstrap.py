"""Which logs show that a grader could not begin. All of them were written by real tools.

They are of containers without a network, behind a proxy that refuses, or with a server whose
certificate nobody trusts, and of tests that ran there and failed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labledger.benchmarks.harbor import rewards
from labledger.benchmarks.harbor.rewards import MAX_LOG_BYTES, failure_in
from labledger.files.untrusted_files import UntrustedFile

LOGS = Path(__file__).parent / "grader_logs"
FAILED = sorted((LOGS / "bootstrap_failed").iterdir())
RAN = sorted((LOGS / "tests_ran").iterdir())
CAP = 1 << 20


def found(folder: Path, name: str = "log", cap: int = CAP) -> str | None:
    return failure_in([UntrustedFile(folder, name)], UntrustedFile(folder, "ctrf.json"), cap)


@pytest.mark.parametrize("log", FAILED, ids=lambda path: path.stem)
def test_failed_bootstrap(log: Path) -> None:
    """A log of a grader that could not install its tools has a line that shows it."""
    line = found(log.parent, log.name)
    assert line is not None
    assert line in log.read_text()


@pytest.mark.parametrize("log", RAN, ids=lambda path: path.stem)
def test_tests_that_ran(log: Path) -> None:
    """Tests that ran and failed, also tests of the network, are no failed bootstrap."""
    assert found(log.parent, log.name) is None


def test_every_pattern_is_of_a_real_log() -> None:
    """Each pattern matches a line that a tool really wrote."""
    lines = [line for log in FAILED for line in log.read_text().splitlines()]
    for pattern in rewards._FAILURES:
        assert any(re.search(pattern, line) for line in lines), pattern


@pytest.mark.parametrize(
    "line",
    [
        "collected 3 items",
        "collecting ... collected 1 item",
        "1 passed, 2 warnings in 0.05s",
        "ERROR tests/test_x.py::test_a - fixture failed",
        "Ran 2 tests in 0.001s",
        "not ok 1 - it works",
        "Tests:       1 failed, 2 passed, 3 total",
        "--- FAIL: TestX (0.00s)",
        "test result: FAILED. 0 passed; 1 failed; 0 ignored",
    ],
)
def test_sign_of_a_test(tmp_path: Path, line: str) -> None:
    """One line that says that a test ran outweighs every failure before it."""
    (tmp_path / "log").write_text(f"curl: (6) Could not resolve host: astral.sh\n{line}\n")
    assert found(tmp_path) is None


@pytest.mark.parametrize("line", ["collected 0 items", "Ran 0 tests in 0.000s", "0 passed"])
def test_no_test(tmp_path: Path, line: str) -> None:
    """Test tools that found nothing to run have run nothing."""
    (tmp_path / "log").write_text(f"curl: (6) Could not resolve host: astral.sh\n{line}\n")
    assert found(tmp_path) is not None


def test_report_of_tests(tmp_path: Path) -> None:
    """A CTRF report that counts a test outweighs the log; an empty or broken one does not."""
    (tmp_path / "log").write_text("curl: (6) Could not resolve host: astral.sh\n")
    report = tmp_path / "ctrf.json"
    for content, expected in (("[", False), (counting(0), False), (counting(3), True)):
        report.write_text(content)
        assert (found(tmp_path) is None) is expected


def counting(tests: int) -> str:
    return json.dumps({"results": {"summary": {"tests": tests}}})


def test_hostile_logs(tmp_path: Path) -> None:
    """Incomplete logs, links and endless lines show nothing, and colours hide nothing."""
    log = tmp_path / "log"
    log.write_text("\x1b[31mcurl: (6) Could not resolve host: astral.sh\x1b[0m\n")
    assert found(tmp_path) == "curl: (6) Could not resolve host: astral.sh"
    assert found(tmp_path, cap=10) is None
    (tmp_path / "link").symlink_to("log")
    assert found(tmp_path, "link") is None
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    assert found(tmp_path, cap=0) is None
    log.write_bytes(b"\xff\x00" * 100_000)
    assert found(tmp_path) is None
