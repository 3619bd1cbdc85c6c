"""Render a report as one HTML file that needs no other file and uses no network.

Hidden characters are removed from all text, and the template escapes it. The page's content
security policy allows only the page's own style and script, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from labledger import resources
from labledger.compare import comparison_sentences
from labledger.compare.comparison_document import Comparison
from labledger.compare.ranking import ranking_text
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.model_usage import ModelUse
from labledger.report import charts, outcome_tally, sentences, time_and_metrics
from labledger.report.chart_drawing import Chart, draw
from labledger.report.logs import LogSelection, PackedLogs, pack
from labledger.report.report_document import (
    Provenance,
    Report,
    ReportedRun,
    TaskOutcomes,
    VariantOutcomes,
)
from labledger.report.report_queries import TRIAL_FIELDS, ReportedTrial
from labledger.report.time_and_metrics import VariantCost
from labledger.text.figures import (
    confidence_level,
    count,
    date_and_time,
    duration,
    rounded,
    usd,
    usd_range,
    whole_number,
)
from labledger.text.words import counted, model_labels

_FOLDER = Path(__file__).resolve().parent
_MAX_TABLE_TASKS = 2000
"""The largest number of tasks in the table. The chart shows all tasks."""
MAX_LISTED_TRIALS = 20_000
"""The largest number of trials that are listed, however large the page may be."""
_MAX_LIST_ITEMS = 12
"""The largest number of hardest tasks, flaky tasks and isolation facts that are listed."""
_MAX_CHART_PAIRS = 60
"""The largest number of comparisons in a chart. A longer chart would not be useful."""
_CSS = {
    charts.PASS: "passed",
    charts.SOME: "some",
    charts.FAIL: "failed",
    charts.UNSCORED: "unscored",
    charts.OPEN: "open",
}
"""The CSS class of a cell of the heat map, by its outcome."""

View = dict[str, Any]
"""Values for the template, by name."""


def render(reader: LedgerReader, report: Report, logs: LogSelection, max_bytes: int) -> bytes:
    """Return the page of a report, in UTF-8, of about `max_bytes` at most.

    Raises `ExtraMissing`.
    """
    resources.require_page()
    commits = report.commits(reader.path)
    report = report.with_plain_text()
    listed = trials_that_fit(report.trials, max_bytes // 2)
    view = _view(report, listed)
    # The size of the page without logs shows how many bytes remain for them.
    remaining = max_bytes - len(_fill_template(view, report, PackedLogs({}, 0), logs))
    packed = pack(reader, commits, listed, logs, remaining)
    return _fill_template(view, report, packed, logs)


def _fill_template(view: View, report: Report, packed: PackedLogs, logs: LogSelection) -> bytes:
    text = sentences.logs(report, view["listed"], packed, logs)
    pieces = _template().generate(**view, islands=packed.islands, logs_text=text)
    page = BytesIO()  # Joining the pieces would hold the page in memory twice.
    for piece in pieces:
        page.write(piece.encode())
    return page.getvalue()


def _template() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "trusted": Markup,  # Style, script and drawings, which are our own.
        "count": count,
        "rate": comparison_sentences.rate,
        "bounds": comparison_sentences.rate_bounds,
        "rounded": rounded,
        "usd": usd,
        "usd_range": usd_range,
        "whole": whole_number,
        "duration": duration,
        "moment": date_and_time,
        "kind": charts.cell_outcome,
        "css": _CSS.__getitem__,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "shortened": _shortened,
        "with_labels": _with_labels,
        "adds_up": time_and_metrics.adds_up,
    }
    return environment.get_template("page.html.j2")


def _with_labels(uses: Sequence[ModelUse]) -> Iterator[tuple[ModelUse, str]]:
    """Pair the usage of each model with the model's label."""
    return zip(uses, model_labels([(use.provider, use.model) for use in uses]), strict=True)


