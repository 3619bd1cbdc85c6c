"""The sentences of a report about a run, the same on the page and in Markdown.

Sentences about a comparison are in `comparison_sentences`; `labledger.text` formats figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from labledger.compare import comparison_sentences
from labledger.compare.comparison_document import Compared, Comparison
from labledger.compare.comparison_text import facts
from labledger.compare.look_sentences import looks
from labledger.compare.ranking import ranking_text
from labledger.compare.run_caveats import rerun_sentences
from labledger.records.task_coverage import TaskCoverage
from labledger.report.logs import LogSelection, PackedLogs
from labledger.report.report_document import Provenance, Report, ReportedRun, VariantOutcomes
from labledger.text import confidence_level, count, counted, duration, percent

METRICS = (
    "Means are over the trials that reported a number, and so are the totals of what adds up, "
    "tokens and money. A trial that reported none is unknown, never 0."
)


MODEL_COLUMNS = (
    *("variant", "model", "calls", "tokens in", "tokens out", "cost", "calls of unknown cost"),
    *("refused", "failed", "seconds waited"),
)
MODELS = (
    "As the gateway counted them in the answers of providers, over all attempts of the trials that "
    "count. A cost leaves out calls whose cost is unknown. Calls that the gateway refused reached "
    "no provider; it waited for limits of providers."
)
CLAIM_COLUMNS = (
    *("variant", "metric", "trials", "counted", "claimed", "trials that differ", "not counted"),
)
CLAIMS = (
    "The sums over trials of which both are known: what the gateway counted of the last attempt, "
    "and what its agent said. A trial differs if its claim is off by more than 1 %. Trials that "
    "are not counted have a claim, and calls whose tokens or cost are unknown."
)


_MOST_UNDECIDED = 2
"""How many comparisons that showed no difference a headline names."""


def title(report: Report) -> str:
    return report.run.name or report.run.experiment_id


def headline(
    variants: Sequence[VariantOutcomes], documents: Sequence[Comparison], coverage: TaskCoverage
) -> str:
    """Return what the run shows: its decisions, differences first, or the counts."""
    texts = (_headline(variants, documents), skipped(coverage), rates_of_all(variants))
    return " ".join(filter(None, texts))


def skipped(coverage: TaskCoverage) -> str | None:
    """Return that tasks of the benchmark are left out; None if none is."""
    if not coverage.skipped:
        return None
    tasks = counted(len(coverage.skipped), "task")
    verb = "was" if len(coverage.skipped) == 1 else "were"
    return f"On {coverage.share} tasks of the benchmark: {tasks} {verb} skipped."


def rates_of_all(variants: Sequence[VariantOutcomes]) -> str | None:
    """Return the pass rates as benchmarks count, in a sentence; None where no trial is left out."""
    left_out = sum(variant.left_out for variant in variants)
    if not left_out:
        return None
    rates = ", ".join(f"{v.variant_id} {percent(v.passes.rate_of_all)}" for v in variants)
    return (
        f"{counted(left_out, 'trial')} left out, because something other than the agent failed; "
        f"if they had not passed, as benchmarks count, the pass rates are: {rates}."
    )


def _headline(variants: Sequence[VariantOutcomes], documents: Sequence[Comparison]) -> str:
    decisions = [
        (compared, document) for document in documents for compared in document.comparisons
    ]
    if not decisions:
        return _joined(
            f"{variant.variant_id} passed {count(variant.passes.passed)} of "
            f"{counted(variant.passes.counted, 'trial')}"
            for variant in variants
        )
    notes = dict.fromkeys(text for compared, _ in decisions for text in looks(compared))
    rankings = [text.summary for text in map(ranking_text, documents) if text is not None]
    if rankings:
        return " ".join((*rankings, *notes))
    undecided = [pair for pair in decisions if not pair[0].decision.verdict.is_difference]
    clauses = [
        comparison_sentences.headline(*pair)
        for pair in decisions
        if pair[0].decision.verdict.is_difference
    ]
    if len(undecided) > _MOST_UNDECIDED:
        clauses.append(f"{count(len(undecided))} comparisons showed no difference")
    else:
        clauses += [comparison_sentences.headline(*pair) for pair in undecided]
    return " ".join((_joined(clauses), *notes))


def _joined(clauses: Iterable[str]) -> str:
    text = "; ".join(clauses) + "."
    # A sentence begins with a capital, unless it begins with the name of a variant.
    begins_with_name = not text.startswith(
        ("no difference was shown", "of the same trials", "whether ")
    )
    return text if begins_with_name else text[0].upper() + text[1:]


def reruns(report: Report) -> tuple[str, ...]:
    """Return which slots of the run, and of runs that it is compared with, were run again."""
    by_run = {of_run.run_id: of_run.reruns for of_run in report.reruns}
    for document in report.comparisons:
        by_run |= {of_run.run_id: of_run.reruns for of_run in document.reruns}
    return tuple(
        sentence for run_id, each in by_run.items() for sentence in rerun_sentences(run_id, each)
    )


def unfinished(report: Report) -> str | None:
    """Return that the run is not finished; None where it is."""
    run = report.run
    if run.status == "completed":
        return None
    if run.committed == run.scheduled:
        return (
            f"This run is not finished ({run.status}): slots are to be run again that still count "
            "as they ended the first time. Every number in this report may still change."
        )
    return (
        f"This run is not finished ({run.status}): {count(run.committed)} of "
        f"{counted(run.scheduled, 'slot')} are committed, "
        f"{count(run.scheduled - run.committed)} are not. Every number in this report is "
        "about the committed slots and may still change."
    )


def generation(report: Report) -> str | None:
    """Return in few words which grading the numbers are from, where there are several."""
    grading = report.provenance.grading
    if grading.generations == 1:
        return None
    return f"scores of grading {grading.generation} of {grading.generations}"


def replay(provenance: Provenance) -> str | None:
    """Return which run was replayed, and what that means for costs; None if none was."""
    if provenance.replays is None:
        return None
    return (
        f"the recorded calls of {provenance.replays} answered the agents: tokens are those of the "
        "record, and nothing was spent"
    )


def grading(provenance: Provenance) -> str | None:
    """Return which grading the numbers are from and when it began, where there are several."""
    reported = provenance.grading
    if reported.generations == 1:
        return None
    is_current = "is the current one" if reported.counts else "is not the current one"
    return (
        f"grading {reported.generation} of {reported.generations} of run {reported.root_id}, which "
        f"{is_current}; begun {reported.created_at}"
    )


def extensions(run: ReportedRun) -> str | None:
    """Return by how many slots a run was extended, when and why; None if it was not."""
    texts = [
        f"by {counted(part.slots, 'slot')} at {part.created_at}"
        + (f" ({part.because})" if part.because else "")
        for part in run.extensions
    ]
    return "; ".join(texts) or None


def tampering(report: Report) -> str | None:
    """Return that agents may have tampered with their grading, where scores say so."""
    suspected = sum(group.scores for group in report.provenance.isolation if group.is_suspected)
    if not suspected:
        return None
    return (
        f"Tampering is suspected in {counted(suspected, 'scored trial')}: Provenance lists the "
        "facts, which are `ext.isolation` of the scores."
    )


def outcomes(report: Report) -> str:
    run = report.run
    text = (
        f"Of {counted(run.scheduled, 'slot')}, {count(run.committed)} are committed and "
        f"{count(run.scored)} of these have a score that counts. The pass rate is the share "
        "that passed of the trials that were graded, however their agent ended, and of those "
        "without a verdict whose agent failed or broke its grader. Trials that failed for another "
        "reason (the environment, the setup command, or a grader that worked for no other trial of "
        "the task) are left out of it."
    )
    if any(v.pass_rate is not None and v.pass_rate.low is not None for v in report.variants):
        text += (
            f" Intervals ({confidence_level(report.confidence)}) are exact ones, and take into "
            "account which trials are of the same task."
        )
    return text


def tasks(report: Report) -> str:
    return (
        f"{counted(len(report.tasks), 'task')} by "
        f"{counted(len(report.variants), 'variant')}. A task is as hard as the share of its "
        "trials that did not pass, over all variants."
    )


def no_hard_tasks(report: Report) -> str:
    """Return why the list of the hardest tasks is empty."""
    if any(variant.pass_rate for variant in report.variants):
        return "Every trial passed."
    return "No trial passed or failed, so no task can be called hard."


def no_flaky_tasks(report: Report) -> str:
    """Return why the list of flaky tasks is empty."""
    if all(cell.counted < 2 for task in report.tasks for cell in task.cells):
        return "No task has two replications that count with a variant: none can be called flaky."
    return "With no variant did a task pass in some replications and not in others."


def times(report: Report) -> str:
    sums = [variant.trial.sum for variant in report.time.variants if variant.trial is not None]
    text = f"Trials took {duration(sum(sums))} in all." if sums else "No trial was run."
    if report.time.wall_ms is not None:
        text += f" The run was created and finished within {duration(report.time.wall_ms)}."
    if sums:
        text += (
            " In the first chart, the line goes from the shortest trial to the longest, the bar is "
            "the middle half, and the mark the median."
        )
    return text


def logs(report: Report, listed: int, packed: PackedLogs, requested: LogSelection) -> str:
    """Return which trials the page lists, and whose logs it holds."""
    committed, packed_trials = report.run.committed, counted(len(packed.islands), "trial")
    packed_content = f"The file holds logs and patches of {packed_trials}"
    content = {
        LogSelection.NONE: "The file holds no logs",
        LogSelection.FAILED: f"{packed_content} that did not pass",
        LogSelection.ALL: packed_content,
    }[requested]
    text = counted(committed, "committed slot")
    if listed < committed:
        text += f", of which {count(listed)} fit into the list, errors and failures first"
    shown = "its details" if requested is LogSelection.NONE else "it"
    text += f". {content}; choose one to see {shown}."
    if packed.left_out:
        text += (
            f" The logs of {counted(packed.left_out, 'more trial')} did not fit into it: "
            "`labledger show` prints them, and a larger --max-size includes them."
        )
    return text


def verified(report: Report) -> str:
    """Return what was verified of the run's rows, and the result."""
    verification = report.provenance.verification
    # Without a run, the command verifies all of them.
    run = "" if report.runs else f" {report.provenance.grading.run_id}"
    command = f"`labledger verify{run}`"
    commits = counted(verification.commits, "commit")
    changed = (
        f"The ledger was changed after the run: {counted(verification.findings, 'finding')} in"
    )
    if verification.extent == "chain":
        if verification.clean:
            return (
                f"When this report was written, the chain of {commits} was intact: the digest of "
                "each includes that of the one before it. The records themselves were not "
                f"verified; {command} and `labledger report --verify` verify them."
            )
        return f"{changed} the chain of {commits}. {command} lists them and verifies the records."
    rows = f"{commits} and {counted(verification.artifacts, 'artifact')}"
    if verification.clean:
        runs = "these runs" if report.runs else "this run"
        return f"The ledger was verified: {rows} of {runs} are as they were committed."
    return f"{changed} {rows}. {command} lists them."


