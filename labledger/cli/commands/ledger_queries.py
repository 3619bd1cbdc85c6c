"""Commands for the rows of the ledger: query and export. They work while runs write.

A table is limited to 1,000 rows; other formats are written by the library, row by row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from labledger.cli import arguments
from labledger.cli.console import exact_stdout, out, say, table
from labledger.errors import InvalidInput, Problem
from labledger.text.words import counted

if TYPE_CHECKING:
    from datetime import datetime

    from labledger import Ledger
    from labledger.results import ViewInfo


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
            help="For runs that were graded again, use the newest complete grading up to number "
            "N; by default the newest.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show only the trials that were saved at this time: a date, a local time, or an "
            "age such as 7d.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str, typer.Option(help="table, json, jsonl, csv or parquet.")
    ] = "table",
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write to this file, which appears whole or not at all; - for stdout.",
        ),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="List the columns of all views, or of one view."),
    ] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Query all runs with SQL.

    Reads only, and works while runs write. --schema lists the views.
    """
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        if schema:
            print_schema(ledger.views(), sql)
            return
        if out_path == Path("-"):
            out_path = None
        params = parse_params(param or [])
        moment = arguments.parse_since(as_of, "--as-of")
        statement = read_statement(sql, file)
        write_result(
            ledger, statement, params, format, out_path, generation=generation, as_of=moment
        )


