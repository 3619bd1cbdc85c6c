"""Commands that read the ledger: runs, status, show, logs, query, export.

They work while runs write. With `--json` they print the library's documents unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.output.console import exact_stdout, out, out_json, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger import Grading, JsonObject, RunInfo


def register(app: typer.Typer) -> None:
    for command in (runs, status, show, logs, query, export):
        app.command()(command)


def runs(
    experiment: Annotated[
        str | None, typer.Option(help="Only runs of experiments whose id matches this glob.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only runs that are running, interrupted or completed."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only runs created since 2026-11-22, 2026-11-22T14:00, 7d or 12h."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="created, changed or slots: the largest first. run, experiment or status: by name",
        ),
    ] = "created",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """List the runs in the ledger, by default the newest first."""
    from labledger import RunSelection, open_ledger
    from labledger.cli.output.run_outcome import grading_lines

    selection = RunSelection(
        experiment, arguments.parse_run_status(status), arguments.parse_since(since), tag
    )
    with open_ledger(lab_dir=lab_dir) as ledger:
        all_runs = ledger.runs(selection, sort=sort, reverse=reverse)
        all_gradings = [ledger.gradings(run.run_id) for run in all_runs]
        causes = [_stop_cause(run, lost=ledger.is_lost(run)) for run in all_runs]
    if json:
        out_json(
            [
                {**run.as_json(), **_own_grading(run.run_id, gradings)}
                for run, gradings in zip(all_runs, all_gradings, strict=True)
            ]
        )
        return
    columns = ["run_id", "experiment", "status", "committed", "slots", "created"]
    rows = [
        [
            run.run_id,
            run.experiment_id,
            run.status.value,
            run.next_schedule_idx,
            run.total_slots,
            run.created_at,
        ]
        for run in all_runs
    ]
    if any(causes):
        columns.insert(3, "stopped by")
        for row, cause in zip(rows, causes, strict=True):
            row.insert(3, cause)
    table(columns, rows, right=("committed", "slots"))
    for run, gradings in zip(all_runs, all_gradings, strict=True):
        if gradings and run.run_id == gradings[0].run_id:
            for line in grading_lines(run.run_id, gradings):
                out(line)


def _stop_cause(run: RunInfo, *, lost: bool) -> str:
    """Return why a run stopped, in a word; empty if it is complete or in progress."""
    if run.stop is not None:
        return run.stop.cause
    return "lost" if lost else ""


def _own_grading(run_id: str, gradings: Sequence[Grading]) -> JsonObject:
    """Return the keys for `--json` that describe a run as a grading; none if it is not one."""
    own = next((grading for grading in gradings if grading.run_id == run_id), None)
    if own is None:
        return {}
    return {"root_id": own.root_id, "generation": own.generation, "counts": own.counts}


def status(
    run_id: arguments.RunId,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Show the display of a run that another process runs."),
    ] = False,
) -> None:
    """Show a run's progress, its owner and what it spent of its budget."""
    if watch:
        _watch(run_id, lab_dir, as_json=json)
        if json:
            return
    from labledger import open_ledger
    from labledger.cli.output.run_outcome import print_status

    with open_ledger(lab_dir=lab_dir) as ledger:
        state = ledger.state(run_id)
    if json:
        out_json(state.as_json())
    else:
        print_status(state, lab_dir)


def _watch(run_id: str, lab_dir: Path | None, *, as_json: bool) -> None:
    """Show a run's progress until nobody runs it any more."""
    from labledger import open_ledger
    from labledger.cli.output.run_display import watcher

    with open_ledger(lab_dir=lab_dir) as ledger, watcher(as_json=as_json, quiet=False) as display:
        for state in ledger.watch(run_id):
            display.show(state)


def show(
    run_id: arguments.RunId,
    schedule_idx: Annotated[int, typer.Argument(help="The slot's number in the schedule.")],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
    full: Annotated[bool, typer.Option("--full", help="Print logs and the patch in full.")] = False,
) -> None:
    """Show one trial.

    Prints its phases, times, exit statuses, prediction, score, metrics, logs and evidence.
    """
    from labledger import open_ledger
    from labledger.cli.output.trial_details import print_trial

    with open_ledger(lab_dir=lab_dir) as ledger:
        records = ledger.slot(run_id, schedule_idx)
        if json:
            out_json(records)
        else:
            print_trial(ledger, records, full=full)


def logs(
    run_id: arguments.RunId,
    schedule_idx: Annotated[int, typer.Argument(help="The slot's number in the schedule.")],
    phase: Annotated[
        list[str] | None,
        typer.Option(help="setup, agent, grader or events; repeatable. By default the phases."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the trial has been collected.")
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Print the output of one trial, also while it runs."""
    from labledger import open_ledger
    from labledger.cli.output.trial_details import print_logs

    with open_ledger(lab_dir=lab_dir) as ledger:
        pieces = ledger.logs(run_id, schedule_idx, phase or [], follow=follow)
        if not print_logs(pieces, as_json=json):
            say(f"slot {schedule_idx} of {run_id} has no such output (yet)")


def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT statement, or a view's name for all of its rows.",
            autocompletion=arguments.complete_view,
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the statement from a file.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="NAME=VALUE for a :NAME in the statement; repeatable."),
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="For runs that were graded again, use the newest complete grading up to this one; "
            "by default the newest.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show what was committed at this time: a date, a local time, or an age such as "
            "7d.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str, typer.Option(help="table, json, jsonl, csv or parquet.")
    ] = "table",
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write to this file, which appears whole or not at all."
        ),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="List the views and their columns, or those of one view."),
    ] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Query all runs with SQL.

    Reads only, and works while runs write. --schema lists the views.
    """
    from labledger import open_ledger
    from labledger.cli.output.query_results import (
        Query,
        parse_params,
        print_schema,
        read_statement,
        write_result,
    )

    if out_path is not None:
        arguments.require_folder("--out", out_path)
    with open_ledger(lab_dir=lab_dir) as ledger:
        if schema:
            print_schema(ledger.views(), sql)
            return
        params = parse_params(param or [])
        moment = arguments.parse_since(as_of, "--as-of")
        parsed = Query(read_statement(sql, file), params, generation, moment)
        write_result(ledger, parsed, format, out_path)


def export(
    run_id: arguments.RunId,
    what: Annotated[
        str,
        typer.Option(
            help="predictions, scores, evidence, trials, metrics, events, summary, chain, or all; "
            "with csv and parquet also attempts."
        ),
    ] = "all",
    format: Annotated[str, typer.Option(help="jsonl, csv or parquet.")] = "jsonl",  # noqa: A002
    out_path: Annotated[
        Path | None,
        typer.Option("--out", metavar="PATH", help="A file, a folder for all, or - for stdout."),
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Write a run's records for other tools, or rebuild its mirrors from the ledger.

    jsonl is byte for byte what the run wrote; without --out, the mirrors in the run folder are
    rebuilt. csv and parquet are tables with fixed columns; without --out, they are written into
    the folder `tables` of the run folder. RUN1+RUN2 writes the rows of several runs into one table.
    """
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        if out_path is not None and str(out_path) == "-":
            ledger.export_to(run_id, what, exact_stdout(), format=format)
            return
        for path in ledger.export(run_id, what, out_path, format=format):
            say(f"wrote {path}")
