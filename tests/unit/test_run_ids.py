"""What a run may be called."""

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
    """What can be both a folder's and a container's name is a run's id, as is every made one."""
    require_run_id(run_id)


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "../x", "a/b", "-a", "a b", "a\n", "ä", "x" * 101]
)
def test_other_names_are_refused(run_id: str) -> None:
    """A run's folder cannot lie outside of the lab, and no container's name is invalid."""
    with pytest.raises(InvalidInput, match="run_id: found"):
        require_run_id(run_id)


def test_made_names_differ() -> None:
    """Two runs of one second do not share a name."""
    assert len({new_run_id("demo") for _ in range(50)}) > 45


def test_a_long_id_is_refused_with_its_length_and_the_limit(tmp_path: Path) -> None:
    """Who reads that an id is too long is told how long it is, and how long it may be."""
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
        found = [
            text for path, text in json_schemas.problems(record, schema) if path[-1:] == ("id",)
        ]
        length = 90 if schema == "experiment_v1" else 900
        assert len(found) == 1
        assert f"({length} characters); expected an id of at most {limit} " in found[0]
