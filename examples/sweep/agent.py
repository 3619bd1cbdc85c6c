"""Searches a number by halving the range. Each guess is an event that says what it cost."""

import json
import os
import sys
from pathlib import Path

row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
number, low, high = row["task"]["number"], 1, 100
with open(os.environ["AGENTLAB_TRAJECTORY_PATH"], "w", encoding="utf-8") as events:
    for _ in range(int(sys.argv[1])):
        guess = (low + high) // 2
        events.write(json.dumps({"type": "guess", "guess": guess, "cost_usd": 0.01}) + "\n")
        if guess == number:
            Path("answer.txt").write_text(str(guess), "utf-8")
            break
        low, high = (guess + 1, high) if guess < number else (low, guess - 1)
