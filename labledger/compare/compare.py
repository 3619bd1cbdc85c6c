"""Sides compared: brought together by task, estimated, tested, decided, with what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from labledger.compare import estimates, optional_libraries, paired_means, rates, sides
from labledger.compare.comparison_document import (
    Compared,
    Comparison,
    LeftOutCount,
    Sensitivity,
    SideGrading,
    Significance,
    TaskRow,
)
from labledger.compare.decision import decide, judge_gates
from labledger.compare.estimates import Figures
from labledger.compare.options import CompareOptions, Errors, Estimand
from labledger.compare.pairs import (
    Paired,
    Side,
    Trials,
    counts_alike,
    pair,
    read_clusters,
    read_trials,
    require_metric,
)
from labledger.compare.rates import Estimate
from labledger.compare.run_differences import warnings
from labledger.errors import InvalidInput, Problem
from labledger.ledger.database.model import Graded
from labledger.ledger.reader import LedgerReader

_NAMED = 3
"""How many tasks without a cluster a message names."""

_SKEWED = (
    "the tasks' differences are skewed, and so few tasks do not make up for it: the interval may "
    "miss the mean of tasks like these more often than its confidence says"
)


def compare(reader: LedgerReader, words: Sequence[str], options: CompareOptions) -> Comparison:
    """Answer `labledger compare WORDS`; see `sides.resolve` for the words.

    Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
    """
    return compare_family(reader, [words], options)[0]


def compare_family(
    reader: LedgerReader, asked: Sequence[Sequence[str]], options: CompareOptions
) -> list[Comparison]:
    """Answer several questions as one family: they share the correction for how many they are.

    Each is the words of a `labledger compare`. Raises as `compare` does.
    """
    options.check()
    optional_libraries.require()
    found = [_read(reader, sides.resolve(reader, words), options) for words in asked]
    family = sum(bool(one.paired.task_ids) for question in found for one in question.pairs)
    return [_answer(question, options, family) for question in found]


@dataclass(frozen=True, slots=True)
class _Two:
    """Two sides and what each has of which task."""

    a: Side
    b: Side
    trials: tuple[Trials, Trials]
    paired: Paired


@dataclass(frozen=True, slots=True)
class _Question:
    """What one `labledger compare` asks, with all that the ledger has about it."""

    runs: Mapping[str, Graded]
    pairs: tuple[_Two, ...]
    cluster: str | None
    """The field whose values are the sample; None for tasks."""
    clusters: Mapping[str, str | None]
    """The cluster of each task."""

    def figures(self, paired: Paired, options: CompareOptions, family: int) -> Figures:
        clusters = None
        if self.cluster is not None:
            clusters = [str(self.clusters[task_id]) for task_id in paired.task_ids]
        return Figures.of(paired, clusters, options, family)


def _read(
    reader: LedgerReader, asked: Sequence[tuple[Side, Side]], options: CompareOptions
) -> _Question:
    wanted = {side for two in asked for side in two}
    runs = {side.run_id: reader.graded(side.run_id) for side in sorted(wanted)}
    holders = {name: graded.run.run_id for name, graded in runs.items()}
    metric = None if options.is_rate else options.metric
    found = read_trials(reader.path, wanted, holders, metric)
    if metric is not None:
        require_metric(reader.path, found, holders, metric)
    pairs = tuple(
        _Two(a, b, (found[a], found[b]), pair(found[a], found[b], options)) for a, b in asked
    )
    field = _cluster_field(runs, options)
    clusters = {} if field is None else read_clusters(reader.path, holders, field)
    if field is not None:
        _require_clusters(pairs, clusters, field)
    return _Question(runs, pairs, field, clusters)


def _cluster_field(runs: Mapping[str, Graded], options: CompareOptions) -> str | None:
    """The field that the options name, or all runs alike; None for tasks as given."""
    if options.estimand is Estimand.SUITE:
        return None
    named = _named_clusters(runs)
    return options.cluster or (next(iter(named)) if len(named) == 1 else None)


def _named_clusters(runs: Mapping[str, Graded]) -> set[str | None]:
    return {(graded.run.resolved.get("dataset") or {}).get("cluster") for graded in runs.values()}


def _require_clusters(
    pairs: Sequence[_Two], clusters: Mapping[str, str | None], field: str
) -> None:
    compared = {task_id for two in pairs for trials in two.trials for task_id in trials}
    lacking = sorted(task_id for task_id in compared if clusters[task_id] is None)
    if lacking:
        more = f" and {len(lacking) - _NAMED:,} more" if len(lacking) > _NAMED else ""
        message = f"no text or number at {field} in task {', '.join(lacking[:_NAMED])}{more}"
        hint = "name a field that every task has, such as task.repo or /task/repo"
        raise InvalidInput("the clusters of tasks", [Problem("--cluster", message, hint=hint)])


def _answer(question: _Question, options: CompareOptions, family: int) -> Comparison:
    decided = []
    for two in question.pairs:
        found = _compared(two, question.figures(two.paired, options, family), family)
        runs = question.runs[two.a.run_id], question.runs[two.b.run_id]
        others = tuple(_sensitivities(question, two, found.difference, options, family))
        told = _told(found, runs, others)
        if question.cluster is None and options.estimand is Estimand.TASKS:
            told = replace(told, warnings=(*told.warnings, *_cluster_warnings(question.runs)))
        decided.append(replace(told, decision=decide(told, options, family)))
    return Comparison(
        metric=options.metric,
        lower_is_better=False if options.is_rate else options.lower_is_better,
        confidence=options.confidence,
        errors=options.errors.value,
        seed=options.seed,
        comparisons=tuple(decided),
        gates=tuple(judge_gates(decided, options, family)),
        estimand=options.estimand.value,
        cluster=question.cluster,
        family=max(1, family),
    )


def _cluster_warnings(runs: Mapping[str, Graded]) -> Iterator[str]:
    if len(_named_clusters(runs)) > 1:
        yield (
            "the runs' experiments name different clusters of tasks, so that each task was taken "
            "as independent of the others; --cluster names one for both"
        )


def _compared(two: _Two, figures: Figures, family: int) -> Compared:
    """One of `family` comparisons, from its tasks' trials alone."""
    paired, options = two.paired, figures.options
    found = estimates.inference(figures)
    test = None
    if found is not None:
        adjusted = min(1.0, found.p * family) if family > 1 else None
        test = Significance(found.test, found.p, adjusted)
    skewed = (
        not options.is_rate
        and options.estimand is Estimand.TASKS
        and paired_means.is_skewed(figures.differences)
    )
    return Compared(
        a=estimates.side_report(two.a, paired.a, figures),
        b=estimates.side_report(two.b, paired.b, figures),
        tasks=len(paired.task_ids),
        pairs=paired.pairs,
        replications=max(
            (min(len(a), len(b)) for a, b in zip(paired.a, paired.b, strict=True)), default=0
        ),
        counts=estimates.counts(figures),
        difference=found.estimate if found else estimates.difference(figures),
        test=test,
        effect=estimates.effect(figures) if paired.task_ids else None,
        detectable=estimates.detectable(figures) if paired.task_ids else None,
        left_out=_left_out(paired),
        by_task=tuple(_task_rows(paired)),
        clusters=None if figures.clusters is None else len(set(figures.clusters)),
        warnings=(_SKEWED,) if skewed else (),
    )


