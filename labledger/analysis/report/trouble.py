"""What went wrong, by type; and which tasks were hardest, or passed only sometimes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from labledger.analysis.report.questions import Trial
from labledger.ledger.model import RunInfo
from labledger.passing import PassCounts
from labledger.records import JsonObject, SlotStatus

_EXAMPLES = 3


def errors(run: RunInfo, trials: Iterable[Trial]) -> list[JsonObject]:
    """Slots that did not complete, by status and reason, the most frequent first."""
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.status != SlotStatus.COMPLETED.value:
            found[trial.status, trial.reason or ""].append(trial)
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "status": status,
            "reason": reason or None,
            "count": len(those),
            "variants": _by_variant(run, those),
            "examples": [trial.schedule_idx for trial in those[:_EXAMPLES]],
            "message": next((trial.message for trial in those if trial.message), None),
        }
        for (status, reason), those in ranked
    ]


def _by_variant(run: RunInfo, trials: Iterable[Trial]) -> dict[str, int]:
    counts = Counter(trial.variant_id for trial in trials)
    return {v.variant_id: counts[v.variant_id] for v in run.variants if counts[v.variant_id]}


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
