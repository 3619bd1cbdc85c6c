"""Collect the facts of a run's report, and render it as a page, Markdown or JSON.

A report is about the slots that are committed when it begins; the run may continue. JSON
(`report_v1`) is written row by row, so the whole document is never in memory.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from heapq import nsmallest
from itertools import chain, islice
from typing import Self

from labledger import __version__, clock, resources
from labledger.compare.compare import compare_family, outcome_clusters, read_reruns
from labledger.compare.compare_options import PASS_RATE, CompareOptions, ErrorCounting, Estimand
from labledger.compare.comparison_document import Comparison, TaskRow
from labledger.compare.run_caveats import (
    cancelled_sentences,
    grading_sentences,
    skipped_sentences,
    unread_sentences,
    untested_sentences,
)
from labledger.compare.sides import CombinedRuns, read_combined
from labledger.errors import ExtraMissing, InvalidInput, Parameter, Problem
from labledger.ledger.database.run_info import Graded, RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.model_usage import together
from labledger.records import JsonObject
from labledger.records.identity import RUN_SEPARATOR
from labledger.records.json_codec import to_json
from labledger.records.resource_pressure import TimeoutCounts
from labledger.records.task_coverage import TaskCoverage
from labledger.report import markdown, outcome_tally, page, sentences, time_and_metrics
from labledger.report.logs import LogSelection
from labledger.report.outcome_tally import Tally
from labledger.report.provenance import combined_provenance, provenance
from labledger.report.report_document import Cell, Extension, Report, ReportedPart, ReportedRun
from labledger.report.report_queries import ReportedCommits, ReportedTrial, Texts
from labledger.text.json_text import json_pieces
from labledger.text.words import counted

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a report.

    Attributes:
        compare: The comparisons of the report, each another run (``RUN`` or ``RUN:VARIANT``), or
            two variants such as ``A B``. Empty compares the baseline with every treatment.
        all_pairs: Compare every pair of variants and rank them in tie groups, instead of the
            baseline with every treatment.
        confidence: The level of intervals and decisions, 0.5 or more and less than 1.
        estimand: Estimate differences for tasks like these, or for exactly these tasks.
        equivalent_within: Also decide whether the sides of each comparison are shown to differ by
            less than this share, or this much of `metric`.
        metric: The metric to compare, as in `CompareOptions`.
        lower_is_better: Whether lower values of the metric are better, as in `CompareOptions`.
        errors: How comparisons of pass rates count slots without a counted verdict.
        cluster: The field of a task's row whose values are the clusters.
        logs: The trials whose logs and patches the page holds.
        max_bytes: The approximate size limit of the page in bytes. Logs beyond it are left out.
        verify: Recompute every digest of the run, as `labledger verify` does, and not only the
            chain.

    Example:
        >>> import labledger
        >>> options = labledger.ReportOptions(compare=("baseline terse",))
        >>> with labledger.open_ledger() as ledger:
        ...     ledger.write_report("demo", "report.html", options=options)
    """

    compare: tuple[str, ...] = ()
    all_pairs: bool = False
    confidence: float = 0.95
    estimand: Estimand = Estimand.TASKS
    equivalent_within: float | None = None
    metric: str = PASS_RATE
    lower_is_better: bool | None = None
    errors: ErrorCounting = ErrorCounting.AS_FAILURES
    cluster: str | None = None
    logs: LogSelection = LogSelection.FAILED
    max_bytes: int = 10 * MIB
    verify: bool = False

    def __post_init__(self) -> None:
        """Accept the text of a choice of logs. Raises `InvalidInput` for other text."""
        if self.logs not in list(LogSelection):
            message = f"found {self.logs!r}; expected one of {', '.join(LogSelection)}"
            raise InvalidInput("the options of the report", [Problem(Parameter("logs"), message)])
        object.__setattr__(self, "logs", LogSelection(self.logs))

    @property
    def comparison(self) -> CompareOptions:
        """The options of the report's comparisons."""
        return CompareOptions(
            metric=self.metric,
            lower_is_better=self.lower_is_better,
            confidence=self.confidence,
            estimand=self.estimand,
            cluster=self.cluster,
            errors=self.errors,
            all_pairs=self.all_pairs,
            equivalent_within=self.equivalent_within,
        )

    def check(self) -> None:
        """Raise `InvalidInput` with every option that is not valid."""
        problems = list(self.comparison.problems())
        if self.max_bytes < MIB:
            message = f"found {self.max_bytes:,} bytes; expected at least {MIB:,}"
            problems.append(Problem(Parameter("max_bytes"), message))
        if self.all_pairs and self.compare:
            message = "cannot be combined with `all_pairs=True`; use one of them"
            problems.append(Problem(Parameter("compare"), message))
        if problems:
            raise InvalidInput("the options of the report", problems)


