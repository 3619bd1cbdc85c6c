"""The formats `humaneval` and `mbpp`: tasks whose answer is one Python program, graded by tests.

The agent sees the prompt. Tests are in `tests.jsonl`, which is sealed. Only the containers of the
agent `gold` have the folder with the reference solutions. `python_agent_program.py` and
`python_grader_program.py` run in containers and import nothing of labledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from labledger.benchmarks.formats import BenchmarkAgent, TranslatedBenchmark
from labledger.benchmarks.task_file import TaskFileRow, read_tasks
from labledger.records import JsonObject

GOLD, EMPTY = AGENTS = ("gold", "empty")
ANSWER_FILE = "solution.py"
TIME_LIMIT_S = 30
"""The time limit of the tests of one answer, in seconds."""

_HIDING = (
    "The agent runs as an unprivileged user and cannot read tests.jsonl, which is sealed. Only\n"
    "containers of the variant gold have the reference solutions."
)
_SOLUTIONS = "solutions"
_PROGRAMS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PythonTask:
    """A task whose answer is one Python program."""

    task_id: str
    payload: JsonObject
    """The fields that the agent sees."""
    solution: str
    """The reference solution, a complete program."""
    setup: str
    """Code that runs after the answer and before the tests, in the same namespace."""
    tests: tuple[str, ...]
    """Statements that must all run without an exception."""
    challenge_tests: tuple[str, ...] = ()
    """Statements that are counted, but do not affect the verdict."""


@dataclass(frozen=True, slots=True)
class PythonTasksFormat:
    """Reads `NAME:FILE`. Each row of the file is a task whose answer is one Python program."""

    name: str
    read_task: Callable[[TaskFileRow], PythonTask]
    description: str
    agents: tuple[str, ...] = AGENTS

    def read(self, location: str) -> TranslatedBenchmark:
        """Return the benchmark in a file. Raises `InvalidInput` with every problem."""
        tasks, digest = read_tasks(location, self.name, self.read_task)
        return TranslatedBenchmark(
            name=self.name,
            version=f"sha256:{digest[:16]}",
            split="test",
            tasks=tuple(_task_row(task) for task in tasks),
            files={
                "agent.py": (_PROGRAMS / "python_agent_program.py").read_bytes(),
                "grader.py": (_PROGRAMS / "python_grader_program.py").read_bytes(),
                "tests.jsonl": _json_lines(_tests_row(task) for task in tasks),
                f"{_SOLUTIONS}/solutions.jsonl": _json_lines(
                    {"id": task.task_id, "solution": task.solution} for task in tasks
                ),
            },
            agents=(
                BenchmarkAgent(
                    GOLD,
                    "Writes the reference solution: must pass",
                    expects="pass",
                    needs_files=True,
                ),
                BenchmarkAgent(EMPTY, "Leaves an empty program: must fail", expects="fail"),
            ),
            defaults=_defaults(has_challenges=any(task.challenge_tests for task in tasks)),
            description=f"{self.description}\n{_HIDING}",
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


_HUMANEVAL_KEYS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
_HUMANEVAL_DESCRIPTION = (
    "The agent gets task.prompt, the beginning of a program, and leaves the whole program\n"
    "in solution.py. The grader runs it and then check(entry_point) of the task's tests."
)


def _read_humaneval_task(row: TaskFileRow) -> PythonTask:
    """Return the task of a row of OpenAI's HumanEval, one JSON object per line.

    Each row is a function's signature and docstring (`prompt`), the body that solves it
    (`canonical_solution`), and tests that define `check(candidate)`. An answer is a whole program.
    """
    row.require_known_keys(_HUMANEVAL_KEYS)
    prompt, solution, test = (row.text(key) for key in ("prompt", "canonical_solution", "test"))
    entry_point = row.text("entry_point")
    if entry_point and not entry_point.isidentifier():
        row.add_problem("entry_point", f"found {entry_point!r}; expected a function's name")
    row.require_python("test", test)
    return PythonTask(
        task_id=row.task_id(),
        payload={"prompt": prompt, "entry_point": entry_point},
        solution=prompt + solution,
        setup=test,
        tests=(f"check({entry_point})",),
    )


HUMANEVAL = PythonTasksFormat("humaneval", _read_humaneval_task, _HUMANEVAL_DESCRIPTION)


_MBPP_KEYS = (
    *("task_id", "text", "prompt", "code", "test_list", "test_setup_code", "test_imports"),
    *("challenge_test_list", "source_file"),
)
_MBPP_DESCRIPTION = (
    "The agent gets task.prompt and the assertions task.tests, and leaves a program in\n"
    "solution.py. The grader runs it and then the assertions. challenge_test_list is counted\n"
    "beside the verdict."
)


def _read_mbpp_task(row: TaskFileRow) -> PythonTask:
    """Return the task of a row of MBPP, complete (JSONL) or sanitized (an array).

    Each row has a sentence (`text`, in the sanitized form `prompt`), a program (`code`) and
    assertions (`test_list`). The agent sees the assertions, because they name the function and its
    arguments.
    """
    row.require_known_keys(_MBPP_KEYS)
    if "text" in row.fields and "prompt" in row.fields:
        row.add_problem("prompt", "the row has text as well; expected one of them")
    prompt = row.text("prompt" if "prompt" in row.fields else "text")
    imports = "".join(f"{line}\n" for line in row.texts("test_imports"))
    setup = imports + row.text("test_setup_code", "")
    tests, challenge = row.texts("test_list", required=True), row.texts("challenge_test_list")
    row.require_python("test_list", *tests)
    row.require_python("challenge_test_list", *challenge)
    row.require_python("test_setup_code", setup)
    return PythonTask(
        task_id=row.task_id("mbpp/"),
        payload={"prompt": prompt, "tests": tests, **({"test_setup": setup} if setup else {})},
        solution=row.text("code"),
        setup=setup,
        tests=tuple(tests),
        challenge_tests=tuple(challenge),
    )


MBPP = PythonTasksFormat("mbpp", _read_mbpp_task, _MBPP_DESCRIPTION)
