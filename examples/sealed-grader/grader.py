"""Compares the agent's answer with the right one, letter by letter."""

import json
import os
from pathlib import Path

answers = json.loads((Path(__file__).parent / "answers.json").read_text("utf-8"))
expected = answers[os.environ["AGENTLAB_TASK_ID"]]

file = Path("answer.txt")
answer = file.read_text("utf-8", errors="replace").strip() if file.is_file() else None
verdict = "missing" if answer is None else "pass" if answer == expected else "fail"

Path(os.environ["AGENTLAB_BENCHMARK_PREDICTION_PATH"]).write_text(
    json.dumps({"prediction": {"kind": "text", "value": answer or ""}}), "utf-8"
)
Path(os.environ["AGENTLAB_BENCHMARK_SCORE_PATH"]).write_text(
    json.dumps(
        {
            "verdict": verdict,
            "primary_metric_name": "exact_match",
            "primary_metric_value": float(verdict == "pass"),
        }
    ),
    "utf-8",
)
