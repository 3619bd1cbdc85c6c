"""Log lines that show a broken grader, and log lines that show that tests ran.

Real tools wrote the logs: in containers without a network, behind a refusing proxy, or with an
untrusted certificate, and in tests that ran there and failed. `LINES` holds lines that the tools
print.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labledger.benchmarks.harbor.log_complaints import (
    COMPLAINTS,
    MAX_LOG_BYTES,
    find_complaint,
)
from labledger.files.untrusted_files import UntrustedFile
from labledger.records.grader_failures import Complaint

LOGS = Path(__file__).parent / "grader_logs"
FAILED = sorted((LOGS / "bootstrap_failed").iterdir())
RAN = sorted((LOGS / "tests_ran").iterdir())
CAP = 1 << 20


def found(folder: Path, name: str = "log", cap: int = CAP) -> str | None:
    complaint = complaint_in(folder, name, cap)
    return None if complaint is None else complaint.line


def complaint_in(folder: Path, name: str = "log", cap: int = CAP) -> Complaint | None:
    return find_complaint([UntrustedFile(folder, name)], UntrustedFile(folder, "ctrf.json"), cap)


LINES = [
    ("curl", "curl: (6) Could not resolve host: astral.sh"),
    ("curl", "curl: (7) Failed to connect to astral.sh port 443 after 12 ms: Could not connect"),
    ("curl", "curl: (22) The requested URL returned error: 503"),
    ("curl", "curl: (28) Failed to connect to astral.sh port 443 after 130001 ms: Timed out"),
    ("curl", "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received"),
    ("curl", "curl: (35) OpenSSL SSL_connect: Connection reset by peer in connection to x.io:443"),
    ("curl", "curl: (60) SSL certificate problem: unable to get local issuer certificate"),
    ("apt", "E: Unable to locate package curl"),
    ("apt", "Error: Unable to locate package curl"),
    ("apt", "Error: Failed to fetch http://deb.debian.org/x.deb  Could not connect"),
    ("apt", "E: The repository 'http://deb.debian.org/d x Release' does not have a Release file."),
    ("apt", "E: Package 'curl' has no installation candidate"),
    ("apt", "E: You don't have enough free space in /var/cache/apt/archives/."),
    ("apk", "ERROR: unable to select packages:"),
    ("dnf", "Error: Failed to download metadata for repo 'appstream': Cannot prepare"),
    ("pip", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left"),
    ("pip", "error: externally-managed-environment"),
    ("npm", "npm error code E503"),
    ("npm", "npm ERR! code UNABLE_TO_VERIFY_LEAF_SIGNATURE_CERT"),
    ("go", 'go: x.io/x@v1.9.0: Get "https://x.io/": dial tcp: lookup x.io: no such host'),
    ("go", "go: example.com/x@v1: reading https://proxy.golang.org/x: 404 Not Found"),
    ("conda", "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://repo.anaconda.com/x>"),
    ("conda", "PackagesNotFoundError: The following packages are not available:"),
    ("conda", "critical libmamba Could not solve for environment specs"),
    ("cargo", "error: failed to download from `https://index.crates.io/config.json`"),
    ("cargo", "error: failed to get `serde` as a dependency of package `x v0.1.0`"),
    ("cargo", "warning: spurious network error (3 tries remaining): [6] Could not resolve host"),
    ("maven", "[ERROR] Failed to execute goal on project x: Could not resolve dependencies"),
    ("maven", "[FATAL] Non-resolvable parent POM for x:1: Could not transfer artifact"),
    ("pytest", "collected 0 items"),
    ("pytest", "===== no tests ran in 0.01s ====="),
    ("pytest", "pytest: error: unrecognized arguments: --ctrf /logs/verifier/ctrf.json"),
    ("pytest", "ImportError while loading conftest '/tests/conftest.py'."),
    ("pytest", "ERROR: file or directory not found: /tests/test_outputs.py"),
    ("missing tool", "/tests/test.sh: line 3: uvx: command not found"),
    ("missing tool", "/tests/test.sh: line 3: pip: command not found"),
    ("missing tool", "/tests/setup/run.sh: 3: jest: not found"),
    ("missing tool", "/usr/bin/python3: No module named pytest"),
    ("disk", "OSError: [Errno 28] No space left on device"),
    ("disk", "npm warn tar TAR_ENTRY_ERROR ENOSPC: no space left on device, write"),
]


@pytest.mark.parametrize(("tool", "line"), LINES, ids=[line[:30] for _, line in LINES])
def test_a_line_of_a_tool(tmp_path: Path, tool: str, line: str) -> None:
    """Each line of a tool that could not work is recognized, with the tool."""
    (tmp_path / "log").write_text(f"Preparing the tests\n{line}\n")
    complaint = complaint_in(tmp_path)
    assert complaint is not None
    assert (complaint.tool, complaint.line) == (tool, line)


@pytest.mark.parametrize(
    "line",
    [
        "curl: (7) Failed to connect to localhost port 8000 after 0 ms: Could not connect",
        "curl: (7) Failed to connect to 127.0.0.1 port 8000 after 0 ms: Could not connect",
        "curl: (28) Failed to connect to localhost port 8000 after 5001 ms: Timed out",
        "curl: (52) Empty reply from server",
        "E   ModuleNotFoundError: No module named 'solution'",
        "collected 0 items / 1 error",
        "ImportError while importing test module '/tests/test_outputs.py'.",
        "error: the answer is wrong",
        "./solution.sh: line 3: jq: command not found",
        "go: go.mod file not found in current directory",
        "error: could not compile `solution` (bin) due to 1 previous error",
        "[ERROR] COMPILATION ERROR :",
    ],
)
def test_a_line_about_the_answer(tmp_path: Path, line: str) -> None:
    """A failure that the agent's work causes, such as a stopped service, is not a complaint."""
    (tmp_path / "log").write_text(f"{line}\n")
    assert found(tmp_path) is None


@pytest.mark.parametrize("log", FAILED, ids=lambda path: path.stem)
def test_failed_bootstrap(log: Path) -> None:
    """A log of a grader that could not install its tools has a line that shows it."""
    line = found(log.parent, log.name)
    assert line is not None
    assert line in log.read_text()


@pytest.mark.parametrize("log", RAN, ids=lambda path: path.stem)
def test_tests_that_ran(log: Path) -> None:
    """Tests that ran and failed, also tests of the network, are not a failed bootstrap."""
    assert found(log.parent, log.name) is None


def test_every_tool_has_a_log_or_a_line() -> None:
    """Each tool of the table has a case."""
    found_in_logs = {complaint_in(log.parent, log.name).tool for log in FAILED}  # type: ignore[union-attr]
    assert {tool for tool, _ in LINES} | found_in_logs == set(COMPLAINTS)


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
    """One line about a test that ran outweighs every failure before it."""
    (tmp_path / "log").write_text(f"curl: (6) Could not resolve host: astral.sh\n{line}\n")
    assert found(tmp_path) is None


@pytest.mark.parametrize("line", ["collected 0 items", "Ran 0 tests in 0.000s", "0 passed"])
def test_no_test(tmp_path: Path, line: str) -> None:
    """Test tools that found no tests have not run tests."""
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
    """Incomplete logs, links and endless lines prove nothing, and colors hide nothing."""
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
