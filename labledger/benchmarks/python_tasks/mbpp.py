"""The format `mbpp`: Google's Mostly Basic Python Problems, whole (JSONL) or sanitized (an array).

Each row is a sentence (`text`, in the sanitized form `prompt`), a program (`code`) and assertions
(`test_list`), which are part of what the agent sees: they name the function and its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.benchmarks.protocol import Benchmark
from labledger.benchmarks.python_tasks.experiment_parts import AGENTS, PythonTask, python_benchmark
from labledger.benchmarks.task_file import TaskRow, read_tasks

_KEYS = (
    *("task_id", "text", "prompt", "code", "test_list", "test_setup_code", "test_imports"),
    *("challenge_test_list", "source_file"),
)
_DESCRIPTION = (
    "The agent gets task.prompt and the assertions task.tests, and leaves a program in\n"
    "solution.py. The grader runs it and then the assertions. challenge_test_list is counted\n"
    "beside the verdict."
)


@dataclass(frozen=True, slots=True)
class MbppFormat:
    """Reads `mbpp:FILE`."""

    name: str = "mbpp"
    agents: tuple[str, ...] = AGENTS

    def read(self, location: str) -> Benchmark:
        """Return the benchmark of a file. Raises `InvalidInput` with every problem."""
        tasks, digest = read_tasks(location, self.name, _read_task)
        return python_benchmark(self.name, "test", tasks, digest, _DESCRIPTION)


def _read_task(row: TaskRow) -> PythonTask:
    row.require_known_keys(_KEYS)
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


MBPP = MbppFormat()
