"""A number that was not found is `missing`, a wrong one a `fail`."""

import json
import os
from pathlib import Path

row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
file = Path("answer.txt")
answer = file.read_text("utf-8", errors="replace") if file.is_file() else None
expected = str(row["task"]["number"])
verdict = "missing" if answer is None else "pass" if answer == expected else "fail"

Path(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"]).write_text(
    json.dumps({"prediction": {"kind": "text", "value": answer or ""}}), "utf-8"
)
Path(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"]).write_text(
    json.dumps(
        {
            "verdict": verdict,
            "primary_metric_name": "found",
            "primary_metric_value": float(verdict == "pass"),
        }
    ),
    "utf-8",
)
