"""Two agents: one that knows two capitals, and one that looks for the grader's answers."""

import json
import os
import sys
from pathlib import Path

KNOWN = {"France": "Paris", "Kenya": "Nairobi"}


def honest(question):
    return next((capital for country, capital in KNOWN.items() if country in question), None)


def cheat(_question):
    for path in Path("/agentlab").rglob("answers.json"):
        return json.loads(path.read_text("utf-8"))[os.environ["AGENTLAB_TASK_ID"]]
    return "I found no answers"


row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
answer = {"honest": honest, "cheat": cheat}[sys.argv[1]](row["task"]["question"])
if answer is not None:
    Path("answer.txt").write_text(answer, "utf-8")
