"""What comparisons, summaries and reports read of a run's stored document.

They also describe runs of which the ledger does not hold a whole document, which an
`ExperimentPlan` would refuse: whatever is missing here is left empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labledger.records import JsonObject

_IDENTITY = ("adapter_id", "name", "version", "split")


def benchmark_identity(benchmark: JsonObject) -> dict[str, str]:
    """Return what tells a benchmark, as a document or a score states it, from another one."""
    return {key: str(benchmark[key]) for key in _IDENTITY if benchmark.get(key)}


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """The parts of a stored document that results are described and compared by."""

    benchmark: Mapping[str, str]
    """See `benchmark_identity`."""
    cluster: str | None
    """The field of a task's row that groups related tasks; see `task_row.cluster_of`."""
    grader_command: tuple[str, ...]
    grader: tuple[Any, ...]
    """Settings and files of the grader, to compare it with another one of unknown digest."""

    @classmethod
    def of_document(cls, document: JsonObject) -> Self:
        grader = document.get("grader") or {}
        files = (document.get("files") or {}).get("grader") or []
        return cls(
            benchmark_identity(document.get("benchmark") or {}),
            (document.get("dataset") or {}).get("cluster"),
            tuple(grader.get("command") or ()),
            (grader, sorted((file["name"], file["sha256"]) for file in files)),
        )
