"""How many of a benchmark's tasks a run has, which tasks were left out, and why.

A resolved experiment records the tasks of its benchmark that labledger cannot run. A pass rate over
the other tasks is not the benchmark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from labledger.records import JsonObject
from labledger.records.json_codec import Section
from labledger.records.json_schemas import Text


@dataclass(frozen=True, slots=True)
class SkippedTask(Section):
    """A task of a benchmark that was left out."""

    id: Text
    reason: Annotated[str, ("type", "string")]
    """Why labledger cannot run it."""


@dataclass(frozen=True, slots=True)
class TaskCoverage:
    """The tasks of a run, and the tasks of its benchmark that were left out."""

    run: int
    """How many tasks the run has."""
    skipped: tuple[SkippedTask, ...] = ()
    is_limited: bool = False
    """Whether a limit chose among the tasks, so that the benchmark has more of them."""

    @classmethod
    def of_document(cls, document: JsonObject) -> Self:
        """Return the coverage in a resolved experiment. Earlier versions record no skips."""
        dataset = document.get("dataset") or {}
        filters = dataset.get("filters") or {}
        return cls(
            run=dataset.get("tasks") or 0,
            skipped=tuple(map(SkippedTask.from_json, dataset.get("skipped") or ())),
            is_limited=any(settings.get("limit") is not None for settings in (dataset, filters)),
        )

    @classmethod
    def of_json(cls, members: JsonObject) -> Self:
        """Return the coverage from the members of `as_json`."""
        return cls(
            members.get("tasks", 0),
            tuple(map(SkippedTask.from_json, members.get("skipped_tasks", ()))),
            members.get("benchmark_tasks") is None,
        )

    @classmethod
    def together(cls, coverages: Sequence[Self], tasks: int) -> Self:
        """Return the coverage of several runs that are combined into one with so many tasks."""
        skipped = {task.id: task for coverage in coverages for task in coverage.skipped}
        limited = any(coverage.is_limited for coverage in coverages)
        return cls(tasks, tuple(skipped.values()), limited)

    @property
    def share(self) -> str:
        """The number of the run's tasks and of all tasks, such as `25 of 30`."""
        if self.is_limited:
            return f"{self.run:,}"
        return f"{self.run:,} of {self.run + len(self.skipped):,}"

    def as_json(self) -> JsonObject:
        """Return the members for documents about a run; nothing if no task was left out."""
        if not self.skipped:
            return {}
        return {
            "tasks": self.run,
            "benchmark_tasks": None if self.is_limited else self.run + len(self.skipped),
            "skipped_tasks": [task.as_json() for task in self.skipped],
        }
