"""The facts of a report, collected into one plain document, `report_v1`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import nsmallest

from labledger import __version__, clock
from labledger.ledger.database.model import Graded, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject, json_schemas
from labledger.report import errors_and_flaky_tasks, outcomes, sentences, spending
from labledger.report.comparisons import compare_all
from labledger.report.ledger_queries import Asked, Trial
from labledger.report.logs import badness
from labledger.report.options import ReportOptions
from labledger.report.provenance import provenance
from labledger.report.tally import Tally

SCHEMA = "report_v1"


def collect(
    reader: LedgerReader, run_id: str, options: ReportOptions, listed: int | None = None
) -> JsonObject:
    """The `report_v1` of what is committed so far of a run, or of one of its gradings.

    It lists all trials, or the worst `listed` of them, in schedule order.

    Raises `RunNotFound`, and `InvalidInput` where the options or what is to be compared are not
    valid.
    """
    options.check()
    graded = reader.graded(run_id)
    run, root = graded.run, reader.run(graded.root_id)
    asked = Asked(reader.path, root.run_id, run.run_id, run.next_schedule_idx)
    # First, as it needs the most memory.
    compared = compare_all(reader, graded, options)
    tally = Tally()
    trials = _worst(tally.counting(asked.trials()), listed)
    scheduled = reader.scheduled(run.run_id)
    variants = outcomes.by_variant(run, tally, scheduled, options.confidence)
    document: JsonObject = {
        "schema_version": SCHEMA,
        "written_at": clock.utc_now(),
        "written_by": __version__,
        "confidence": options.confidence,
        "run": _run(graded, root, tally),
        "headline": sentences.headline(variants, compared.documents),
        "missing": list(compared.missing),
        "variants": variants,
        "comparisons": list(compared.documents),
        "tasks": outcomes.by_task(run, tally, scheduled, reader.task_digests(run.run_id)),
        "time": spending.times(root, tally),
        "metrics": spending.metrics(run, tally, asked.metrics()),
        "errors": errors_and_flaky_tasks.errors(run, tally),
        "trials": [_trial(trial) for trial in trials],
        "provenance": provenance(reader, graded, asked, tally, options),
    }
    _check(document)
    return document


def _check(document: JsonObject) -> None:
    """Hold the document against its schema: of its long lists, whose rows are alike, the ends."""
    ends = {name: document[name][:1] + document[name][-1:] for name in ("tasks", "trials")}
    json_schemas.require_valid({**document, **ends}, SCHEMA)


def _worst(trials: Iterable[Trial], listed: int | None) -> list[Trial]:
    """The worst `listed` trials, in schedule order; every one is taken from `trials`."""
    if listed is None:
        return list(trials)
    if not listed:
        deque(trials, maxlen=0)  # nsmallest would take none of them.
        return []
    worst = nsmallest(listed, trials, key=lambda t: badness(t.status, t.verdict, t.schedule_idx))
    return sorted(worst, key=lambda trial: trial.schedule_idx)


def _run(graded: Graded, root: RunInfo, tally: Tally) -> JsonObject:
    """When its agents ran, and how far the grading is."""
    run, variants = graded.run, tally.variants.values()
    return {
        "run_id": graded.name,
        "experiment_id": run.experiment_id,
        "name": run.name,
        "status": run.status.value,
        "created_at": root.created_at,
        "updated_at": run.updated_at,
        "ended_at": root.ended_at,
        "scheduled": run.total_slots,
        "committed": sum(one.committed for one in variants),
        "scored": sum(one.scored for one in variants),
        "passed": sum(one.passed for one in variants),
    }


def _trial(trial: Trial) -> JsonObject:
    return {
        "schedule_idx": trial.schedule_idx,
        "variant_id": trial.variant_id,
        "task_id": trial.task_id,
        "repl_idx": trial.repl_idx,
        "status": trial.status,
        "reason": trial.reason,
        "message": trial.message,
        "verdict": trial.verdict,
        "counted": trial.counted is not None,
        "metric_name": trial.metric_name,
        "metric_value": trial.metric_value,
        "attempt": trial.attempt,
        "duration_ms": trial.duration_ms,
        "agent_ms": trial.agent_ms,
    }
