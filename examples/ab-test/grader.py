"""Runs the unit tests of the task on the agent's `solution.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

task_id = os.environ["AGENTLAB_TASK_ID"]
tests = Path(__file__).parent / "tests" / f"test_{task_id}.py"
# -B: no byte code in the workspace. The tests import `solution` from the working directory.
ran = subprocess.run([sys.executable, "-B", tests], env={"PYTHONPATH": "."}, timeout=20)

solution = Path("solution.py")
verdict = "missing" if not solution.exists() else "pass" if ran.returncode == 0 else "fail"
answer = solution.read_text("utf-8", errors="replace") if solution.exists() else ""

Path(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"]).write_text(
    json.dumps({"prediction": {"kind": "text", "value": answer}}), "utf-8"
)
Path(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"]).write_text(
    json.dumps(
        {
            "verdict": verdict,
            "primary_metric_name": "resolved",
            "primary_metric_value": float(verdict == "pass"),
        }
    ),
    "utf-8",
)
