"""Where a report's numbers come from, and whether the ledger still holds what was committed.

Without `--verify` only the chain of commits is checked, because recomputing every digest of a large
run takes minutes. The report says which of these checks was made.
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

_EVALUATOR_KEYS = ("name", "version", "mode")
_MAX_LISTED_FINDINGS = 20


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
    first_score = reader.first_score(run.run_id) or {}
    benchmark = StoredFacts.of_document(run.resolved).benchmark
    evaluator = first_score.get("evaluator") or {}
    return Provenance(
        experiment_digest=run.digest,
        labledger_version=run.labledger_version,
        ledger_id=reader.ledger_id,
        chain_head=reader.chain_head(run.run_id),
        images=tuple(Image(str(ref), str(id_)) for ref, id_ in sorted(images.items())),
        benchmark=benchmark or benchmark_identity(first_score.get("benchmark") or {}),
        evaluator={key: str(evaluator[key]) for key in _EVALUATOR_KEYS if evaluator.get(key)},
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
        listed_findings=tuple(
            _finding_text(finding.schedule_idx, finding.message)
            for finding in result.findings[:_MAX_LISTED_FINDINGS]
        ),
    )


def _verify_chain(reader: LedgerReader, run: RunInfo) -> Verification:
    problems = reader.chain_problems(run.run_id)
    listed = tuple(_finding_text(*problem) for problem in islice(problems, _MAX_LISTED_FINDINGS))
    # The iterator continues after those that are listed: the others are only counted.
    findings = len(listed) + sum(1 for _ in problems)
    return Verification(
        extent="chain",
        clean=not findings,
        commits=run.next_schedule_idx,
        artifacts=0,
        findings=findings,
        listed_findings=listed,
    )


def _finding_text(schedule_idx: int | None, message: str) -> str:
    return message if schedule_idx is None else f"slot {schedule_idx}: {message}"
