"""Valid ids of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from labledger import change_tags
from labledger.errors import InvalidInput
from labledger.records import json_schemas
from labledger.runner.run_start import new_run_id, require_run_id


@pytest.mark.parametrize(
    "run_id", ["a", "2024", "a.b_c-D", "x" * 100, new_run_id("e" * 64)], ids=range(5)
)
def test_names_of_folders_and_containers_are_taken(run_id: str) -> None:
    """An id must be valid as a folder and a container name, as every generated id is."""
    require_run_id(run_id)


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "../x", "a/b", "-a", "a b", "a\n", "ä", "x" * 101]
)
def test_other_names_are_refused(run_id: str) -> None:
    """An id can neither leave the lab's folder nor be an invalid container name."""
    with pytest.raises(InvalidInput, match="run_id: found"):
        require_run_id(run_id)


def test_made_names_differ() -> None:
    """Two runs that start in the same second have different ids."""
    assert len({new_run_id("demo") for _ in range(50)}) > 45


def test_a_long_id_is_refused_with_its_length_and_the_limit(tmp_path: Path) -> None:
    """The message about a long id has its length and the limit."""
    with pytest.raises(InvalidInput) as refused:
        require_run_id("r" * 120)
    assert "(120 characters); expected at most 100 letters" in refused.value.message
    assert "r" * 100 not in refused.value.message
    with pytest.raises(InvalidInput) as refused:
        change_tags("demo", add=["t" * 300], lab_dir=tmp_path)
    assert "(300 characters); expected 1 to 64" in refused.value.message
    for schema, limit, record in (
        ("experiment_v1", 64, {"experiment": {"id": "e" * 90}}),
        ("task_v1", 200, {"id": "e" * 90 * 10}),
    ):
        problems = [
            text for path, text in json_schemas.problems(record, schema) if path[-1:] == ("id",)
        ]
        length = 90 if schema == "experiment_v1" else 900
        assert len(problems) == 1
        assert f"({length} characters); expected an id of at most {limit} " in problems[0]
