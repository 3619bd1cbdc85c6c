"""Where a report's numbers come from, and whether the ledger still holds what was committed.

Without `--verify` only the chain of commits is checked, because recomputing every digest of a large
run takes minutes. The report says which of both was done.
"""

from __future__ import annotations

import json
from itertools import islice

from labledger.experiment.stored_facts import StoredFacts, benchmark_identity
from labledger.ledger.database.model import Graded, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.verification.verify import verify
from labledger.report.document import (
    Image,
    Isolation,
    Provenance,
    ReportedGrading,
    Verification,
)
from labledger.report.ledger_queries import ReportedCommits
from labledger.report.options import ReportOptions
from labledger.report.tally import Tally

_EVALUATOR = ("name", "version", "mode")
_FINDINGS = 20
"""How many findings a report lists."""


def provenance(
    reader: LedgerReader,
    graded: Graded,
    commits: ReportedCommits,
    tally: Tally,
    options: ReportOptions,
) -> Provenance:
    """Return digests, images and versions, and what was verified of the run's rows."""
    run, grading = graded.run, graded.grading
    images = {**run.images, **tally.images}
    first = reader.first_score(run.run_id) or {}
    benchmark = StoredFacts.of_document(run.resolved).benchmark
    evaluator = first.get("evaluator") or {}
    return Provenance(
        experiment_digest=run.digest,
        labledger_version=run.labledger_version,
        ledger_id=reader.ledger_id,
        chain_head=reader.chain_head(run.run_id),
        images=tuple(Image(str(ref), str(id_)) for ref, id_ in sorted(images.items())),
        benchmark=benchmark or benchmark_identity(first.get("benchmark") or {}),
        evaluator={key: str(evaluator[key]) for key in _EVALUATOR if evaluator.get(key)},
        grading=ReportedGrading(
            root_id=graded.root_id,
            run_id=run.run_id,
            generation=grading.generation,
            generations=graded.generations,
            counts=grading.counts,
            grader_digest=grading.grader_digest,
            created_at=grading.created_at,
        ),
        isolation=tuple(Isolation(json.loads(text), count) for text, count in commits.isolation()),
        verification=_verify_all(reader, run.run_id)
        if options.verify
        else _verify_chain(reader, run),
    )


def _verify_all(reader: LedgerReader, run_id: str) -> Verification:
    result = verify(reader.path, run_id)
    return Verification(
        extent="all",
        clean=result.is_clean,
        commits=result.slots,
        artifacts=result.artifacts,
        findings=len(result.findings),
        told=tuple(_sentence(f.schedule_idx, f.message) for f in result.findings[:_FINDINGS]),
    )


def _verify_chain(reader: LedgerReader, run: RunInfo) -> Verification:
    problems = reader.chain_problems(run.run_id)
    first = tuple(_sentence(*problem) for problem in islice(problems, _FINDINGS))
    findings = len(first) + sum(1 for _ in problems)
    return Verification(
        extent="chain",
        clean=not findings,
        commits=run.next_schedule_idx,
        artifacts=0,
        findings=findings,
        told=first,
    )


def _sentence(schedule_idx: int | None, message: str) -> str:
    return message if schedule_idx is None else f"slot {schedule_idx}: {message}"
