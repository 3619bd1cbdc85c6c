"""Where a report's numbers come from, and whether the ledger still holds what was committed.

Unless asked for more, only the chain of commits is checked: `labledger verify` takes minutes for a
large run. The report says which.
"""

from __future__ import annotations

import json
from itertools import islice

from labledger.experiment.stored_facts import StoredFacts, benchmark_identity
from labledger.ledger.database.model import Graded, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.verification.verify import verify
from labledger.records import JsonObject
from labledger.report.ledger_queries import Asked
from labledger.report.options import ReportOptions
from labledger.report.tally import Tally

_EVALUATOR = ("name", "version", "mode")
_FINDINGS = 20


def provenance(
    reader: LedgerReader,
    graded: Graded,
    asked: Asked,
    tally: Tally,
    options: ReportOptions,
) -> JsonObject:
    """Digests, images, versions, and what was verified of the run's rows."""
    run = graded.run
    images = {**run.images, **tally.images}
    first = reader.first_score(run.run_id) or {}
    benchmark = StoredFacts.of_document(run.resolved).benchmark
    evaluator = first.get("evaluator") or {}
    return {
        "experiment_digest": run.digest,
        "labledger_version": run.labledger_version,
        "ledger_id": reader.ledger_id,
        "chain_head": reader.chain_head(run.run_id),
        "images": [{"ref": str(ref), "id": str(id_)} for ref, id_ in sorted(images.items())],
        "benchmark": benchmark or benchmark_identity(first.get("benchmark") or {}),
        "evaluator": {key: str(evaluator[key]) for key in _EVALUATOR if evaluator.get(key)},
        "grading": _grading(graded),
        "isolation": [
            {"says": json.loads(text), "scores": count} for text, count in asked.isolation()
        ],
        "verification": _all_verified(reader, run.run_id)
        if options.verify
        else _chain_verified(reader, run),
    }


def _grading(graded: Graded) -> JsonObject:
    return {
        "root_id": graded.root_id,
        "run_id": graded.run.run_id,
        "generation": graded.grading.generation,
        "generations": graded.generations,
        "counts": graded.grading.counts,
        "grader_digest": graded.grading.grader_digest,
        "created_at": graded.grading.created_at,
    }


def _all_verified(reader: LedgerReader, run_id: str) -> JsonObject:
    found = verify(reader.path, run_id)
    return {
        "extent": "all",
        "clean": found.is_clean,
        "commits": found.slots,
        "artifacts": found.artifacts,
        "findings": len(found.findings),
        "told": [_told(f.schedule_idx, f.message) for f in found.findings[:_FINDINGS]],
    }


def _chain_verified(reader: LedgerReader, run: RunInfo) -> JsonObject:
    found = reader.chain_problems(run.run_id)
    told = [_told(*problem) for problem in islice(found, _FINDINGS)]
    findings = len(told) + sum(1 for _ in found)
    return {
        "extent": "chain",
        "clean": not findings,
        "commits": run.next_schedule_idx,
        "artifacts": 0,
        "findings": findings,
        "told": told,
    }


def _told(schedule_idx: int | None, message: str) -> str:
    return message if schedule_idx is None else f"slot {schedule_idx}: {message}"