# -- comparisons in a report


def variants_by_side(report: Report) -> dict[str, VariantOutcomes]:
    """Return the outcomes of the report's own run by RUN:VARIANT."""
    return {f"{report.run.run_id}:{v.variant_id}": v for v in report.variants}


def comparison_facts(
    compared: Compared, document: Comparison, variants: Mapping[str, VariantOutcomes]
) -> Iterator[str]:
    """Yield what else there is to know about a comparison; for `variants` see `other_rates`."""
    if document.is_rate:
        yield from other_rates(compared, variants)
    for fact in facts(compared, document):
        if fact.in_report:
            yield fact.sentence


def other_rates(compared: Compared, variants: Mapping[str, VariantOutcomes]) -> Iterator[str]:
    """Yield why the rate of a side is not the one under Outcomes, where they differ.

    `variants` are the outcomes of the report's own run, by side.
    """
    for side, name in zip((compared.a, compared.b), compared.labels, strict=True):
        variant = variants.get(str(side.side))
        if variant is None or variant.pass_rate is None or side.mean is None:
            continue
        paired, overall = (
            comparison_sentences.rate(side.mean),
            comparison_sentences.rate(variant.pass_rate),
        )
        if paired != overall:
            yield (
                f"The pass rate of {name} is {paired} in this comparison, over the "
                f"{counted(compared.tasks, 'task')} that both sides have, each with the same "
                f"weight; it is {overall} over all its trials, each with the same weight, as under "
                "Outcomes."
            )
