"""The format `humaneval`: OpenAI's HumanEval as one JSON object a line.

Each row is a function's signature and docstring (`prompt`), the body that solves it
(`canonical_solution`), and tests that define `check(candidate)`. An answer is a whole program.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.benchmarks.protocol import Benchmark
from labledger.benchmarks.python_tasks.experiment_parts import AGENTS, PythonTask, python_benchmark
from labledger.benchmarks.task_file import TaskRow, read_tasks

_KEYS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
_DESCRIPTION = (
    "The agent gets task.prompt, the beginning of a program, and leaves the whole program\n"
    "in solution.py. The grader runs it and then check(entry_point) of the task's tests."
)


@dataclass(frozen=True, slots=True)
class HumanEvalFormat:
    """Reads `humaneval:FILE`."""

    name: str = "humaneval"
    agents: tuple[str, ...] = AGENTS

    def read(self, location: str) -> Benchmark:
        """Return the benchmark of a file. Raises `InvalidInput` with every problem."""
        tasks, digest = read_tasks(location, self.name, _read_task)
        return python_benchmark(self.name, "test", tasks, digest, _DESCRIPTION)


def _read_task(row: TaskRow) -> PythonTask:
    row.require_known_keys(_KEYS)
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


HUMANEVAL = HumanEvalFormat()
