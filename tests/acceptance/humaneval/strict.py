"""A stricter judge than `grader.py`: a right answer must be a short one, too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import grader

MOST_LINES = 8


def main() -> None:
    grader.main()
    task = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))["task"]
    answer = Path("solution.py").read_text("utf-8").removeprefix(task["prompt"])
    path = Path(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"])
    score = json.loads(path.read_text("utf-8"))
    if score["verdict"] == "pass" and len(answer.splitlines()) > MOST_LINES:
        score |= {"verdict": "fail", "primary_metric_value": 0.0}
        score["ext"] = {"problem": f"more than {MOST_LINES} lines"}
    path.write_text(json.dumps(score), "utf-8")


if __name__ == "__main__":
    main()
