"""What a run may be called."""

from __future__ import annotations

import pytest

from labledger.errors import InvalidInput
from labledger.runner.start_and_resume import _require_run_id, new_run_id


@pytest.mark.parametrize(
    "run_id", ["a", "2024", "a.b_c-D", "x" * 100, new_run_id("e" * 64)], ids=range(5)
)
def test_names_of_folders_and_containers_are_taken(run_id: str) -> None:
    """What can be both a folder's and a container's name is a run's id, as is every made one."""
    _require_run_id(run_id)


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "../x", "a/b", "-a", "a b", "a\n", "ä", "x" * 101]
)
def test_other_names_are_refused(run_id: str) -> None:
    """A run's folder cannot lie outside of the lab, and no container's name is invalid."""
    with pytest.raises(InvalidInput, match="--run-id"):
        _require_run_id(run_id)


def test_made_names_differ() -> None:
    """Two runs of one second do not share a name."""
    assert len({new_run_id("demo") for _ in range(50)}) > 45
