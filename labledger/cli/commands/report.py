"""`labledger report`: a run as one page for anybody, or as Markdown for a pull request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from labledger.api import InvalidInput, Problem
from labledger.cli.options import arguments
from labledger.text.phrases import counted

_PAGE = Path("report.html")


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    run_id: arguments.RunId,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write, or - for stdout; without it report.html, and stdout for "
            "--markdown and --json.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown for a pull request instead of the page.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The facts, as report_v1.")] = False,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIDES",
            help="Another run to compare this one with (RUN or RUN:VARIANT), or two variants such "
            "as 'A B'; repeatable. Without it, the baseline with every treatment.",
        ),
    ] = None,
    logs: Annotated[
        Literal["none", "failed", "all"],
        typer.Option(
            help="Whose logs and patches the page holds; failed: of all that did not pass."
        ),
    ] = "failed",
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="About how large the page may be; 10m where not given."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Recompute every digest of the run, as `labledger verify` does; without it, only "
            "the chain of its commits is checked.",
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of intervals and decisions.")] = 0.95,
    estimand: Annotated[
        str,
        typer.Option(
            help="What comparisons are about. tasks: tasks like these; suite: these very tasks, "
            "whose replications are the sample."
        ),
    ] = "tasks",
    lab_dir: arguments.LabDir = None,
) -> None:
    """Report a run: one file that works offline.

    Outcomes with intervals, paired differences, tasks, time, cost, errors, trials with their logs,
    and where all of it comes from. An unfinished run is reported as such. Of a run that was graded
    again, RUN.g1, RUN.g2, … are its gradings; RUN is what counts.
    """
    from labledger.api import Estimand, Logs, ReportOptions, open_ledger
    from labledger.cli.output.console import exact_stdout, say

    if markdown and json:
        problem = Problem("--json", "cannot be given with --markdown; ask for one of them")
        raise InvalidInput("the options of the report", [problem])
    options = ReportOptions(
        compare=tuple(compare or ()),
        confidence=confidence,
        estimand=Estimand.named(estimand),
        logs=Logs(logs),
        verify=verify,
    )
    if max_size is not None:
        options = replace(options, max_bytes=arguments.size("--max-size", max_size))
    form = "markdown" if markdown else "json" if json else "html"
    path = out_path or (_PAGE if form == "html" else Path("-"))
    arguments.require_folder("--out", path)
    with open_ledger(lab_dir=lab_dir) as ledger:
        if str(path) == "-":
            exact_stdout().write(ledger.rendered_report(run_id, form, options))
        else:
            size = ledger.write_report(run_id, path, form, options)
            say(f"wrote {path} ({counted(size, 'byte')})")
