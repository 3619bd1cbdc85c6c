"""The grader: runs hidden tests on the agent's solution.

labledger starts it in the agent's container after the agent has ended. It writes the prediction
(the agent's answer) and the score (the verdict). If it cannot work, it exits with an error, and the
trial is a `grade_error`. An untrusted agent could read the tests beside this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TIME_LIMIT_S = 20
"""The time limit for all cases. It is generous, because other trials run at the same time."""

# Runs in a separate process, which gets the arguments but not the right answers.
RUNNER = """
import json, os, sys

calls = json.load(sys.stdin)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the solution prints goes to the log and is no answer
space = {"__name__": "solution"}
with open("solution.py", encoding="utf-8") as file:
    exec(compile(file.read(), "solution.py", "exec"), space)

for args in calls["arguments"]:
    try:
        line = json.dumps({"answer": space[calls["function"]](*args)})
    except Exception as error:
        line = json.dumps({"error": repr(error)})
    print(line, file=answers, flush=True)
"""


def main() -> None:
    row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
    # A list of [arguments, right answer]. If it cannot be read, this raises, on purpose.
    path = Path(__file__).parent / "tests" / "{}.json".format(row["id"])
    cases = json.loads(path.read_text("utf-8"))

    solution = Path("solution.py")
    if solution.is_file():
        text = solution.read_text("utf-8", errors="replace")
        passed, problem = run_cases(row["task"]["function"], cases)
        verdict = "pass" if passed == len(cases) else "fail"
    else:
        text, passed, problem, verdict = "", 0, "there is no solution.py", "missing"

    agent_exit_status = int(os.environ["AGENTLAB_AGENT_EXIT_STATUS"])
    prediction = {
        "prediction": {
            "kind": "text",
            "value": text,
            "metadata": {"agent_exit_status": agent_exit_status},
        },
    }
    score = {
        "verdict": verdict,
        "primary_metric_name": "resolved",
        "primary_metric_value": 1.0 if verdict == "pass" else 0.0,
        "metrics": {"cases": len(cases), "cases_passed": passed},
        "ext": {"first_problem": problem},
    }
    write("AGENTLAB_BENCHMARK_PREDICTION_PATH", prediction)
    write("AGENTLAB_BENCHMARK_SCORE_PATH", score)
    print("{}: {} of {} cases; {}".format(verdict, passed, len(cases), problem or "no problem"))


def run_cases(function, cases):
    """Return how many cases the solution solves, and what is wrong with the first other case."""
    request = {"function": function, "arguments": [args for args, _ in cases]}
    try:
        output = subprocess.run(
            [sys.executable, "-I", "-B", "-c", RUNNER],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            timeout=TIME_LIMIT_S,
            check=False,
        ).stdout
        ending = {"error": "the solution ended before it answered"}
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        ending = {"error": "no answer within {} s".format(TIME_LIMIT_S)}

    answers = [parse(line) for line in output.splitlines()]
    passed, problem = 0, None
    for index, (args, wanted) in enumerate(cases):
        answer = answers[index] if index < len(answers) else ending
        if "answer" in answer and answer["answer"] == wanted:
            passed += 1
        elif problem is None:
            problem = "{}{}: {}".format(function, tuple(args), answer)[:300]
    return passed, problem


def parse(line):
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"error": "the answer is not JSON"}


def write(variable, row):
    Path(os.environ[variable]).write_text(json.dumps(row), "utf-8")


if __name__ == "__main__":
    main()
