"""Two sides compared: paired, estimated, tested, decided, with what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from labledger.analysis import estimates, extra, paired_tests, rates, sides
from labledger.analysis.comparison import (
    Compared,
    Comparison,
    LeftOutCount,
    Sensitivity,
    SideGrading,
    TaskRow,
)
from labledger.analysis.decision import decide, judge_gates
from labledger.analysis.pairs import (
    Cell,
    Pair,
    Paired,
    Place,
    Side,
    pair,
    read_cells,
    require_metric,
)
from labledger.analysis.question import CompareOptions, Errors
from labledger.analysis.run_differences import warnings
from labledger.ledger.model import Graded
from labledger.ledger.reader import LedgerReader

Cells = Mapping[Place, Cell]


def compare(reader: LedgerReader, words: Sequence[str], options: CompareOptions) -> Comparison:
    """Answer `labledger compare WORDS`; see `sides.resolve` for the words.

    Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
    """
    options.check()
    extra.require()
    asked = sides.resolve(reader, words)
    wanted = {side for two in asked for side in two}
    runs = {side.run_id: reader.graded(side.run_id) for side in wanted}
    holders = {name: graded.run.run_id for name, graded in runs.items()}
    cells = read_cells(reader.path, wanted, holders, options.metric)
    if not options.is_rate:
        require_metric(reader.path, cells, holders, options.metric)
    found = [
        _told(
            _compared(a, b, pair(cells[a], cells[b], options), options, len(asked)),
            tuple(_sensitivities(cells[a], cells[b], options)),
            (runs[a.run_id], runs[b.run_id]),
        )
        for a, b in asked
    ]
    decided = [replace(one, decision=decide(one, options)) for one in _corrected(found)]
    return Comparison(
        metric=options.metric,
        lower_is_better=False if options.is_rate else options.lower_is_better,
        confidence=options.confidence,
        errors=options.errors.value,
        seed=options.seed,
        comparisons=tuple(decided),
        gates=tuple(judge_gates(decided, options)),
    )


def _told(
    compared: Compared, sensitivity: tuple[Sensitivity, ...], runs: tuple[Graded, Graded]
) -> Compared:
    """With what else is to be known: other ways to count, the graders, and what differs."""
    a, b = (SideGrading.of(graded) for graded in runs)
    return replace(
        compared,
        a=replace(compared.a, grading=a),
        b=replace(compared.b, grading=b),
        same_trials=compared.a.variant_id == compared.b.variant_id and a.run_id == b.run_id,
        sensitivity=sensitivity,
        warnings=warnings(*runs),
    )


def _compared(a: Side, b: Side, paired: Paired, options: CompareOptions, family: int) -> Compared:
    """One of `family` comparisons, from its pairs alone."""
    grouped = _by_task(paired)
    tasks = list(grouped.values())
    return Compared(
        a=estimates.side_report(a, [[p.a for p in pairs] for pairs in tasks], options),
        b=estimates.side_report(b, [[p.b for p in pairs] for pairs in tasks], options),
        tasks=len(tasks),
        pairs=len(paired.pairs),
        replications=max(map(len, tasks), default=0),
        counts=estimates.counts(tasks) if options.is_rate else None,
        difference=estimates.difference(tasks, options),
        test=estimates.significance(tasks, options) if tasks else None,
        effect=estimates.effect(tasks, options) if tasks else None,
        detectable=estimates.detectable(tasks, options, family) if tasks else None,
        left_out=_left_out(paired),
        by_task=tuple(_task_rows(paired, grouped)),
    )


def _corrected(found: list[Compared]) -> list[Compared]:
    """With p values corrected for their number, where there are several."""
    tests = [one.test for one in found if one.test is not None]
    if len(tests) < 2:
        return found
    corrected = iter(paired_tests.holm([test.p for test in tests]))
    return [
        one if one.test is None else replace(one, test=replace(one.test, p_holm=next(corrected)))
        for one in found
    ]


def _by_task(paired: Paired) -> dict[str, list[Pair]]:
    grouped: dict[str, list[Pair]] = {}
    for found in paired.pairs:
        grouped.setdefault(found.place.task_id, []).append(found)
    return grouped


def _left_out(paired: Paired) -> tuple[LeftOutCount, ...]:
    """The reasons, the most frequent first."""
    tally = Counter((left.side, left.reason) for left in paired.left_out)
    ranked = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LeftOutCount(side, reason, count) for (side, reason), count in ranked)


def _sensitivities(a: Cells, b: Cells, options: CompareOptions) -> Iterator[Sensitivity]:
    """The same pass rates with errors counted in the other ways."""
    if not options.is_rate:
        return
    for errors in Errors:
        if errors is not options.errors:
            other = replace(options, errors=errors)
            paired = pair(a, b, other)
            found = estimates.difference(list(_by_task(paired).values()), other)
            yield Sensitivity(errors.value, len(paired.pairs), found)


def _task_rows(paired: Paired, grouped: Mapping[str, list[Pair]]) -> Iterator[TaskRow]:
    reasons: dict[str, dict[str, None]] = {}
    for left in paired.left_out:
        reasons.setdefault(left.place.task_id, {})[f"{left.side}: {left.reason}"] = None
    for task_id in sorted(grouped.keys() | reasons.keys()):
        pairs = grouped.get(task_id, [])
        yield TaskRow(
            task_id,
            len(pairs),
            rates.mean([p.a for p in pairs]) if pairs else None,
            rates.mean([p.b for p in pairs]) if pairs else None,
            tuple(reasons.get(task_id, ())),
        )
