"""An agent that knows the answer, leaves the function empty, or does either by chance."""

from __future__ import annotations

import argparse
import json
import os
import zlib
from pathlib import Path

import agent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["reference", "empty", "wavering"], required=True)
    mode = parser.parse_args().mode

    task_id = os.environ["AGENTLAB_TASK_ID"]
    prompt = agent.read_json("AGENTLAB_TASK_PATH")["task"]["prompt"]
    program = prompt + "    pass\n"
    if mode == "reference" or (mode == "wavering" and remembers(task_id)):
        program = agent.reference_solution(task_id)
    Path("solution.py").write_text(program, "utf-8")

    # No model is called: four characters of the answer are counted as one token.
    body = program.removeprefix(prompt)
    event = {"type": "model_call_end", "usage": {"tokens_out": len(body) // 4}}
    Path(os.environ["AGENTLAB_TRAJECTORY_PATH"]).write_text(json.dumps(event) + "\n", "utf-8")
    result = {
        "schema_version": "agent_result_v1",
        "outcome": "success",
        "answer": body,
        "metrics": {"answer_chars": len(body)},
    }
    Path(os.environ["AGENTLAB_RESULT_PATH"]).write_text(json.dumps(result), "utf-8")


def remembers(task_id: str) -> bool:
    """True for some six in ten of all replications of all problems, always the same ones."""
    trial = f"{task_id} {os.environ['AGENTLAB_REPL_IDX']}"
    return zlib.crc32(trial.encode()) % 10 < 6


if __name__ == "__main__":
    main()
