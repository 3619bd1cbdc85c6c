"""The schemas that are generated from the types of documents."""

from __future__ import annotations

import json
import subprocess
import sys

from commands import CHECKOUT, command_env


def test_schemas_are_generated() -> None:
    """Generating the schemas again changes no file."""
    printed = subprocess.run(
        [sys.executable, CHECKOUT / "scripts/schemas.py", "--print"],
        check=True,
        env=command_env(),
        capture_output=True,
        text=True,
    ).stdout
    for name, text in json.loads(printed).items():
        path = CHECKOUT / "schemas" / f"{name}.jsonschema"
        assert path.read_text("utf-8") == text, "run `python scripts/schemas.py`"


def test_what_is_required() -> None:
    """A generated schema refuses unknown keys, and requires all keys except later additions."""
    schema = json.loads((CHECKOUT / "schemas/comparison_v1.jsonschema").read_text("utf-8"))
    task_row, compared = schema["$defs"]["TaskRow"], schema["$defs"]["Compared"]
    assert not task_row["additionalProperties"]
    assert task_row["required"] == ["task_id", "pairs", "a", "b", "left_out"]
    assert {*compared["properties"]} - {*compared["required"]} == {
        *("same_trials", "clusters", "effective_clusters", "validity", "pass_at", "equivalence"),
        *("looks", "planned_looks", "chosen_by_verdict", "family_of"),
    }
