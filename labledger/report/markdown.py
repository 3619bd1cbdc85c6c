"""Write a report as Markdown for a pull request: short, and with all foreign text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from labledger.compare import comparison_sentences
from labledger.compare.ranking import ranking_text
from labledger.report import outcome_tally, sentences, time_and_metrics
from labledger.report.report_document import Report
from labledger.text.figures import DASH, confidence_level, count, rounded, usd
from labledger.text.words import model_labels

_MAX_HARDEST = 10
"""The largest number of hardest tasks that are listed."""

Rows = Sequence[Sequence[str]]


def render(report: Report) -> str:
    """Return the Markdown of a report."""
    blocks = _blocks(report.with_plain_text())
    return "".join(f"{block}\n\n" if block else "\n" for block in blocks).removesuffix("\n")


def _blocks(report: Report) -> Iterator[str]:
    """Yield paragraphs, tables and lists, between which there are blank lines."""
    yield f"## {_text(sentences.title(report))}"
    yield f"**{_text(report.headline)}**"
    notices = [
        *sentences.reruns(report),
        sentences.unfinished(report),
        sentences.tampering(report),
        *report.missing,
    ]
    for notice in filter(None, notices):
        yield f"> {_text(notice)}"
    yield from _outcomes(report)
    yield from _differences(report)
    yield from _errors(report)
    yield from _hardest(report)
    yield from _metrics(report)
    yield from _models(report)
    runs = [(part.run, part.provenance) for part in report.parts]
    for run, origin in runs:
        if replay := sentences.replay(origin):
            yield _text(f"Run {run.run_id} is a replay: {replay}.")
        if grading := sentences.grading(origin):
            yield _text(
                f"The numbers{f' of {run.run_id}' if report.runs else ''} are from {grading}."
            )
        if extended := sentences.extensions(run):
            yield _text(f"Run {run.run_id} was extended after it was started: {extended}.")
    yield _text(sentences.verified(report))
    for run, origin in runs:
        yield (
            f"Run {_code(run.run_id)}, experiment digest {_code(origin.experiment_digest)}, "
            f"chain digest {_code(origin.chain_head)}, "
            f"grader digest {_code(origin.grading.grader_digest or 'not written')}, "
            f"labledger {_text(origin.labledger_version)}."
        )


def _outcomes(report: Report) -> Iterator[str]:
    columns = ("variant", "scheduled", "scored", "pass", "fail", "missing", "error")
    rows = [
        (
            _code(variant.variant_id),
            *map(count, (variant.scheduled, variant.scored, *variant.verdicts.values())),
            count(variant.agent_failed),
            comparison_sentences.rate(variant.pass_rate),
            comparison_sentences.rate_bounds(variant.pass_rate),
        )
        for variant in report.variants
    ]
    more = ("failed, no verdict", "pass rate", confidence_level(report.confidence))
    yield _table((*columns, *more), rows)


def _differences(report: Report) -> Iterator[str]:
    rows = [
        (
            f"{_code(compared.labels[1])} against {_code(compared.labels[0])}",
            comparison_sentences.VERDICTS[compared.decision.verdict],
            comparison_sentences.signed_amount(compared.difference, document),
            comparison_sentences.bounds(compared.difference, document, signed=True),
            comparison_sentences.decisive_p(compared.test, document),
            str(compared.tasks),
        )
        for document in report.comparisons
        for compared in document.comparisons
    ]
    for ranking in filter(None, map(ranking_text, report.comparisons)):
        named = [(_code(row[0]), *map(_text, row[1:])) for row in ranking.rows]
        yield _table(("variant", *ranking.headings[1:]), named)
        yield _list(ranking.facts)
    if rows:
        interval = confidence_level(report.confidence)
        p = comparison_sentences.p_heading(report.comparisons)
        yield _table(("compared", "decision", _difference(report), interval, p, "tasks"), rows)
        yield _text(comparison_sentences.method(report.comparisons))
        yield _list(_other_rates(report))


def _difference(report: Report) -> str:
    """Return the heading of the column of differences."""
    others = {d.metric for d in report.comparisons if not d.is_rate}
    return " ".join(["difference", *(_code(metric) for metric in others)])


def _other_rates(report: Report) -> Iterator[str]:
    variants = sentences.variants_by_side(report)
    for document in report.comparisons:
        for compared in document.comparisons if document.is_rate else ():
            yield from sentences.other_rates(compared, variants)


def _errors(report: Report) -> Iterator[str]:
    rows = [
        (
            _code(group.status),
            _code(group.reason) if group.reason else DASH,
            count(group.count),
            ", ".join(_text(f"trial {idx}") for idx in group.examples),
        )
        for group in report.errors
    ]
    if rows:
        yield _table(("did not complete", "reason", "trials", "for example"), rows)


def _hardest(report: Report) -> Iterator[str]:
    hardest = outcome_tally.hardest(report.tasks)
    rows = [
        (_code(task.task_id), *(f"{cell.passed}/{cell.counted}" for cell in task.cells))
        for task in hardest[:_MAX_HARDEST]
    ]
    is_cut = len(hardest) > _MAX_HARDEST
    more = f", the first {_MAX_HARDEST} of {count(len(hardest))}" if is_cut else ""
    columns = ("task", *(_code(v.variant_id) for v in report.variants))
    yield from _details(f"The hardest tasks{more}", columns, rows)


def _metrics(report: Report) -> Iterator[str]:
    rows = [
        (
            _code(metric.metric_id),
            _code(variant.variant_id),
            rounded(variant.sum if time_and_metrics.adds_up(metric.metric_id) else None),
            rounded(variant.mean),
            count(variant.unknown),
        )
        for metric in report.metrics
        for variant in metric.variants
    ]
    columns = ("metric", "variant", "total", "mean a trial", "unknown")
    yield from _details("Tokens, cost and other metrics", columns, rows)


def _models(report: Report) -> Iterator[str]:
    labels = model_labels([(use.provider, use.model) for use in report.models])
    rows = [
        (
            *(_code(use.variant_id), _code(label)),
            *(count(use.calls), rounded(use.tokens_in), rounded(use.tokens_out)),
            usd(use.cost_usd, 4),
            *map(count, (use.cost_unknown, use.refused, use.failed)),
            rounded(use.waited_s),
        )
        for use, label in zip(report.models, labels, strict=True)
    ]
    yield from _explained(sentences.MODEL_COLUMNS, rows, sentences.MODELS)
    rows = [
        (
            *(_code(claim.variant_id), _code(claim.metric_id)),
            *(count(claim.trials), rounded(claim.counted), rounded(claim.claimed)),
            *map(count, (claim.differing, claim.uncounted)),
        )
        for claim in report.claims
    ]
    yield from _explained(sentences.CLAIM_COLUMNS, rows, sentences.CLAIMS)


def _details(summary: str, columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yield a table that the reader can open; nothing if it has no rows."""
    if rows:
        yield f"<details><summary>{summary}</summary>"
        yield _table(columns, rows)
        yield "</details>"


def _explained(columns: Sequence[str], rows: Rows, text: str) -> Iterator[str]:
    """Yield a table and a text that explains it; nothing if the table has no rows."""
    if rows:
        yield _table(columns, rows)
        yield _text(text)


def _table(columns: Sequence[str], rows: Rows) -> str:
    numeric = [all(row[n][:1] in "0123456789+-–<" for row in rows) for n in range(len(columns))]
    marks = ("---:" if right else "---" for right in numeric)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, marks, *rows))


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_text(text)}" for text in texts)


def _code(text: str) -> str:
    """Return text as inline code in which Markdown, HTML and mentions have no effect.

    The code is on one line and can be used in a table.
    """
    text = " ".join(text.split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", "\\|")


def _text(text: str) -> str:
    """Return a sentence in which Markdown, HTML, mentions and links have no effect."""
    text = re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
    return re.sub(
        r"@(?=\w)|(?<=\w)://|(?<=www)\.", lambda match: f"{match[0][0]}\u200b{match[0][1:]}", text
    )
