"""`labledger report`: writes a report of a run as an HTML page, Markdown or JSON.

A file appears whole or not at all; `-` is stdout.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from labledger.cli import arguments
from labledger.errors import InvalidInput, Problem
from labledger.text.words import counted

_DEFAULT_PAGE = Path("report.html")


def report(
    run_id: Annotated[
        str,
        typer.Argument(
            help="A run's id, as `labledger runs` lists it, or RUN1+RUN2 for several runs as one.",
            autocompletion=arguments.complete_run_id,
        ),
    ],
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write, or - for stdout; by default report.html, and stdout for "
            "--markdown and --json.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write Markdown for a pull request.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write the facts as JSON (report_v1).")
    ] = False,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIDES",
            help="Another run to compare this one with (RUN or RUN:VARIANT), or two variants such "
            "as 'A B'; repeatable. By default the baseline with every treatment.",
        ),
    ] = None,
    all_pairs: Annotated[
        bool,
        typer.Option(
            "--all-pairs", help="Compare every pair of variants, and rank them in tie groups."
        ),
    ] = False,
    logs: Annotated[
        Literal["none", "failed", "all"],
        typer.Option(
            help="The trials whose logs and patches the page contains; failed: all but passed ones."
        ),
    ] = "failed",
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The approximate size limit of the page; by default 10m."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Recompute every digest of the run, as `labledger verify` does; by default only "
            "the digests that link its saved trials are checked.",
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(help="The level of intervals and decisions.")] = 0.95,
    estimand: Annotated[
        str,
        typer.Option(
            help="The target of comparisons. tasks: all tasks like these; suite: exactly these "
            "tasks, with their replications as the sample."
        ),
    ] = "tasks",
    equivalent_within: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Say for each comparison whether its sides are shown to be equivalent within X.",
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="The metric to compare, as for `labledger compare`.")
    ] = "pass_rate",
    lower_is_better: arguments.LowerIsBetter = None,
    errors: Annotated[
        str,
        typer.Option(help="How comparisons count trials without a verdict; see `compare`."),
    ] = "as-failures",
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="The field of a task's row that groups dependent tasks."
        ),
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Report a run as one file that works offline.

    The report shows outcomes with intervals, paired differences, tasks, time, cost, errors, trials
    with their logs, and provenance. It says if the run is unfinished. RUN means the current grading
    of the run; RUN.g1, RUN.g2, … name its gradings.
    """
    from labledger import ReportOptions, open_ledger
    from labledger.cli.console import exact_stdout, say
    from labledger.results import ErrorCounting, Estimand, LogSelection

    if markdown and json:
        problem = Problem("--json", "cannot be given with --markdown; ask for one of them")
        raise InvalidInput("the options of the report", [problem])
    options = ReportOptions(
        compare=tuple(compare or ()),
        all_pairs=all_pairs,
        confidence=confidence,
        estimand=Estimand.named(estimand),
        equivalent_within=equivalent_within,
        metric=metric,
        lower_is_better=lower_is_better,
        errors=ErrorCounting.named(errors),
        cluster=cluster,
        logs=LogSelection(logs),
        verify=verify,
    )
    if max_size is not None:
        options = replace(options, max_bytes=arguments.parse_size_option("--max-size", max_size))
    form = "markdown" if markdown else "json" if json else "html"
    path = out_path or (_DEFAULT_PAGE if form == "html" else Path("-"))
    with open_ledger(lab_dir=lab_dir) as ledger:
        if str(path) == "-":
            ledger.write_report(run_id, exact_stdout(), form, options)
        else:
            size = ledger.write_report(run_id, path, form, options)
            say(f"wrote {path} ({counted(size, 'byte')})")
