"""Objects that this package has, and that other packages register as entry points.

A high-level package, such as a benchmark format, can thus provide an object to a low-level package
that must not import it. Entry points are looked up on demand, so that commands start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OWN_PACKAGE = "labledger"
OWN: Mapping[str, Mapping[str, str]] = {
    "labledger.benchmarks": {
        "harbor": "labledger.benchmarks.harbor.translation:HARBOR",
        "humaneval": "labledger.benchmarks.python_tasks:HUMANEVAL",
        "mbpp": "labledger.benchmarks.python_tasks:MBPP",
        "swebench": "labledger.benchmarks.swebench.swebench_format:SWEBENCH",
    },
    "labledger.result_readers": {
        "rewards": "labledger.benchmarks.harbor.rewards:REWARDS",
        "swebench": "labledger.benchmarks.swebench.judge:SWEBENCH_LOGS",
    },
}
"""This package's own objects by group and name, written as entry points are.

They are listed here and not in `pyproject.toml`, so that a checkout works without metadata and
with the metadata of another version.
"""


def registered(group: str) -> dict[str, dict[str, EntryPoint]]:
    """Return a group's entry points by name and then by package, with this package's first."""
    # Imported late: it takes longer than a small query.
    from importlib.metadata import EntryPoint, entry_points

    by_name: dict[str, dict[str, EntryPoint]] = {
        name: {OWN_PACKAGE: EntryPoint(name, value, group)}
        for name, value in OWN.get(group, {}).items()
    }
    for entry_point in entry_points(group=group):
        package = entry_point.dist.name if entry_point.dist else entry_point.module
        by_name.setdefault(entry_point.name, {}).setdefault(package, entry_point)
    return by_name
