"""Make a `Benchmark` of tasks whose answer is one Python program.

The agent sees the task's prompt. Tests are in `tests.jsonl`, which is sealed: the agent's user
cannot read it. Reference solutions are in one folder, which the tasks' `files` name for the agent
`gold`: the containers of other variants do not have it. Without `gold` there is no such folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labledger.benchmarks.protocol import Benchmark, BenchmarkAgent
from labledger.records import JsonObject

GOLD, EMPTY = AGENTS = ("gold", "empty")
ANSWER_FILE = "solution.py"
TIME_LIMIT_S = 30
"""Seconds that the tests of one answer may take."""

_HIDING = (
    "The agent runs as nobody and cannot read tests.jsonl, which is sealed. Reference solutions\n"
    "are in no container but those of the variant gold."
)
_SOLUTIONS = "solutions"
_PROGRAMS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PythonTask:
    """A task whose answer is one Python program."""

    task_id: str
    payload: JsonObject
    """What the agent sees."""
    solution: str
    """The reference solution, a whole program."""
    setup: str
    """Run after the answer and before the tests, in the same namespace."""
    tests: tuple[str, ...]
    """Statements, all of which must run without an exception."""
    challenge_tests: tuple[str, ...] = ()
    """Counted beside the verdict, and not part of it."""


def python_benchmark(
    name: str, split: str, tasks: Sequence[PythonTask], digest: str, description: str
) -> Benchmark:
    """Return the benchmark of tasks that were read from a file with the SHA-256 `digest`."""
    return Benchmark(
        name=name,
        version=f"sha256:{digest[:16]}",
        split=split,
        tasks=tuple(_task_row(task) for task in tasks),
        files={
            "agent.py": (_PROGRAMS / "agent_program.py").read_bytes(),
            "grader.py": (_PROGRAMS / "grader_program.py").read_bytes(),
            "tests.jsonl": _json_lines(_tests_row(task) for task in tasks),
            f"{_SOLUTIONS}/solutions.jsonl": _json_lines(
                {"id": task.task_id, "solution": task.solution} for task in tasks
            ),
        },
        agents=(
            BenchmarkAgent(GOLD, "Writes the reference solution: must pass", expects="pass"),
            BenchmarkAgent(EMPTY, "Leaves an empty program: must fail", expects="fail"),
        ),
        defaults=_defaults(has_challenges=any(task.challenge_tests for task in tasks)),
        description=f"{description}\n{_HIDING}",
    )


def _task_row(task: PythonTask) -> JsonObject:
    for_gold = {
        "path": f"/{_SOLUTIONS}",
        "directory": _SOLUTIONS,
        "for": "agent",
        "variants": [GOLD],
    }
    return {
        "id": task.task_id,
        "task": {**task.payload, "answer_file": ANSWER_FILE},
        "files": [for_gold],
    }


def _tests_row(task: PythonTask) -> JsonObject:
    return {
        "id": task.task_id,
        "setup": task.setup,
        "tests": list(task.tests),
        "challenge_tests": list(task.challenge_tests),
    }


def _json_lines(rows: Iterable[JsonObject]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _defaults(*, has_challenges: bool) -> JsonObject:
    metrics = ["tests", "tests_passed"]
    metrics += ["challenge_tests", "challenge_tests_passed"] if has_challenges else []
    return {
        "runtime": {
            "user": "root",
            "agent": {
                "command": ["python3", "agent.py"],
                "files": ["agent.py"],
                "user": "nobody",
                "timeout_s": 600,
            },
            "network": "none",
            "resources": {"cpus": 1, "memory": "1g", "pids": 128},
        },
        "benchmark": {
            "grader": {
                "command": ["python3", "grader.py", "--time-limit", str(TIME_LIMIT_S)],
                "files": ["grader.py", "tests.jsonl"],
                "timeout_s": TIME_LIMIT_S + 60,
                "sealed": True,
            },
            "evaluator": {"name": "python-tests", "mode": "custom"},
        },
        "metrics": [
            {"id": name, "from": "score", "pointer": f"/metrics/{name}"} for name in metrics
        ],
        "design": {
            "max_concurrency": 4,
            "schedule": "paired_interleaved",
            "retry": {"max_attempts": 2, "retry_on": ["infra_error"]},
        },
    }