def _view(report: Report, listed: Sequence[ReportedTrial]) -> View:
    """Return everything that the template uses except the logs."""
    palette, style, script = (
        (_FOLDER / name).read_text("utf-8") for name in ("palette.css", "page.css", "page.js")
    )
    style = palette + style
    names = {v.primary_metric.name for v in report.variants if v.primary_metric is not None}
    worth = time_and_metrics.cost_and_quality(report.variants, report.metrics)
    shown = _charts(report, worth) | dict(enumerate(map(_differences, report.comparisons)))
    drawings = draw(shown)
    return {
        "report": report,
        "sentences": sentences,
        "comparison_sentences": comparison_sentences,
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "figures": list(_figures(report)),
        "level": confidence_level(report.confidence),
        "metric_name": names.pop() if len(names) == 1 else None,
        "worth": worth,
        "charts": drawings,
        "comparisons": [
            (document, ranking_text(document), drawings[number])
            for number, document in enumerate(report.comparisons)
        ],
        **_tasks(report),
        "facts": list(_facts(report)),
        "isolation": report.provenance.isolation[:_MAX_LIST_ITEMS],
        "data": _data(report, listed),
        "listed": len(listed),
    }


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the figures at the top of the page: name, value and note."""
    run = report.run
    yield "trials saved", count(run.committed), f"of {count(run.scheduled)}"
    yield "scored", count(run.scored), f"{count(run.committed - run.scored)} without a score"
    if report.time.wall_ms is not None:
        yield "from start to end", duration(report.time.wall_ms), ""
    for metric in report.metrics:
        if metric.metric_id == "cost_usd":
            costs = [variant.sum for variant in metric.variants if variant.sum is not None]
            unknown = sum(variant.unknown for variant in metric.variants)
            note = f"{counted(unknown, 'trial')} unknown" if unknown else ""
            yield "cost", usd(sum(costs)), note


def _charts(report: Report, worth: Sequence[VariantCost]) -> dict[str | int, Chart | None]:
    variants, tasks = report.variants, charts.overview_order(report.tasks)
    ran = [variant for variant in report.time.variants if variant.trial is not None]
    return {
        "rates": charts.rates(variants),
        "verdicts": charts.verdicts(variants),
        "heat": charts.heat(tasks, variants) if tasks else None,
        "durations": charts.durations(ran) if ran else None,
        "phases": charts.phases(ran) if ran else None,
        "worth": charts.cost_against_quality(worth),
    }


# -- comparisons


def _differences(document: Comparison) -> Chart | None:
    """Return the chart of differences. Labels name B alone if A is the same in all comparisons."""
    differences = [compared.difference for compared in document.comparisons]
    if not document.is_rate or not any(differences) or len(differences) > _MAX_CHART_PAIRS:
        return None
    pairs = [compared.labels for compared in document.comparisons]
    baselines = {a for a, _ in pairs}
    if len(baselines) == 1 and len({b for _, b in pairs}) == len(pairs):
        title = f"points more or less than {baselines.pop()}"
        return charts.differences(document, [b for _, b in pairs], title)
    return charts.differences(document, [f"{b} less {a}" for a, b in pairs], "points, B − A")


# -- tasks


def _tasks(report: Report) -> View:
    tasks = report.tasks
    position = {task.task_id: number for number, task in enumerate(tasks)}
    ranked = outcome_tally.hardest_first(tasks)[:_MAX_TABLE_TASKS]
    hardest, flaky = outcome_tally.hardest(tasks), outcome_tally.flaky(tasks)
    return {
        "tasks": [(position[task.task_id], task) for task in ranked],
        "tasks_total": len(tasks) if len(tasks) > _MAX_TABLE_TASKS else 0,
        "hardest": hardest[:_MAX_LIST_ITEMS],
        "hardest_more": max(0, len(hardest) - _MAX_LIST_ITEMS),
        "flaky": [
            (task.task_id, flaky_cells(task, report.variants)) for task in flaky[:_MAX_LIST_ITEMS]
        ],
        "flaky_more": max(0, len(flaky) - _MAX_LIST_ITEMS),
    }


def flaky_cells(task: TaskOutcomes, variants: Sequence[VariantOutcomes]) -> str:
    """Return the variants with which a task is flaky, such as ``base 1 of 2, treat 1 of 3``."""
    return ", ".join(
        f"{variant.variant_id} {cell.passed} of {cell.counted}"
        for variant, cell in zip(variants, task.cells, strict=True)
        if cell.is_flaky
    )


# -- provenance and trials


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    for part in report.parts:
        yield from _run_facts(part.run, part.provenance)
    yield "ledger", report.provenance.ledger_id


def _run_facts(run: ReportedRun, origin: Provenance) -> Iterator[tuple[str, str]]:
    yield "run", run.run_id
    yield "experiment", run.experiment_id
    yield "experiment digest", origin.experiment_digest
    if replay := sentences.replay(origin):
        yield "replay", replay
    if grading := sentences.grading(origin):
        yield "grading", grading
    yield "grader digest", origin.grading.grader_digest or "not written"
    yield "created", run.created_at
    if extended := sentences.extensions(run):
        yield "extended", extended
    yield "ended", run.ended_at or "not yet"
    for name, values in (("benchmark", origin.benchmark), ("evaluator", origin.evaluator)):
        if values:
            yield name, ", ".join(f"{key} {value}" for key, value in values.items())
    for image in origin.images:
        yield f"image {image.ref}", image.id
    yield "run by", f"labledger {origin.labledger_version}"
    yield "chain digest", origin.chain_head


def _data(report: Report, listed: Sequence[ReportedTrial]) -> View:
    """Return the data for the page's script: the trials, as rows of columns."""
    return {
        "run_id": report.provenance.grading.run_id,
        "columns": (*TRIAL_FIELDS, "run_id") if report.runs else TRIAL_FIELDS,
        "trials": [_row(trial) for trial in listed],
    }


def trials_that_fit(trials: Sequence[ReportedTrial], max_bytes: int) -> list[ReportedTrial]:
    """Return the worst trials, as many as fit into `max_bytes` as rows, in the original order."""
    listed = []
    for index in sorted(range(len(trials)), key=lambda index: trials[index].badness):
        max_bytes -= len(json.dumps(_row(trials[index]))) + 2
        if max_bytes < 0:
            break
        listed.append(index)
    return [trials[index] for index in sorted(listed)]


def _row(trial: ReportedTrial) -> list[Any]:
    return list((trial.as_json() | {"message": _shortened(trial.message)}).values())


def _shortened(text: str | None) -> str | None:
    """Return a trial's message, truncated to 300 characters."""
    return text if text is None or len(text) <= 300 else f"{text[:299]}…"