def export(
    run_id: arguments.RunId,
    grading: arguments.GradingNumber = None,
    what: Annotated[
        str,
        typer.Option(
            help="predictions, scores, evidence, trials, metrics, events, model_calls, summary, "
            "chain, or all of these; trajectories, spans, inspect; with csv and parquet also "
            "attempts."
        ),
    ] = "all",
    format: Annotated[str, typer.Option(help="jsonl, csv or parquet.")] = "jsonl",  # noqa: A002
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="A file, a folder for all and for inspect, or - for stdout.",
        ),
    ] = None,
    send: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --what spans: send them to this endpoint by OTLP over HTTP.",
        ),
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Write a run's records for other tools, or rebuild its mirrors from the ledger.

    jsonl is byte for byte what the run wrote; csv and parquet are tables with fixed columns.
    The records come from the run's current grading, or from --grading N. Without --out, jsonl
    rebuilds the mirrors in the run folder, and csv and parquet go into its folder `tables`.
    RUN1+RUN2 writes the rows of several runs into one table.
    """
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        rebuilds = format == "jsonl" and out_path is None and send is None
        run_id = _exported_runs(ledger, run_id, grading, what, rebuilds=rebuilds)
        if send is not None:
            if what != "spans" or out_path is not None:
                problem = Problem("--send", "goes with --what spans alone, and without --out")
                raise InvalidInput("the export", [problem])
            say(f"sent {counted(ledger.send_spans(run_id, send), 'span')} to {send}")
            return
        if out_path is not None and str(out_path) == "-":
            ledger.export_to(run_id, what, exact_stdout(), format=format)
            return
        for path in ledger.export(run_id, what, out_path, format=format):
            say(f"wrote {path}")


_OF_AGENTS = frozenset({"model_calls", "trajectories", "spans"})
"""Kinds of records about agents only. They belong to the root run, not to a grading."""


def _exported_runs(
    ledger: Ledger, name: str, grading: int | None, what: str, *, rebuilds: bool
) -> str:
    """Return the runs whose records are exported for a name, and print which gradings they are.

    `rebuilds` is true if the export rebuilds mirrors. Each run has its own mirrors, so then a
    run's name means the run itself and not its current grading.
    """
    return "+".join(
        _exported_run(ledger, run_name, grading, what, rebuilds=rebuilds)
        for run_name in name.split("+")
    )


def _exported_run(
    ledger: Ledger, name: str, grading: int | None, what: str, *, rebuilds: bool
) -> str:
    from labledger.results import grading_name

    graded = ledger.graded(name, grading)
    scored_id, root_id = graded.run.run_id, graded.root_id
    gradings = ledger.gradings(root_id)
    if len(gradings) == 1 or (grading is None and name == root_id and what in _OF_AGENTS):
        return root_id
    title = grading_name(graded.grading, gradings)
    if rebuilds and grading is None and name == root_id:
        if scored_id != root_id:
            say(f"the run folder of {root_id} holds grading 1, the run's own")
            say(f"`labledger export {scored_id}` writes {title}")
        return root_id
    say(f"records of {title}; --grading N writes another grading")
    return scored_id


_MAX_TABLE_ROWS = 1000
_MAX_STATEMENT = 1 << 20
"""The largest file with a statement that is read. A device may have no end."""


def read_statement(sql: str | None, file: Path | None) -> str:
    """Return the statement, given as an argument or in a file. Raises `InvalidInput`."""
    if (sql is None) == (file is None):
        problem = Problem("query", "give one statement, as an argument or with --file")
        raise InvalidInput("the query", [problem])
    if file is None:
        return sql or ""
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_STATEMENT + 1)
        if len(content) > _MAX_STATEMENT:
            raise InvalidInput("the query", [Problem(str(file), "is larger than 1 MiB")])
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("the query", [Problem(str(file), reason)]) from None


def parse_params(words: list[str]) -> dict[str, Any]:
    """Return the values of `NAME=VALUE` words; a JSON number is a number. Raises `InvalidInput`."""
    params: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            problem = Problem("--param", f"found {word!r}; expected NAME=VALUE")
            raise InvalidInput("the query", [problem])
        try:
            number = json.loads(value)
        except json.JSONDecodeError:
            number = None
        # Other JSON, such as `true` or a list, is taken as text.
        params[name] = number if type(number) in (int, float) else value
    return params


def write_result(
    ledger: Ledger,
    sql: str,
    params: Mapping[str, Any],
    form: str,
    path: Path | None,
    *,
    generation: int | None = None,
    as_of: datetime | None = None,
) -> None:
    """Run a query, and print its rows on stdout or write them to a file. Raises `InvalidInput`."""
    if form == "parquet" and path is None:
        problem = Problem("--format", "parquet needs a file: name it with --out FILE")
        raise InvalidInput("the query", [problem])
    if form == "table" and path is None:
        columns, rows = ledger.rows(sql, params, generation, as_of=as_of)
        with closing(rows):
            _print_table(columns, rows)
        return
    out_stream = exact_stdout() if path is None else path
    writer = _write_table if form == "table" else form
    count = ledger.write_query(sql, out_stream, writer, params, generation, as_of=as_of)
    if path is not None:
        say(f"wrote {counted(count, 'row')} to {path}" if form == "parquet" else f"wrote {path}")


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: BinaryIO) -> int:
    text = TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    with redirect_stdout(text):
        row_count = _print_table(columns, rows)
    text.detach()
    return row_count


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Print the first rows as a table, and return their number."""
    stream = iter(rows)
    first_rows = list(islice(stream, _MAX_TABLE_ROWS))
    numeric = [
        name
        for i, name in enumerate(columns)
        if first_rows and all(isinstance(row[i], int | float | None) for row in first_rows)
    ]
    table(columns, first_rows, right=numeric)
    if next(stream, None) is not None:
        say(f"only {_MAX_TABLE_ROWS} rows are shown; --format csv or jsonl prints all")
    return len(first_rows)


def print_schema(views: Sequence[ViewInfo], view_name: str | None = None) -> None:
    """Print each view, or the named one, with its columns and their meanings.

    Raises `InvalidInput`.
    """
    names = [view.name for view in views]
    if view_name is not None and view_name not in names:
        message = f"there is no view {view_name!r}; the views are {', '.join(names)}"
        raise InvalidInput("the query", [Problem("--schema", message)])
    for view in views:
        if view_name in (None, view.name):
            out(f"{view.name}: {view.comment}")
            width = max(map(len, view.columns))
            for column, meaning in zip(view.columns, view.meanings, strict=True):
                out(f"    {column.ljust(width)}  {meaning}")
