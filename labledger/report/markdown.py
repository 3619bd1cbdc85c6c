"""The report as Markdown, for a pull request: short, and nothing in it but what is meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labledger.records import JsonObject
from labledger.report import errors_and_flaky_tasks, figures, sentences, spending
from labledger.report.safe_text import plain_all

_RANKED = 10


def render(report: JsonObject) -> str:
    """The Markdown of a `report_v1`."""
    return "\n".join(_lines(plain_all(report))) + "\n"


def _lines(report: JsonObject) -> Iterator[str]:
    run = report["run"]
    yield f"## {_text(sentences.title(report))}"
    yield ""
    yield f"**{_text(report['headline'])}**"
    yield ""
    notices = [sentences.unfinished(report), sentences.tampering(report), *report["missing"]]
    for notice in filter(None, notices):
        yield f"> {_text(notice)}"
        yield ""
    yield from _outcomes(report)
    yield from _differences(report)
    yield from _errors(report)
    yield from _hardest(report)
    yield from _metrics(report)
    origin = report["provenance"]
    if graded := sentences.graded(report):
        yield _text(f"The numbers are from {graded}.")
        yield ""
    yield _text(sentences.verified(report))
    yield ""
    yield (
        f"Run {_code(run['run_id'])}, experiment digest {_code(origin['experiment_digest'])}, "
        f"chain digest {_code(origin['chain_head'])}, "
        f"grader digest {_code(origin['grading']['grader_digest'] or 'not written')}, "
        f"labledger {_text(origin['labledger_version'])}."
    )


def _outcomes(report: JsonObject) -> Iterator[str]:
    columns = ("variant", "scheduled", "scored", "pass", "fail", "missing", "error")
    rows = [
        (
            _code(one["variant_id"]),
            *map(figures.count, (one["scheduled"], one["scored"], *one["verdicts"].values())),
            figures.count(one["agent_failed"]),
            figures.rate(one["pass_rate"]),
            figures.bounds(one["pass_rate"]),
        )
        for one in report["variants"]
    ]
    more = ("agent failed", "pass rate", figures.level(report["confidence"]))
    yield from _table((*columns, *more), rows)


def _differences(report: JsonObject) -> Iterator[str]:
    rows = []
    for document in report["comparisons"]:
        for one in document["comparisons"]:
            a, b = sentences.labels(one)
            found = one["difference"]
            moved = (figures.points(found), figures.bounds(found, signed=True))
            word = sentences.VERDICTS[one["decision"]["verdict"]]
            title = f"{_code(b)} against {_code(a)}"
            rows.append((title, word, *moved, figures.p_value(one["test"]), str(one["tasks"])))
    if rows:
        interval = figures.level(report["confidence"])
        p = figures.p_name(report["comparisons"])
        yield from _table(("compared", "decision", "difference", interval, p, "tasks"), rows)
        yield _text(sentences.about_differences(report["comparisons"]))
        yield ""
        yield from _other_rates(report)


def _other_rates(report: JsonObject) -> Iterator[str]:
    """Why a rate of a comparison is another than that of the outcomes, where it is."""
    variants = sentences.variants_by_side(report)
    for document in report["comparisons"]:
        for one in document["comparisons"]:
            for told in sentences.other_rates(one, variants):
                yield f"- {_text(told)}"
    yield ""


def _errors(report: JsonObject) -> Iterator[str]:
    rows = [
        (
            _code(one["status"]),
            _code(one["reason"]) if one["reason"] else "–",
            figures.count(one["count"]),
            ", ".join(f"slot {idx}" for idx in one["examples"]),
        )
        for one in report["errors"]
    ]
    if rows:
        yield from _table(("did not complete", "reason", "slots", "for example"), rows)


def _hardest(report: JsonObject) -> Iterator[str]:
    found = errors_and_flaky_tasks.hardest(report["tasks"])
    rows = [
        (
            _code(task["task_id"]),
            *(f"{cell['passed']}/{cell['passed'] + cell['not_passed']}" for cell in task["cells"]),
        )
        for task in found[:_RANKED]
    ]
    if rows:
        more = f", the first {_RANKED} of {len(found):,}" if len(found) > _RANKED else ""
        yield f"<details><summary>The hardest tasks{more}</summary>"
        yield ""
        yield from _table(("task", *(_code(v["variant_id"]) for v in report["variants"])), rows)
        yield "</details>"
        yield ""


def _metrics(report: JsonObject) -> Iterator[str]:
    rows = [
        (
            _code(metric["metric_id"]),
            _code(one["variant_id"]),
            figures.figure(one["sum"] if spending.adds_up(metric["metric_id"]) else None),
            figures.figure(one["mean"]),
            figures.count(one["unknown"]),
        )
        for metric in report["metrics"]
        for one in metric["variants"]
    ]
    if rows:
        yield "<details><summary>Tokens, cost and other metrics</summary>"
        yield ""
        yield from _table(("metric", "variant", "total", "mean a trial", "unknown"), rows)
        yield "</details>"
        yield ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    numeric = [all(row[n][:1] in "0123456789+-–<" for row in rows) for n in range(len(columns))]
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---:' if right else '---' for right in numeric)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _code(text: str) -> str:
    """Text as code, in which nothing is Markdown, HTML or a mention; also inside a table."""
    text = " ".join(text.split()) or " "
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text}{room}{fence}".replace("|", "\\|")


def _text(text: str) -> str:
    """A sentence in which nothing is Markdown, HTML, a mention or a link."""
    text = re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
    return re.sub(
        r"@(?=\w)|(?<=\w)://|(?<=www)\.", lambda found: f"{found[0][0]}\u200b{found[0][1:]}", text
    )