# -- the forms


def pieces(report: Report, trials: Iterable[ReportedTrial]) -> Iterator[str]:
    """Yield the text of the document, with `trials` instead of the trials that the report holds.

    The document is checked against its schema first. Only the ends of long lists are checked.
    """
    rest = iter(trials)
    first = tuple(islice(rest, 1))
    ends = replace(
        report,
        comparisons=tuple(map(_with_end_rows, report.comparisons)),
        tasks=report.tasks[:1] + report.tasks[-1:],
        trials=first,
    )
    document = ends.as_json()
    for written, comparison in zip(document["comparisons"], report.comparisons, strict=True):
        for compared, source in zip(written["comparisons"], comparison.comparisons, strict=True):
            compared["by_task"] = map(to_json, source.by_task)
    document["tasks"] = (
        {"task_id": task.task_id, "cells": _cells(task.cells)} for task in report.tasks
    )
    document["trials"] = (trial.as_json() for trial in chain(first, rest))
    yield from json_pieces(document)
    yield "\n"


def _with_end_rows(document: Comparison) -> Comparison:
    return _with_task_rows(document, lambda rows: rows[:1] + rows[-1:])


def _with_task_rows(
    document: Comparison, select: Callable[[tuple[TaskRow, ...]], tuple[TaskRow, ...]]
) -> Comparison:
    comparisons = (replace(c, by_task=select(c.by_task)) for c in document.comparisons)
    return replace(document, comparisons=tuple(comparisons))


@lru_cache(maxsize=1024)
def _cells(cells: tuple[Cell, ...]) -> list[JsonObject]:
    """Return the cells of a task as JSON. The cache helps because many tasks have equal cells."""
    return [to_json(cell) for cell in cells]


FORMS = ("html", "markdown", "json")


def render(
    reader: LedgerReader, run_id: str, form: str, options: ReportOptions
) -> Generator[bytes]:
    """Yield the report of a run, in UTF-8, piece by piece.

    `form` is one of `FORMS`. Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
    """
    if form not in FORMS:
        problem = Problem("form", f"found {form!r}; expected one of {', '.join(FORMS)}")
        raise InvalidInput("the report", [problem])
    if form == "html":
        # Fail before the facts are collected, which may take a long time.
        resources.require_page()
        max_trials = page.MAX_LISTED_TRIALS
        # The report is not bound to a name here, so that the page can release its memory early.
        yield page.render(
            reader,
            collect(reader, run_id, options, max_trials, rows_by_task=False),
            options.logs,
            options.max_bytes,
        )
    elif form == "markdown":
        report = collect(reader, run_id, options, 0, rows_by_task=False)
        yield markdown.render(report).encode()
    else:
        report = collect(reader, run_id, options, 0)
        commits = report.commits(reader.path).values()
        trials = chain.from_iterable(of_run.trials() for of_run in commits)
        yield from map(str.encode, pieces(report, trials))


# -- the facts


