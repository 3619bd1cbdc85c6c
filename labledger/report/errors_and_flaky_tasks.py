"""What went wrong, by type; and which tasks were hardest, or passed only sometimes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labledger.ledger.database.model import RunInfo
from labledger.records import JsonObject
from labledger.records.pass_rate import PassCounts
from labledger.report.tally import Tally


def errors(run: RunInfo, tally: Tally) -> list[JsonObject]:
    """Slots that did not complete, by status and reason, the most frequent first."""
    ranked = sorted(tally.errors.items(), key=lambda item: (-item[1].variants.total(), item[0]))
    return [
        {
            "status": status,
            "reason": reason or None,
            "count": found.variants.total(),
            "variants": {
                variant.variant_id: count
                for variant in run.variants
                if (count := found.variants[variant.variant_id])
            },
            "examples": found.examples,
            "message": found.message,
        }
        for (status, reason), found in ranked
    ]


def rated(task: JsonObject) -> int:
    """How many of a task's slots the pass rate counts."""
    return sum(cell["passed"] + cell["not_passed"] for cell in task["cells"])


def share(task: JsonObject) -> float | None:
    """The pass rate of a task; None where nothing counts."""
    total = rated(task)
    return sum(cell["passed"] for cell in task["cells"]) / total if total else None


def cell_share(cell: JsonObject) -> float | None:
    """The pass rate of a variant on a task; None where nothing counts."""
    return PassCounts(cell["passed"], cell["not_passed"]).rate


def spread(task: JsonObject) -> float:
    """How far the variants are apart on a task: the largest share less the smallest."""
    shares = [found for cell in task["cells"] if (found := cell_share(cell)) is not None]
    return max(shares) - min(shares) if shares else 0.0


def is_flaky(task: JsonObject) -> bool:
    """Whether a variant passed some replications of a task and not others."""
    return any(cell["passed"] and cell["not_passed"] for cell in task["cells"])


def hardest_first(tasks: Iterable[JsonObject]) -> list[JsonObject]:
    """Tasks by their pass rate; those without one come last."""
    return sorted(tasks, key=lambda task: (_or_last(share(task)), -rated(task), task["task_id"]))


def hardest(tasks: Iterable[JsonObject]) -> list[JsonObject]:
    """Tasks that not every trial passed, the hardest first."""
    return [
        task for task in hardest_first(tasks) if (found := share(task)) is not None and found < 1
    ]


def flaky(tasks: Sequence[JsonObject]) -> list[JsonObject]:
    """Flaky tasks, the flakiest first; of equally flaky ones, first those with more trials."""
    return sorted(
        filter(is_flaky, tasks),
        key=lambda task: (-flakiness(task), -rated(task), task["task_id"]),
    )


def flakiness(task: JsonObject) -> float:
    """The variance of passing within variants, summed: 0.25 for a variant at even odds."""
    shares = [cell_share(cell) for cell in task["cells"]]
    return sum(found * (1 - found) for found in shares if found is not None)


def _or_last(found: float | None) -> float:
    return 2.0 if found is None else found