def _told(
    compared: Compared, runs: tuple[Graded, Graded], sensitivity: tuple[Sensitivity, ...]
) -> Compared:
    """With what else is to be known: other ways to count, the graders, and what differs."""
    a, b = (SideGrading.of(graded) for graded in runs)
    return replace(
        compared,
        a=replace(compared.a, grading=a),
        b=replace(compared.b, grading=b),
        same_trials=compared.a.variant_id == compared.b.variant_id and a.run_id == b.run_id,
        sensitivity=sensitivity,
        warnings=(*warnings(*runs), *compared.warnings),
    )


def _left_out(paired: Paired) -> tuple[LeftOutCount, ...]:
    """The reasons, the most frequent first."""
    tally = Counter((left.side, left.reason) for left in paired.left_out)
    ranked = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LeftOutCount(side, reason, count) for (side, reason), count in ranked)


def _sensitivities(
    question: _Question,
    two: _Two,
    difference: Estimate | None,
    options: CompareOptions,
    family: int,
) -> Iterator[Sensitivity]:
    """The same pass rates with errors counted in the other ways; `difference` is as asked."""
    if not options.is_rate:
        return
    for errors in Errors:
        if errors is not options.errors:
            other = replace(options, errors=errors)
            if counts_alike(two.paired, options, other):
                yield Sensitivity(errors.value, two.paired.pairs, difference)
                continue
            paired = pair(*two.trials, other)
            found = estimates.difference(question.figures(paired, other, family))
            yield Sensitivity(errors.value, paired.pairs, found)


def _task_rows(paired: Paired) -> Iterator[TaskRow]:
    reasons: dict[str, dict[str, None]] = {}
    for left in paired.left_out:
        reasons.setdefault(left.task_id, {})[f"{left.side}: {left.reason}"] = None
    means = zip(rates.task_means(paired.a), rates.task_means(paired.b), strict=True)
    sizes = (min(len(a), len(b)) for a, b in zip(paired.a, paired.b, strict=True))
    rows = {
        task_id: TaskRow(task_id, pairs, a, b, tuple(reasons.pop(task_id, ())))
        for task_id, (a, b), pairs in zip(paired.task_ids, means, sizes, strict=True)
    }
    if not reasons:
        yield from rows.values()
        return
    rows |= {
        task_id: TaskRow(task_id, 0, None, None, tuple(told)) for task_id, told in reasons.items()
    }
    for task_id in sorted(rows):
        yield rows[task_id]
