"""Compares `output.txt` with what the task expects."""

import json
import os
from pathlib import Path

row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
file = Path("output.txt")
answer = file.read_text("utf-8", errors="replace") if file.is_file() else None
verdict = "missing" if answer is None else "pass" if answer == row["task"]["expected"] else "fail"

Path(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"]).write_text(
    json.dumps({"prediction": {"kind": "text", "value": answer or ""}}), "utf-8"
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
