"""The page: one HTML file that holds all it needs and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from labledger import optional_libraries
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.report import errors_and_flaky_tasks, figures, sentences, spending
from labledger.report.ledger_queries import Asked
from labledger.report.logs import Packed, badness_of, pack
from labledger.report.options import ReportOptions
from labledger.report.page import charts
from labledger.report.page.chart_drawing import Chart
from labledger.report.safe_text import plain_all

_FOLDER = Path(__file__).resolve().parent
_MOST_ROWS = 2000
"""More tasks than this are in the chart alone."""
MOST_TRIALS = 20_000
"""More trials than this are not listed, however large the page may be."""
_RANKED = 12
_COLUMNS = (
    *("schedule_idx", "variant_id", "task_id", "repl_idx", "status", "reason", "message"),
    *("verdict", "counted", "metric_name", "metric_value", "attempt", "duration_ms", "agent_ms"),
)
_CSS = {
    charts.PASS: "passed",
    charts.SOME: "some",
    charts.FAIL: "failed",
    charts.UNSCORED: "unscored",
    charts.OPEN: "open",
}


def render(reader: LedgerReader, report: JsonObject, options: ReportOptions) -> bytes:
    """The page of a `report_v1`, in UTF-8. Raises `ExtraMissing`."""
    optional_libraries.require_page()
    grading = report["provenance"]["grading"]
    committed = report["run"]["committed"]
    asked = Asked(reader.path, grading["root_id"], grading["run_id"], committed)
    report = plain_all(
        {**report, "comparisons": [_without_tasks(d) for d in report["comparisons"]]}
    )
    listed = fitting(report["trials"], options.max_bytes // 2)
    view = _view(report, listed)
    room = options.max_bytes - len(_filled(view, Packed({}, 0), options))
    return _filled(view, pack(reader, asked, listed, options.logs, room), options)


def _without_tasks(document: JsonObject) -> JsonObject:
    """A `comparison_v1` without its row for every task, which the page does not show."""
    return {**document, "comparisons": [{**one, "by_task": []} for one in document["comparisons"]]}


def _filled(view: JsonObject, packed: Packed, options: ReportOptions) -> bytes:
    text = sentences.logs(view["report"], view["listed"], packed, options.logs)
    pieces = _template().generate(**view, islands=packed.islands, logs_text=text)
    page = BytesIO()  # Its value is not copied; a join would hold the page twice.
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
        "trusted": Markup,  # Of our own making: style, script and drawings.
        "count": figures.count,
        "rate": figures.rate,
        "bounds": figures.bounds,
        "figure": figures.figure,
        "took": figures.took,
        "moment": figures.moment,
        "kind": charts.kind_of,
        "css": _CSS.__getitem__,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "shortened": _shortened,
        "adds_up": spending.adds_up,
    }
    return environment.get_template("page.html.j2")


def _view(report: JsonObject, listed: Sequence[JsonObject]) -> JsonObject:
    """All that the template asks for."""
    style, script = ((_FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    provenance = report["provenance"]
    names = {v["primary_metric"]["name"] for v in report["variants"] if v["primary_metric"]}
    return {
        **report,
        "report": report,
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "title": sentences.title(report),
        "grading_text": sentences.generation(report),
        "unfinished": sentences.unfinished(report),
        "tampering": sentences.tampering(report),
        "figures": list(_figures(report)),
        "sections": list(_sections(report)),
        "level": figures.level(report["confidence"]),
        "metric_name": names.pop() if len(names) == 1 else None,
        "outcomes_text": sentences.outcomes(report),
        "time_text": sentences.times(report),
        "cost_text": sentences.METRICS,
        "worth": spending.cost_and_quality(report["variants"], report["metrics"]),
        "charts": _charts(report),
        "differences_text": sentences.about_differences(report["comparisons"]),
        "comparisons": [_comparison(one, report) for one in report["comparisons"]],
        **_tasks(report),
        "verification": provenance["verification"],
        "verified": sentences.verified(report),
        "facts": list(_facts(report)),
        "isolation": provenance["isolation"][:_RANKED],
        "data": _data(report, listed),
        "listed": len(listed),
    }


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _figures(report: JsonObject) -> Iterator[tuple[str, str, str]]:
    run = report["run"]
    yield (
        "slots committed",
        figures.count(run["committed"]),
        f"of {figures.count(run['scheduled'])}",
    )
    unscored = run["committed"] - run["scored"]
    yield "scored", figures.count(run["scored"]), f"{figures.count(unscored)} without a score"
    if report["time"]["wall_ms"] is not None:
        yield "from start to end", figures.took(report["time"]["wall_ms"]), ""
    for metric in report["metrics"]:
        if metric["metric_id"] == "cost_usd":
            known = [v["sum"] for v in metric["variants"] if v["sum"] is not None]
            unknown = sum(v["unknown"] for v in metric["variants"])
            note = f"{figures.counted(unknown, 'trial')} unknown" if unknown else ""
            yield "cost", f"${sum(known):,.2f}", note


def _sections(report: JsonObject) -> Iterator[tuple[str, str]]:
    yield "outcomes", "Outcomes"
    if report["comparisons"]:
        yield "differences", "Paired differences"
    yield from (("tasks", "Tasks"), ("time", "Time"), ("cost", "Tokens and cost"))
    yield from (("errors", "Errors"), ("trials", "Trials"), ("provenance", "Provenance"))


def _charts(report: JsonObject) -> JsonObject:
    variants, ran = report["variants"], [v for v in report["time"]["variants"] if v["trial"]]
    return {
        "rates": charts.rates(variants),
        "verdicts": charts.verdicts(variants),
        "heat": charts.heat(charts.overview_order(report["tasks"]), variants)
        if report["tasks"]
        else None,
        "durations": charts.durations(ran) if ran else None,
        "phases": charts.phases(ran) if ran else None,
        "worth": charts.cost_against_quality(
            spending.cost_and_quality(report["variants"], report["metrics"])
        ),
    }


def _comparison(document: JsonObject, report: JsonObject) -> JsonObject:
    ones = document["comparisons"]
    variants = sentences.variants_by_side(report)
    return {
        "chart": _differences(document) if any(one["difference"] for one in ones) else None,
        "p": figures.p_name([document]),
        "rows": [_compared(one, variants) for one in ones],
    }


def _differences(document: JsonObject) -> Chart:
    """Named by B alone, where A is the same throughout."""
    pairs = [sentences.labels(one) for one in document["comparisons"]]
    against = {a for a, _ in pairs}
    if len(against) == 1 and len({b for _, b in pairs}) == len(pairs):
        title = f"points more or less than {against.pop()}"
        return charts.differences(document, [b for _, b in pairs], title)
    return charts.differences(document, [f"{b} less {a}" for a, b in pairs], "points, B − A")


def _compared(one: JsonObject, variants: JsonObject) -> JsonObject:
    a, b = sentences.labels(one)
    return {
        "a": a,
        "b": b,
        "mean_a": figures.rate(one["a"]["mean"]),
        "mean_b": figures.rate(one["b"]["mean"]),
        "difference": figures.points(one["difference"]),
        "bounds": figures.bounds(one["difference"], signed=True),
        "p": figures.p_value(one["test"]),
        "tasks": one["tasks"],
        "verdict": one["decision"]["verdict"],
        "word": sentences.VERDICTS[one["decision"]["verdict"]],
        "text": one["decision"]["text"],
        "facts": list(sentences.comparison_facts(one, variants)),
    }


def _tasks(report: JsonObject) -> JsonObject:
    tasks = report["tasks"]
    places = {task["task_id"]: place for place, task in enumerate(tasks)}
    rows = [
        {
            **task,
            "place": places[task["task_id"]],
            "share": errors_and_flaky_tasks.share(task),
            "spread": errors_and_flaky_tasks.spread(task),
            "flaky": errors_and_flaky_tasks.is_flaky(task),
            "unscored": any(not cell["scored"] and cell["scheduled"] for cell in task["cells"]),
            "scored": errors_and_flaky_tasks.rated(task),
            "passed": sum(cell["passed"] for cell in task["cells"]),
        }
        for task in errors_and_flaky_tasks.hardest_first(tasks)[:_MOST_ROWS]
    ]
    failed = errors_and_flaky_tasks.hardest(tasks)
    flaky = errors_and_flaky_tasks.flaky(tasks)
    return {
        "tasks": rows,
        "tasks_cut": len(tasks) if len(tasks) > _MOST_ROWS else 0,
        "tasks_text": sentences.tasks(report),
        "hardest": rows[: min(_RANKED, len(failed))],
        "hardest_none": sentences.no_hard(report),
        "hardest_more": max(0, len(failed) - _RANKED),
        "flaky": [{**t, "says": flaky_cells(t, report["variants"])} for t in flaky[:_RANKED]],
        "flaky_more": max(0, len(flaky) - _RANKED),
        "flaky_none": sentences.no_flaky(report),
    }


def flaky_cells(task: JsonObject, variants: Sequence[JsonObject]) -> str:
    """Such as ``base 1 of 2, treat 1 of 3``: the variants with which a task is flaky."""
    return ", ".join(
        f"{variant['variant_id']} {cell['passed']} of {cell['passed'] + cell['not_passed']}"
        for variant, cell in zip(variants, task["cells"], strict=True)
        if cell["passed"] and cell["not_passed"]
    )


def _facts(report: JsonObject) -> Iterator[tuple[str, str]]:
    run, origin = report["run"], report["provenance"]
    yield "run", run["run_id"]
    yield "experiment", run["experiment_id"]
    yield "experiment digest", origin["experiment_digest"]
    if graded := sentences.graded(report):
        yield "grading", graded
    yield "grader digest", origin["grading"]["grader_digest"] or "not written"
    yield "created", run["created_at"]
    yield "ended", run["ended_at"] or "not yet"
    for name in ("benchmark", "evaluator"):
        if origin[name]:
            yield name, ", ".join(f"{key} {value}" for key, value in origin[name].items())
    for image in origin["images"]:
        yield f"image {image['ref']}", image["id"]
    yield "run by", f"labledger {origin['labledger_version']}"
    yield "ledger", origin["ledger_id"]
    yield "chain digest", origin["chain_head"]


def _data(report: JsonObject, listed: Sequence[JsonObject]) -> JsonObject:
    """What the script needs: the trials, as rows of columns."""
    return {
        "run_id": report["provenance"]["grading"]["run_id"],
        "columns": _COLUMNS,
        "trials": [_row(trial) for trial in listed],
    }


def fitting(trials: Sequence[JsonObject], room: int) -> list[JsonObject]:
    """The trials whose rows fit into `room` bytes, worst first, in schedule order."""
    found = []
    for trial in sorted(trials, key=badness_of):
        room -= len(json.dumps(_row(trial))) + 2
        if room < 0:
            break
        found.append(trial)
    return sorted(found, key=lambda trial: trial["schedule_idx"])


def _row(trial: JsonObject) -> list[Any]:
    return [_shortened(trial[name]) if name == "message" else trial[name] for name in _COLUMNS]


def _shortened(text: str | None) -> str | None:
    """A message of a trial, without what would fill the page."""
    return text if text is None or len(text) <= 300 else f"{text[:299]}…"
