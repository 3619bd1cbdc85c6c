"""The agents that come with a benchmark: `gold` and `empty`.

`gold` writes the reference solution as its answer. It is the check that every task can be passed:
its containers alone have the folder `/solutions`. `empty` leaves an empty program. Replace this
file by your own agent: a program that reads the task and leaves its answer in solution.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SOLUTIONS = Path("/solutions/solutions.jsonl")


def main() -> None:
    program = reference_solution(os.environ["AGENTLAB_TASK_ID"]) if SOLUTIONS.exists() else None
    answer_file = read_json("AGENTLAB_TASK_PATH")["task"]["answer_file"]
    # The working directory is the task's workspace.
    Path(answer_file).write_bytes((program or "").encode())
    outcome = "failure" if program is None else "success"
    result = {"schema_version": "agent_result_v1", "outcome": outcome}
    Path(os.environ["AGENTLAB_RESULT_PATH"]).write_text(json.dumps(result), "utf-8")


def reference_solution(task_id: str) -> str:
    """Return the reference solution of a task."""
    with SOLUTIONS.open(encoding="utf-8") as file:
        program: str = next(
            row["solution"] for row in map(json.loads, file) if row["id"] == task_id
        )
    return program


def read_json(variable: str) -> Any:
    return json.loads(Path(os.environ[variable]).read_text("utf-8"))


if __name__ == "__main__":
    main()