def collect(
    reader: LedgerReader,
    run_id: str,
    options: ReportOptions,
    max_trials: int | None = None,
    *,
    rows_by_task: bool = True,
) -> Report:
    """Return the facts about the committed slots of a run, of one of its gradings, or of several.

    The report lists the trials in schedule order: all of them, or the worst `max_trials`. Its
    comparisons have a row for each task only with `rows_by_task`. Raises `RunNotFound`, or
    `InvalidInput` if an option or a side to compare is not valid.
    """
    options.check()
    combined = read_combined(reader, run_id)
    parts = [_Part.of(reader, graded, is_part=len(combined.runs) > 1) for graded in combined.runs]
    # Comparisons come first, because they need the most memory.
    comparisons, missing = _compare(reader, combined, options)
    if not rows_by_task:
        comparisons = tuple(_with_task_rows(document, lambda _: ()) for document in comparisons)
    run_ids = [part.graded.run.run_id for part in parts]
    texts: Texts = {
        task_id: task_id for run_id in run_ids for task_id in reader.task_digests(run_id)
    }
    task_ids = list(texts)
    tally = Tally()
    trials = _worst(tally.counting(_trials(parts, texts)), max_trials)
    scheduled, totals = _scheduled(reader, run_ids, texts)
    clusters = outcome_clusters(reader, combined, options.cluster)
    variants = outcome_tally.by_variant(
        combined.variants, tally, scheduled, options.confidence, clusters
    )
    reported = [
        part.reported(reader, tally, total, verify_all=options.verify)
        for part, total in zip(parts, totals, strict=True)
    ]
    whole = reported[0]
    if len(parts) > 1:
        origins = combined_provenance([part.provenance for part in reported])
        whole = ReportedPart(_combined_run(run_id, [part.run for part in reported]), origins)
    wall_ms = time_and_metrics.wall_ms(parts[0].root) if len(parts) == 1 else None
    values = chain.from_iterable(part.commits.metrics() for part in parts)
    return Report(
        written_at=clock.utc_now(),
        written_by=__version__,
        confidence=options.confidence,
        run=whole.run,
        headline=sentences.headline(
            variants,
            comparisons,
            TaskCoverage.together([part.graded.run.coverage for part in parts], len(task_ids)),
        ),
        missing=(
            *(text for part in parts for text in _skipped(part.graded)),
            *(*missing, *_combination(combined), *_timeouts(reader, combined)),
            *(text for part in parts for text in _without_answers(reader, part.graded)),
            *(
                f"{text}."
                for part in parts
                for text in untested_sentences(part.graded.run.resolved)
            ),
            *(text for part in parts for text in _unread(reader, part.graded)),
            *(text for part in parts for text in _failed_gradings(reader, part.graded)),
            *(text for part in parts for text in _cancelled(reader, part.graded)),
        ),
        reruns=tuple(read_reruns(reader, [combined])),
        variants=variants,
        comparisons=comparisons,
        tasks=outcome_tally.by_task(combined.variants, tally, scheduled, task_ids),
        time=time_and_metrics.times(combined.variants, tally, wall_ms),
        metrics=time_and_metrics.metrics(combined.variants, tally, values, options.confidence),
        errors=outcome_tally.errors(combined.variants, tally),
        trials=trials,
        provenance=whole.provenance,
        runs=tuple(reported) if len(parts) > 1 else (),
        models=tuple(together(chain.from_iterable(p.commits.model_usage() for p in parts))),
        claims=time_and_metrics.claims(p.commits.claims() for p in parts),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The run of a report, or one of several that it takes as one."""

    graded: Graded
    root: RunInfo
    commits: ReportedCommits
    tally: Tally | None
    """The counts of its own trials; None if the report is about one run and its tally has them."""

    @classmethod
    def of(cls, reader: LedgerReader, graded: Graded, *, is_part: bool) -> Self:
        run, root = graded.run, reader.run(graded.root_id)
        commits = ReportedCommits(
            reader.path,
            root.run_id,
            run.run_id,
            run.next_schedule_idx,
            is_part=is_part,
            has_reruns=any(part.kind == "rerun" for part in root.parts),
        )
        tally = Tally() if is_part else None
        return cls(graded, root, commits, tally)

    def reported(
        self, reader: LedgerReader, whole: Tally, scheduled: int, *, verify_all: bool
    ) -> ReportedPart:
        """Return its facts. `whole` is the report's tally, after all trials are counted."""
        tally = self.tally or whole
        return ReportedPart(
            _run(self.graded, self.root, tally, scheduled),
            provenance(reader, self.graded, self.commits, tally, verify_all=verify_all),
        )


def _scheduled(
    reader: LedgerReader, run_ids: Sequence[str], texts: Texts
) -> tuple[outcome_tally.Scheduled, list[int]]:
    """Return the number of slots of each variant and task, and the number of slots of each run."""
    scheduled: dict[str, dict[str, int]] = defaultdict(dict)
    totals = []
    for run_id in run_ids:
        total = 0
        for variant_id, task_id, slots in reader.scheduled(run_id):
            of_variant = scheduled[variant_id]
            # Use the same key object as the tally, to save memory.
            of_variant[texts.get(task_id, task_id)] = of_variant.get(task_id, 0) + slots
            total += slots
        totals.append(total)
    return scheduled, totals


def _trials(parts: Iterable[_Part], texts: Texts) -> Iterator[ReportedTrial]:
    """Yield the trials, run by run, in schedule order."""
    for part in parts:
        trials = part.commits.trials(texts)
        yield from trials if part.tally is None else part.tally.counting(trials)


def _combination(combined: CombinedRuns) -> Iterator[str]:
    """Yield sentences about runs that are taken as one, and how their experiments differ."""
    if len(combined.runs) > 1:
        names = ", ".join(graded.name for graded in combined.runs)
        yield f"{counted(len(combined.runs), 'run')} are taken as one: {names}."
        yield from (f"{difference}." for difference in combined.differences)


def _skipped(graded: Graded) -> Iterator[str]:
    """Yield a sentence about the tasks of the benchmark that a run skips."""
    yield from (f"{text}." for text in skipped_sentences(graded.root_id, graded.run.coverage))


def _cancelled(reader: LedgerReader, graded: Graded) -> tuple[str, ...]:
    return cancelled_sentences(graded.root_id, reader.cancelled(graded.root_id))


def _without_answers(reader: LedgerReader, graded: Graded) -> Iterator[str]:
    """Yield sentences about trials that got no answer from a model, or called none."""
    for answers in reader.model_answers(graded.root_id):
        yield from (f"In {graded.root_id}, {sentence}." for sentence in answers.sentences)


def _unread(reader: LedgerReader, graded: Graded) -> Iterator[str]:
    """Yield sentences about trials with an output that could not be stored whole."""
    root_id = graded.root_id
    yield from (f"{text}." for text in unread_sentences(root_id, reader.unread_results(root_id)))


def _failed_gradings(reader: LedgerReader, graded: Graded) -> Iterator[str]:
    """Yield sentences about trials whose tests did not work."""
    run_id = graded.run.run_id
    failed, told_since = reader.failed_gradings(run_id), reader.told_since(run_id)
    yield from (f"{text}." for text in grading_sentences(run_id, failed, told_since))


def _timeouts(reader: LedgerReader, combined: CombinedRuns) -> Iterator[str]:
    """Yield a sentence if more attempts timed out when processors were scarce."""
    counts = [reader.timeout_counts(graded.run.run_id) for graded in combined.runs]
    together = reduce(TimeoutCounts.together, filter(None, counts), TimeoutCounts())
    if together.sentence is not None:
        yield f"{together.sentence}."


def _combined_run(name: str, runs: Sequence[ReportedRun]) -> ReportedRun:
    """Return several runs as one. It is completed, and has ended, if all of them have."""
    statuses = {run.status for run in runs}
    ends = [run.ended_at for run in runs]
    return ReportedRun(
        run_id=name,
        experiment_id=RUN_SEPARATOR.join(dict.fromkeys(run.experiment_id for run in runs)),
        name=runs[0].name,
        status=next(s for s in ("running", "interrupted", "completed") if s in statuses),
        created_at=min(run.created_at for run in runs),
        updated_at=max(run.updated_at for run in runs),
        ended_at=None if None in ends else max(end for end in ends if end is not None),
        scheduled=sum(run.scheduled for run in runs),
        committed=sum(run.committed for run in runs),
        scored=sum(run.scored for run in runs),
        passed=sum(run.passed for run in runs),
        skipped_tasks=tuple({task.id: task for run in runs for task in run.skipped_tasks}.values()),
    )


def _worst(trials: Iterable[ReportedTrial], max_trials: int | None) -> tuple[ReportedTrial, ...]:
    """Return the worst `max_trials` trials in their original order; consume all of `trials`."""
    if max_trials is None:
        return tuple(trials)
    if not max_trials:
        deque(trials, maxlen=0)  # Trials are counted as they are consumed.
        return ()
    worst = nsmallest(max_trials, enumerate(trials), key=lambda item: item[1].badness)
    return tuple(trial for _, trial in sorted(worst, key=lambda item: item[0]))


def _run(graded: Graded, root: RunInfo, tally: Tally, scheduled: int) -> ReportedRun:
    run, variants = graded.run, tally.variants.values()
    return ReportedRun(
        run_id=graded.name,
        experiment_id=run.experiment_id,
        name=run.name,
        status=run.status.value,
        created_at=root.created_at,
        updated_at=run.updated_at,
        ended_at=root.ended_at,
        scheduled=scheduled,
        committed=sum(variant.committed for variant in variants),
        scored=sum(variant.scored for variant in variants),
        passed=sum(variant.passed for variant in variants),
        extensions=tuple(
            Extension(part.part, part.created_at, part.slot_count, part.because)
            for part in root.parts
            # A regrading that began before the run grew lacks the slots of later parts.
            if part.kind == "extended" and part.first_idx < run.total_slots
        ),
        skipped_tasks=run.coverage.skipped,
    )


# -- comparisons


def _compare(
    reader: LedgerReader, combined: CombinedRuns, options: ReportOptions
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Return the report's comparisons, and sentences about comparisons that are not possible.

    By default, the baseline is compared with every treatment, if there is exactly one baseline. All
    comparisons are one family, corrected for their number. Without the extra `analysis` there are
    none. Raises `RunNotFound` or `InvalidInput`.
    """
    requests = [sides_of(combined, words) for words in options.compare]
    if options.all_pairs:
        requests = [[combined.name]] if len(combined.variants) > 1 else []
    elif not requests:
        requests = [[combined.name]] if combined.against_baseline() else []
    try:
        return tuple(compare_family(reader, requests, options.comparison)), ()
    except ExtraMissing as error:
        return (), (f"No comparisons and no intervals: {error.message}; {error.hint}",)


def sides_of(combined: CombinedRuns, words: str) -> list[str]:
    """Translate one `--compare` of a report into the arguments of `labledger compare`.

    ``OTHER`` (a RUN or RUN:VARIANT) is A, and this run is B. ``A B`` are two variants of this run,
    or two sides, each RUN or RUN:VARIANT.
    """
    match words.split():
        case [other]:
            return [other, combined.name]
        case [a, b] if {a, b} <= set(combined.variant_ids):
            return [combined.name, a, b]
        case [a, b]:
            return [a, b]
    message = f"found {words!r}; expected another run, two variants such as 'A B', or two sides"
    raise InvalidInput("what to compare", [Problem(Parameter("compare"), message)])
