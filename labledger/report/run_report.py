"""Collect the facts of a run's report, and render it as a page, Markdown or JSON.

A report is about the slots that are committed when it begins; the run may continue. The public API
(`Ledger.report`, `Ledger.rendered_report`) calls this module, which calls the rest of the package.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from heapq import nsmallest

from labledger import __version__, clock, optional_libraries
from labledger.compare.compare import compare_family
from labledger.compare.comparison_document import Comparison
from labledger.compare.options import CompareOptions
from labledger.errors import ExtraMissing, InvalidInput, Problem
from labledger.ledger.database.model import Graded, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.report import markdown, outcomes, sentences, spending
from labledger.report.document import Report, ReportedRun
from labledger.report.ledger_queries import ReportedCommits, Trial
from labledger.report.options import ReportOptions
from labledger.report.page import page
from labledger.report.provenance import provenance
from labledger.report.tally import Tally

FORMS = ("html", "markdown", "json")


def render(reader: LedgerReader, run_id: str, form: str, options: ReportOptions) -> bytes:
    """Return the report of a run, in UTF-8.

    `form` is one of `FORMS`. Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
    """
    if form not in FORMS:
        problem = Problem("form", f"found {form!r}; expected one of {', '.join(FORMS)}")
        raise InvalidInput("the report", [problem])
    if form == "html":
        # Fail before the facts are collected, which may take long.
        optional_libraries.require_page()
        # The report is not bound to a name here, so that the page can release its memory early.
        return page.render(
            reader, collect(reader, run_id, options, page.MAX_LISTED_TRIALS), options
        )
    if form == "markdown":
        return markdown.render(collect(reader, run_id, options, 0)).encode()
    document = collect(reader, run_id, options).as_json()
    return (json.dumps(document, indent=2) + "\n").encode()


def collect(
    reader: LedgerReader, run_id: str, options: ReportOptions, max_trials: int | None = None
) -> Report:
    """Return the facts about the committed slots of a run, or of one of its gradings.

    The report lists the trials in schedule order: all of them, or the worst `max_trials`. Raises
    `RunNotFound`, or `InvalidInput` if an option or a side to compare is not valid.
    """
    options.check()
    graded = reader.graded(run_id)
    run, root = graded.run, reader.run(graded.root_id)
    commits = ReportedCommits(reader.path, root.run_id, run.run_id, run.next_schedule_idx)
    # Comparisons come first, because they need the most memory.
    comparisons, missing = _compare(reader, graded, options)
    tally = Tally()
    trials = _worst(tally.counting(commits.trials()), max_trials)
    scheduled = reader.scheduled(run.run_id)
    variants = outcomes.by_variant(run, tally, scheduled, options.confidence)
    return Report(
        written_at=clock.utc_now(),
        written_by=__version__,
        confidence=options.confidence,
        run=_run(graded, root, tally),
        headline=sentences.headline(variants, comparisons),
        missing=missing,
        variants=variants,
        comparisons=comparisons,
        tasks=outcomes.by_task(run, tally, scheduled, reader.task_digests(run.run_id)),
        time=spending.times(root, tally),
        metrics=spending.metrics(run, tally, commits.metrics()),
        errors=outcomes.errors(run, tally),
        trials=trials,
        provenance=provenance(reader, graded, commits, tally, options),
    )


def _worst(trials: Iterable[Trial], max_trials: int | None) -> tuple[Trial, ...]:
    """Return the worst `max_trials` trials, in schedule order; consume all of `trials`."""
    if max_trials is None:
        return tuple(trials)
    if not max_trials:
        deque(trials, maxlen=0)  # Trials are counted as they are consumed; nsmallest takes none.
        return ()
    worst = nsmallest(max_trials, trials, key=lambda trial: trial.badness)
    return tuple(sorted(worst, key=lambda trial: trial.schedule_idx))


def _run(graded: Graded, root: RunInfo, tally: Tally) -> ReportedRun:
    run, variants = graded.run, tally.variants.values()
    return ReportedRun(
        run_id=graded.name,
        experiment_id=run.experiment_id,
        name=run.name,
        status=run.status.value,
        created_at=root.created_at,
        updated_at=run.updated_at,
        ended_at=root.ended_at,
        scheduled=run.total_slots,
        committed=sum(variant.committed for variant in variants),
        scored=sum(variant.scored for variant in variants),
        passed=sum(variant.passed for variant in variants),
    )


# -- comparisons


def _compare(
    reader: LedgerReader, graded: Graded, options: ReportOptions
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Return what `options.compare` asks for, and sentences about what could not be compared.

    Without such options, the baseline is compared with every treatment, if there is exactly one
    baseline. All comparisons are one family, corrected for their number. Without the extra
    `analysis` there are none. Raises `RunNotFound` or `InvalidInput`.
    """
    requests = [sides_of(graded, words) for words in options.compare]
    if options.all_pairs:
        requests = [[graded.name]] if len(graded.run.variants) > 1 else []
    elif not requests:
        requests = _default_sides(graded)
    compare_options = CompareOptions(
        confidence=options.confidence,
        estimand=options.estimand,
        all_pairs=options.all_pairs,
        equivalent_within=options.equivalent_within,
    )
    try:
        return tuple(compare_family(reader, requests, compare_options)), ()
    except ExtraMissing as error:
        return (), (f"No comparisons and no intervals: {error.message}; {error.hint}",)


def sides_of(graded: Graded, words: str) -> list[str]:
    """Return the arguments of `labledger compare` that one `--compare` of a report stands for.

    ``OTHER`` (a RUN or RUN:VARIANT) is compared with this run: OTHER is A, this run is B.
    ``A B`` are two variants of this run, or two sides, each RUN or RUN:VARIANT.
    """
    match words.split():
        case [other]:
            return [other, graded.name]
        case [a, b] if {a, b} <= {variant.variant_id for variant in graded.run.variants}:
            return [graded.name, a, b]
        case [a, b]:
            return [a, b]
    message = f"found {words!r}; expected another run, two variants such as 'A B', or two sides"
    raise InvalidInput("what to compare", [Problem("--compare", message)])


def _default_sides(graded: Graded) -> list[list[str]]:
    roles = [variant.role for variant in graded.run.variants]
    return [[graded.name]] if roles.count("baseline") == 1 and len(roles) > 1 else []
