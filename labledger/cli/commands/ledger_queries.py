"""Commands that answer from the ledger: runs, status, show, query, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli.options import arguments, shell_completion
from labledger.cli.output.console import exact_stdout, out, out_json, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger.ledger.database.model import Grading, RunInfo
    from labledger.records import JsonObject


def register(app: typer.Typer) -> None:
    for command in (runs, status, show, query, export):
        app.command()(command)


def runs(lab_dir: arguments.LabDir = None, json: arguments.Json = False) -> None:
    """List every run in the ledger, the newest first."""
    from labledger.api.ledger import open_ledger
    from labledger.cli.output.run_outcome import grading_lines

    with open_ledger(lab_dir=lab_dir) as ledger:
        found = ledger.runs()
        gradings = [ledger.gradings(run.run_id) for run in found]
    if json:
        out_json(
            [
                {**run.as_json(), **_graded(run.run_id, of_run)}
                for run, of_run in zip(found, gradings, strict=True)
            ]
        )
        return
    causes = [_stopped_by(run) for run in found]
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
        for run in found
    ]
    if any(causes):
        columns.insert(3, "stopped by")
        for row, cause in zip(rows, causes, strict=True):
            row.insert(3, cause)
    table(columns, rows, right=("committed", "slots"))
    for run, of_run in zip(found, gradings, strict=True):
        if of_run and run.run_id == of_run[0].run_id:
            for line in grading_lines(run.run_id, of_run):
                out(line)


def _stopped_by(run: RunInfo) -> str:
    """Why a run is not going on, in a word; empty where it is complete, or goes on."""
    from labledger.cli.output.run_outcome import why_stopped

    if run.stop is not None:
        return run.stop.cause
    return "lost" if why_stopped(run) else ""


def _graded(run_id: str, gradings: Sequence[Grading]) -> JsonObject:
    """Which generation a run is, and of which run."""
    own = next((grading for grading in gradings if grading.run_id == run_id), None)
    if own is None:
        return {}
    return {"root_id": own.root_id, "generation": own.generation, "counts": own.counts}


def status(
    run_id: arguments.RunId, lab_dir: arguments.LabDir = None, json: arguments.Json = False
) -> None:
    """Show a run's progress, its owner and what it spent of its budget."""
    from labledger.api.ledger import open_ledger
    from labledger.cli.output.run_outcome import print_status

    with open_ledger(lab_dir=lab_dir) as ledger:
        run, counts = ledger.run(run_id), ledger.counts(run_id)
        begun, gradings = ledger.begun(run_id), ledger.gradings(run_id)
        spent = ledger.spent(run_id)
    if json:
        told = {
            "begun": begun,
            "variants": [count.as_json() for count in counts],
            "gradings": [grading.as_json() for grading in gradings],
            "spent": {kind: found.as_json() for kind, found in spent.items()},
        }
        out_json({**run.as_json(), **told})
    else:
        print_status(run, counts, begun, gradings, spent, lab_dir)


def show(
    run_id: arguments.RunId,
    schedule_idx: Annotated[int, typer.Argument(help="The slot's number in the schedule.")],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
    full: Annotated[bool, typer.Option("--full", help="Print logs and patch whole.")] = False,
) -> None:
    """Show one trial.

    Its phases, times, exit statuses, prediction, score, metrics, logs and evidence.
    """
    from labledger.api.ledger import open_ledger
    from labledger.cli.output.trial_details import print_trial

    with open_ledger(lab_dir=lab_dir) as ledger:
        records = ledger.slot(run_id, schedule_idx)
        if json:
            out_json(records)
        else:
            print_trial(ledger, records, full=full)


def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT statement, or a view's name for all of its rows.",
            autocompletion=shell_completion.views,
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
            help="Of runs that were graded again, the newest complete grading up to this one; "
            "without it, the newest.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str, typer.Option(help="table, json, jsonl, csv or parquet.")
    ] = "table",
    out_path: Annotated[
        Path | None,
        typer.Option("--out", help="Write to this file, which appears whole or not at all."),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="List the views and columns, or those of the view named."),
    ] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Ask SQL questions over all runs.

    Reads only, also while runs write; --schema lists the views.
    """
    from labledger.api.ledger import open_ledger
    from labledger.cli.output.query_results import (
        Question,
        answer,
        parse_params,
        print_schema,
        statement,
    )

    if out_path is not None:
        arguments.require_folder("--out", out_path)
    with open_ledger(lab_dir=lab_dir) as ledger:
        if schema:
            print_schema(ledger.views(), sql)
            return
        asked = Question(statement(sql, file), parse_params(param or []), generation)
        answer(ledger, asked, format, out_path)


def export(
    run_id: arguments.RunId,
    what: Annotated[
        str,
        typer.Option(
            help="predictions, scores, evidence, trials, metrics, events, summary, chain, or all; "
            "attempts too, as csv or parquet."
        ),
    ] = "all",
    format: Annotated[str, typer.Option(help="jsonl, csv or parquet.")] = "jsonl",  # noqa: A002
    out_path: Annotated[
        Path | None,
        typer.Option("--out", help="A file, a folder for all, or - for stdout."),
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Write a run's records for other tools, or rebuild its mirrors from the ledger.

    As jsonl, byte for byte what the run wrote; without --out, the run folder's own mirrors are
    rebuilt in place. As csv or parquet, tables with fixed columns; without --out, in the run
    folder's `tables`.
    """
    from labledger.api.ledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        if out_path is not None and str(out_path) == "-":
            ledger.export_to(run_id, what, exact_stdout(), format=format)
            return
        for path in ledger.export(run_id, what, out_path, format=format):
            say(f"wrote {path}")
