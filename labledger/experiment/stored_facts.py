"""The facts that comparisons, summaries and reports read from a run's stored document.

A stored document may be incomplete, and `ExperimentPlan` would refuse it. Facts that are missing
from it are empty here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labledger.records import JsonObject

_IDENTITY = ("adapter_id", "name", "version", "split")


def benchmark_identity(benchmark: JsonObject) -> dict[str, str]:
    """Return the fields that identify a benchmark, from a stored document or a score."""
    return {key: str(benchmark[key]) for key in _IDENTITY if benchmark.get(key)}


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """The parts of a stored document by which results are described and compared."""

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
