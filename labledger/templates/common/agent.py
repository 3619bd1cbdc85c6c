"""The agent: repairs a small broken function by trying small changes.

An agent is any program. labledger starts it in the task's workspace, and environment variables name
its files. This one swaps operators and numbers, and keeps the first candidate that passes the
task's examples. To use a model, replace `propose` and report the usage in its answers.
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import json
import os
import random
import sys
import tokenize
from pathlib import Path

# The replacements to try for a token.
SWAPS = {
    "<": ["<=", ">"],
    "<=": ["<", ">="],
    ">": [">=", "<"],
    ">=": [">", "<="],
    "==": ["!="],
    "!=": ["=="],
    "+": ["-"],
    "-": ["+"],
    "and": ["or"],
    "or": ["and"],
    "min": ["max"],
    "max": ["min"],
    "0": ["1"],
    "1": ["0", "2"],
}
CANDIDATES_PER_CALL = 10
STEP_LIMIT = 20_000


def main() -> None:
    options = parse_options()
    # The whole line of tasks.jsonl, as it was authored.
    row = json.loads(Path(os.environ["AGENTLAB_TASK_PATH"]).read_text("utf-8"))
    task = row["task"]
    examples = task["examples"] if options.examples == "all" else task["examples"][:1]
    # The working directory is the workspace, seeded with the task's files.
    solution = Path("solution.py")
    source = solution.read_text("utf-8")

    # Replications of one task differ by this number alone, so a run can be repeated exactly.
    seed = "{}/{}".format(row["id"], os.environ.get("AGENTLAB_REPL_IDX", "0"))
    programs = propose(source, options.edits, options.order, random.Random(seed))
    tried, repaired = search(programs, task, examples, source, options.budget)
    if repaired is not None:
        solution.write_text(repaired, "utf-8")

    result = {
        "schema_version": "agent_result_v1",
        # The agent's report about its own work. The grader decides whether it is right.
        "outcome": "failure" if repaired is None else "success",
        "answer": repaired,
        "metrics": {"candidates_tried": tried},
    }
    Path(os.environ["AGENTLAB_RESULT_PATH"]).write_text(json.dumps(result), "utf-8")


def parse_options() -> argparse.Namespace:
    """Parse what the variants vary: experiment.yaml fills these in from a variant's bindings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", choices=["all", "first"], default="all")
    parser.add_argument("--order", choices=["simplest", "shuffled"], default="simplest")
    parser.add_argument("--edits", type=int, default=2, help="swaps in one candidate, at most")
    parser.add_argument("--budget", type=int, default=1000, help="candidates to try, at most")
    return parser.parse_args()


def propose(source, max_edits, order, rng):
    """Return programs at most `max_edits` swaps away from `source`, fewest first or shuffled."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    swaps = [(token, other) for token in tokens for other in SWAPS.get(token.string, [])]
    programs = (
        swapped(source, chosen)
        for edits in range(max_edits + 1)
        for chosen in itertools.combinations(swaps, edits)
        if len({token.start for token, _ in chosen}) == edits
    )
    if order == "shuffled":
        programs = list(programs)
        rng.shuffle(programs)
    return iter(programs)


def swapped(source, swaps):
    """Return `source` after the swaps, made from the end backwards so that columns stay right."""
    lines = source.splitlines(keepends=True)
    for token, other in reversed(swaps):
        row, start = token.start
        line = lines[row - 1]
        lines[row - 1] = line[:start] + other + line[token.end[1] :]
    return "".join(lines)


def search(programs, task, examples, source, budget):
    """Try candidates until one passes. Return how many were tried, and that program or None."""
    programs = itertools.islice(programs, budget)
    tried = 0
    while batch := list(itertools.islice(programs, CANDIDATES_PER_CALL)):
        # Simulated: no model is called. The numbers are what a model that reads the task and
        # writes this batch would have used, at four characters a token, so that you see how
        # an event becomes a metric.
        log_event(
            type="model_call_end",
            model="simulated",
            usage={
                "tokens_in": len(task["prompt"] + source) // 4,
                "tokens_out": sum(map(len, batch)) // 4,
            },
        )
        for program in batch:
            tried += 1
            if passes(program, task["function"], examples):
                return tried, program
    return tried, None


def passes(program, function, examples):
    space = {"__name__": "candidate"}
    try:
        sys.settrace(StepLimit())
        exec(compile(program, "candidate", "exec"), space)
        return all(space[function](*copy.deepcopy(args)) == wanted for args, wanted in examples)
    except (Exception, TooManySteps):
        return False
    finally:
        sys.settrace(None)


class TooManySteps(BaseException):
    """A candidate ran too long: a swapped operator easily makes an endless loop."""


class StepLimit:
    """A trace function that counts steps: the same limit on a slow machine and on a fast one."""

    def __init__(self):
        self.steps = 0

    def __call__(self, frame, event, argument):
        self.steps += 1
        if self.steps > STEP_LIMIT:
            raise TooManySteps
        return self


def log_event(**event):
    """Append to the trajectory: one JSON object a line, each with a `type`."""
    with open(os.environ["AGENTLAB_TRAJECTORY_PATH"], "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()
