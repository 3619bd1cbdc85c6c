"""The grader: runs the program that the agent left, and then the task's tests, in one process.

As in the benchmarks' own runners, the program runs by `exec` in an empty namespace: it is not
`__main__`, so a demonstration below `if __name__ == "__main__":` does not run.

The process has a time limit and, where the grader runs as root, an unprivileged user, so that the
program can read neither the tests' file nor change the grader's records. It tells which tests
passed. An answer passes if all of its tests did. A wrong, endless or missing program is a verdict;
if the grader itself cannot work, it exits with an error, and the trial is a grade_error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOBODY = 65534
MAX_PROGRAM_BYTES = 1 << 20
MAX_REPORT_BYTES = 1 << 20

KEY_BYTES = 32

# Runs in a process of its own: the program, the setup, each test. One line of JSON for each test.
# All are compiled before the program runs, and what is called after that was looked up before, so
# that a program which replaces builtins changes nothing. Each passed test is told with a key, which
# is read only then: while the program or a test runs, no object of this process holds one.
RUNNER = """
import contextlib, json, os, sys
request = json.load(sys.stdin)
keys, report = int(sys.argv.pop()), int(sys.argv.pop())
with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")  # If memory runs out, the kernel ends this process and not the grader.

def main(
    space, program, setup, tests, name,
    compile=compile, exec=exec, error_type=BaseException, dumps=json.dumps,
    read=os.read, write=os.write, leave=os._exit,
):
    def prepare(name, text):
        try:
            return compile(text, name, "exec"), name
        except error_type as error:
            return None, f"{name}: {type(error).__name__}: {error}"[:300]

    def run(code, name):
        if code is None:
            return name
        try:
            exec(code, space)
        except error_type as error:
            return f"{name}: {type(error).__name__}: {error}"[:300]
        return None

    def tell(line):
        write(report, dumps(line).encode() + b"\\n")

    first = [prepare(name, program), prepare("setup", setup)]
    prepared = [prepare("test", test) for test in tests]
    for code, label in first:
        problem = run(code, label)
        if problem is not None:
            tell({"problem": problem})
            leave(0)
    index = 0
    for code, label in prepared:
        problem = run(code, label)
        if problem is None:
            write(report, b'{"passed": %d, "key": "%b"}\\n' % (index, read(keys, KEY_BYTES)))
        else:
            read(keys, KEY_BYTES)
            tell({"failed": index, "problem": problem})
        index += 1
    leave(0)

main({}, **request)
""".replace("KEY_BYTES", str(KEY_BYTES))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--time-limit", type=float, required=True, help="seconds for all tests")
    time_limit_s = parser.parse_args().time_limit

    row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
    answer_file = row["task"]["answer_file"]
    tests = tests_of(row["id"])
    program, problem = read_program(answer_file)
    passed: set[int] = set()
    if program is not None and problem is None:
        passed, problem = run_tests(answer_file, program, tests, time_limit_s)
    graded = set(range(len(tests["tests"])))
    verdict = "missing" if program is None else "pass" if graded <= passed else "fail"
    metrics = {
        "tests": len(graded),
        "tests_passed": len(graded & passed),
    }
    if tests["challenge_tests"]:
        metrics["challenge_tests"] = len(tests["challenge_tests"])
        metrics["challenge_tests_passed"] = len(passed - graded)
    score = {
        "verdict": verdict,
        "primary_metric_name": "resolved",
        "primary_metric_value": 1.0 if verdict == "pass" else 0.0,
        "metrics": metrics,
        "ext": {"problem": problem},
    }
    prediction = {"prediction": {"kind": "text", "value": program or ""}}
    write_record("AGENTLAB_BENCHMARK_PREDICTION_PATH", prediction)
    write_record("AGENTLAB_BENCHMARK_SCORE_PATH", score)
    print(f"{verdict}: {metrics['tests_passed']} of {len(graded)} tests; {problem or 'no problem'}")


def tests_of(task_id: str) -> dict[str, Any]:
    """Return the tests of a task. Fails if it has none, on purpose."""
    with Path(__file__).with_name("tests.jsonl").open(encoding="utf-8") as file:
        row: dict[str, Any] = next(row for row in map(json.loads, file) if row["id"] == task_id)
    return row


def read_program(name: str) -> tuple[str | None, str | None]:
    """Return the answer file's text, None if there is none, and what is wrong with it."""
    try:
        # The agent may have left a link, or a pipe that would never end.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return None, f"there is no {name}: {error.strerror}"
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None, f"{name} is not a file"
    with open(descriptor, "rb") as file:
        content = file.read(MAX_PROGRAM_BYTES + 1)
    text = content[:MAX_PROGRAM_BYTES].decode("utf-8-sig", "replace")
    if len(content) > MAX_PROGRAM_BYTES:
        return text, f"{name} is larger than {MAX_PROGRAM_BYTES} bytes"
    return text, None


def run_tests(
    name: str, program: str, tests: dict[str, Any], time_limit_s: float
) -> tuple[set[int], str | None]:
    """Return the indices of the tests that passed, and the first problem.

    Challenge tests are numbered after the others.
    """
    request = {
        "name": name,
        "program": program,
        "setup": tests["setup"],
        "tests": tests["tests"] + tests["challenge_tests"],
    }
    keys = [secrets.token_hex(KEY_BYTES // 2) for _ in request["tests"]]
    nobody: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with (
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryFile() as key_file,
        tempfile.TemporaryFile() as stdin,
    ):
        for file, content in ((stdin, json.dumps(request)), (key_file, "".join(keys))):
            file.write(content.encode())
            file.seek(0)
        descriptors = (report.fileno(), key_file.fileno())
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", RUNNER, *map(str, descriptors)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            **nobody,
        )
        try:
            status = process.wait(time_limit_s)
            ending = None if status == 0 else f"the program ended with exit status {status}"
        except subprocess.TimeoutExpired:
            ending = f"not finished within {time_limit_s:g} s"
        finally:
            end_processes(process)
        report.seek(0)
        lines = report.read(MAX_REPORT_BYTES).splitlines()
    passed: set[int] = set()
    problems = []
    for line in map(parse, lines):
        index = line.get("passed")
        if isinstance(index, int) and 0 <= index < len(keys) and line.get("key") == keys[index]:
            passed.add(index)
        elif isinstance(line.get("problem"), str):
            problems.append(line["problem"])
    missing = "the program ended before its tests" if len(passed) < len(request["tests"]) else None
    return passed, next(iter(problems), ending or missing)


def end_processes(process: subprocess.Popen[bytes]) -> None:
    """Kill what the program started, before the grader writes its records."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if os.geteuid() == 0:
        # Everything of the unprivileged user, and nothing else, also out of its session.
        os.setresuid(NOBODY, NOBODY, 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os.setresuid(0, 0, 0)


def parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def write_record(variable: str, record: dict[str, Any]) -> None:
    path = Path(os.environ[variable])
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(record))


if __name__ == "__main__":
    main()
