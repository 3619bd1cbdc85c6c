"""Stands for an agent that samples drafts from a model: the task brings the drafts."""

import json
import os
import sys


def fits(source, function, examples):
    space = {}
    exec(source, space)
    return all(space[function](given) == expected for given, expected in examples)


def main():
    with open(os.environ["AGENTLAB_TASK_PATH"], encoding="utf-8") as file:
        task = json.load(file)["task"]
    sources = [f"def {task['function']}(x):\n    {body}\n" for body in task["drafts"]]
    tried, chosen = 1, sources[0]
    if sys.argv[1] == "yes":
        for tried, chosen in enumerate(sources, start=1):
            if fits(chosen, task["function"], task["examples"]):
                break
    # The working directory is the workspace.
    with open("solution.py", "w", encoding="utf-8") as file:
        file.write(chosen)
    result = {
        "schema_version": "agent_result_v1",
        "outcome": "success",
        "metrics": {"drafts_tried": tried},
    }
    with open(os.environ["AGENTLAB_RESULT_PATH"], "w", encoding="utf-8") as file:
        json.dump(result, file)


main()
