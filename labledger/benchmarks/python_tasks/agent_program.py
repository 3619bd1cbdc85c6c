"""The agents that come with a benchmark: `gold` and `empty`.

`gold` writes the reference solution as its answer. It is the check that every task can be passed:
its variant alone has the binding `solutions_key`, with which it decrypts solutions.jsonl. `empty`
has no key and leaves an empty program. Replace this file by your own agent: a program that reads
the task and leaves its answer in solution.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any


def main() -> None:
    task_id = os.environ["AGENTLAB_TASK_ID"]
    key = read_json("AGENTLAB_BINDINGS_PATH").get("solutions_key")
    program = reference_solution(key, task_id) if key else b""
    answer_file = read_json("AGENTLAB_TASK_PATH")["task"]["answer_file"]
    # The working directory is the task's workspace.
    Path(answer_file).write_bytes(program)
    result = {"schema_version": "agent_result_v1", "outcome": "success" if key else "failure"}
    Path(os.environ["AGENTLAB_RESULT_PATH"]).write_text(json.dumps(result), "utf-8")


def reference_solution(key: str, task_id: str) -> bytes:
    """Return the decrypted reference solution of a task."""
    path = Path(__file__).with_name("solutions.jsonl")
    with path.open(encoding="utf-8") as file:
        rows = map(json.loads, file)
        encrypted = next(row["encrypted"] for row in rows if row["id"] == task_id)
    content = base64.b64decode(encrypted)
    stream = hashlib.shake_256(f"{key} {task_id}".encode()).digest(len(content))
    return bytes(a ^ b for a, b in zip(content, stream))


def read_json(variable: str) -> Any:
    return json.loads(Path(os.environ[variable]).read_text("utf-8"))


if __name__ == "__main__":
    main()
