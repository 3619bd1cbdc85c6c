"""The warning before trials that together may use more than a machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiment_files import Folder

from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.shared_resources import check_shared_resources

GIB = 1 << 30


def warnings(
    path: Path, resources: dict[str, Any], at_once: int, *, cpus: float | None = 2
) -> list[CheckResult]:
    """What is said of an experiment on a machine with 4 GiB of memory."""
    folder = Folder(path)
    folder.data["runtime"]["resources"] = resources
    memory = None if cpus is None else 4 * GIB
    return list(check_shared_resources(folder.resolve(), at_once, cpus, memory))


@pytest.mark.parametrize(
    ("resources", "at_once", "said"),
    [
        ({"cpus": 1, "memory": "1g"}, 2, {}),
        ({"cpus": 1, "memory": "1g"}, 4, {"cpus": "4 trials at once may use 4 CPUs"}),
        ({"cpus": 0.5, "memory": "1g"}, 4, {}),
        ({"cpus": 0.5, "memory": "2g"}, 4, {"memory": "4 trials at once may use 8.0 GiB"}),
        ({"cpus": 1, "memory": "900000g"}, 1, {"memory": "one trial may use 879 TiB"}),
        ({"cpus": 3, "memory": "1g"}, 1, {}),
    ],
)
def test_more_than_a_machine_has_is_a_warning(
    tmp_path: Path, resources: dict[str, Any], at_once: int, said: dict[str, str]
) -> None:
    """Processors and memory are compared with what all trials at once may use; a run may begin."""
    found = warnings(tmp_path, resources, at_once)
    assert {check.name for check in found} == said.keys()
    for check in found:
        assert (check.ok, check.warning) == (False, True)
        assert check.detail.find(said[check.name]) >= 0
        assert check.hint


def test_trials_that_are_not_there_use_nothing(tmp_path: Path) -> None:
    """An experiment with fewer slots than may run at once is judged by its slots."""
    folder = Folder(tmp_path)
    slots = folder.resolve().total_slots
    folder.data["runtime"]["resources"] = {"cpus": 1, "memory": "1g"}
    assert not list(check_shared_resources(folder.resolve(), 1000, slots, slots * GIB))
    (check,) = check_shared_resources(folder.resolve(), 1000, slots - 1, slots * GIB)
    assert f"{slots} trials at once" in check.detail


def test_a_machine_that_says_nothing_is_not_judged(tmp_path: Path) -> None:
    """What an engine does not say is not compared."""
    assert not warnings(tmp_path, {"cpus": 1, "memory": "900000g"}, 9, cpus=None)
