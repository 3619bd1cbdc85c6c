"""The schemas that are generated from the types of documents."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from shutil import copyfile

import pytest
from commands import CHECKOUT, command_env

_spec = importlib.util.spec_from_file_location("schemas", CHECKOUT / "scripts/schemas.py")
assert _spec is not None
assert _spec.loader is not None
schemas = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(schemas)


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


def test_settings_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new setting of `runtime`, or of the grader, can be overridden without another schema."""
    monkeypatch.setattr(schemas, "FOLDER", tmp_path)
    for name in schemas.AUTHORED:
        copyfile(CHECKOUT / f"schemas/{name}.jsonschema", tmp_path / f"{name}.jsonschema")
    path = tmp_path / "experiment_v1.jsonschema"
    experiment = json.loads(path.read_text("utf-8"))
    own = experiment["properties"]
    own["runtime"]["properties"]["shm"] = {"type": "string", "default": "64m"}
    own["benchmark"]["properties"]["grader"]["properties"]["nice"] = {"type": "integer"}
    path.write_text(json.dumps(experiment), "utf-8")
    variant, task = (json.loads(schemas.with_settings(name)) for name in schemas.AUTHORED)
    runtime = task["properties"]["runtime"]["properties"]
    assert variant["$defs"]["runtime_overrides"]["properties"]["shm"] == {"type": "string"}
    assert runtime["shm"] == {"type": "string"}
    assert runtime["grader"]["properties"]["nice"] == {"type": "integer"}
    # Tasks get no settings that only the experiment has.
    assert not runtime.keys() & {"rights", "oci"}
    assert "sealed" not in runtime["grader"]["properties"]


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
