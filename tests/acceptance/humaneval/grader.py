"""Runs a HumanEval problem's own `check` on the solution, in a process of its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

TIME_LIMIT_S = 60


def main() -> None:
    task = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))["task"]
    solution = Path("solution.py")
    if solution.is_file():
        text = solution.read_text("utf-8", errors="replace")
        problem = check(text, task["test"], task["entry_point"])
        verdict = "fail" if problem else "pass"
    else:
        text, problem, verdict = "", "there is no solution.py", "missing"
    prediction = {"prediction": {"kind": "text", "value": text}}
    score = {
        "verdict": verdict,
        "primary_metric_name": "resolved",
        "primary_metric_value": 1.0 if verdict == "pass" else 0.0,
        "ext": {"problem": problem},
    }
    Path(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"]).write_text(json.dumps(prediction))
    Path(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"]).write_text(json.dumps(score))


def check(solution: str, test: str, entry_point: str) -> str | None:
    """What went wrong, or None. A solution that ends the process early has not passed."""
    passed = secrets.token_hex(16)
    program = f"{solution}\n{test}\ncheck({entry_point})\nprint({passed!r})\n"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-"],
            input=program.encode("utf-8", errors="replace"),
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {TIME_LIMIT_S} s"
    if done.returncode == 0 and done.stdout.split()[-1:] == [passed.encode()]:
        return None
    last_words = done.stderr.decode(errors="replace").split("\n")[-2:]
    return f"exit status {done.returncode}: {''.join(last_words)[:200]}"


if __name__ == "__main__":
    main()
