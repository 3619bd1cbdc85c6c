"""Write a stored run's records again: mirrors, chain and summary, or tables for other tools.

In: a reader and a target. Out: files that appear whole or not at all, or bytes on a stream. Rows
are streamed. `jsonl` is byte for byte what the run wrote. Tables (CSV, Parquet) have the columns
and types of `ledger.committed_rows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from labledger.errors import InvalidInput, Parameter, Problem, RunNotFound
from labledger.export import mirrors, summary, trajectories
from labledger.export.data_frames import require_parquet
from labledger.files.output_files import make_folder_for, open_output, replace_output
from labledger.ledger.database.connection import batched
from labledger.ledger.reader import LedgerReader
from labledger.ledger.reading import committed_rows
from labledger.ledger.reading.committed_rows import Column, ColumnType
from labledger.records.identity import RUN_SEPARATOR
from labledger.resources import require_inspect, require_otel

if TYPE_CHECKING:
    import pyarrow


TABULAR = ("csv", "parquet")
"""The formats of tables; `jsonl`, the other format of an export, has whole records."""

FOLDER = Path("tables")
"""The folder of the tables in a run folder, unless another path is given."""

_ROWS_PER_BATCH = 200
_MAX_GROUP_ROWS, _MAX_GROUP_BYTES = 100_000, 32 << 20
"""A row group of a Parquet file ends at this number of rows, or of bytes in memory."""

_UNQUOTED = re.compile(r'[^",\r\n\s](?:[^",\r\n]*[^",\r\n\s])?')
"""Text that needs no quotes in CSV: not empty, and without a space at either end."""

Row = tuple[Any, ...]


def write_table(
    reader: LedgerReader, run_ids: Sequence[str], kind: str, form: str, out: Path | BinaryIO
) -> None:
    """Write one of `committed_rows.TABLES` as `form`, into a stream or, atomically, into a file.

    The rows of the runs follow each other. Memory does not grow with them. Raises `ExtraMissing` if
    Parquet cannot be written.
    """
    if form == "parquet":
        require_parquet()
    columns = committed_rows.TABLES[kind].columns
    sources = (_source_of(reader, run_id, kind) for run_id in run_ids)
    stored = chain.from_iterable(reader.flat_rows(run_id, kind) for run_id in sources)
    rows = _with_booleans(columns, stored)
    run_id = RUN_SEPARATOR.join(run_ids)
    # Parquet ends with offsets into the file, which a pipe does not have.
    with open_output(out, needs_seek=form != "csv") as handle:
        if form == "csv":
            _write_csv(columns, rows, handle)
        else:
            _write_parquet(run_id, kind, rows, handle)


def _source_of(reader: LedgerReader, run_id: str, kind: str) -> str:
    """Return the run that has the rows of a kind.

    For the model calls of a regrading, this is its root: no agent runs in a regrading.
    """
    regrades = reader.run(run_id).regrades if kind == "model_calls" else None
    return run_id if regrades is None else str(regrades["run_id"])


def _with_booleans(columns: Sequence[Column], rows: Iterator[Row]) -> Iterator[Row]:
    """Return the rows with 0 and 1 as booleans, which SQLite does not have."""
    indexes = {n for n, column in enumerate(columns) if column.type is ColumnType.BOOLEAN}
    if not indexes:
        return rows
    return (
        tuple(
            bool(value) if n in indexes and value is not None else value
            for n, value in enumerate(row)
        )
        for row in rows
    )


# -- CSV


def _write_csv(columns: Sequence[Column], rows: Iterator[Row], out: BinaryIO) -> None:
    """Write CSV by RFC 4180 in UTF-8. Null is an empty field; empty text is two quotes."""
    out.write(_csv_line([column.name for column in columns]).encode())
    out.writelines(
        "".join(map(_csv_line, batch)).encode() for batch in batched(rows, _ROWS_PER_BATCH)
    )


def _csv_line(values: Sequence[Any]) -> str:
    return ",".join(_csv_field(value) for value in values) + "\r\n"


def _csv_field(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"' if _UNQUOTED.fullmatch(value) is None else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else repr(value)


# -- Parquet


def _write_parquet(run_id: str, kind: str, rows: Iterator[Row], out: BinaryIO) -> None:
    """Write Parquet, with one schema for every file of a kind, whatever the values."""
    import pyarrow
    from pyarrow import parquet

    schema = parquet_schema(run_id, kind)
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[pyarrow.RecordBatch] = []
        size = 0
        for batch in _record_batches(pyarrow, schema, rows):
            group.append(batch)
            size += batch.nbytes
            if size >= _MAX_GROUP_BYTES or len(group) * _ROWS_PER_BATCH >= _MAX_GROUP_ROWS:
                writer.write_table(pyarrow.Table.from_batches(group, schema))
                group, size = [], 0
        if group:
            writer.write_table(pyarrow.Table.from_batches(group, schema))


def parquet_schema(run_id: str, kind: str) -> pyarrow.Schema:
    """Return the schema of a kind's file: its columns, and run, kind and format as metadata."""
    import pyarrow

    types = {
        ColumnType.TEXT: pyarrow.string(),
        ColumnType.INTEGER: pyarrow.int64(),
        ColumnType.REAL: pyarrow.float64(),
        ColumnType.BOOLEAN: pyarrow.bool_(),
    }
    metadata = {
        "labledger.format": committed_rows.FORMAT,
        "labledger.kind": kind,
        "labledger.run_id": run_id,
    }
    return pyarrow.schema(
        [(column.name, types[column.type]) for column in committed_rows.TABLES[kind].columns],
        metadata,
    )


def _record_batches(
    arrow: Any, schema: pyarrow.Schema, rows: Iterator[Row]
) -> Iterator[pyarrow.RecordBatch]:
    for batch in batched(rows, _ROWS_PER_BATCH):
        columns = zip(*batch, strict=True)
        arrays = [
            arrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        yield arrow.RecordBatch.from_arrays(arrays, schema=schema)


def run_ids_of(reader: LedgerReader, name: str, form: str) -> tuple[str, ...]:
    """Return the run, or the several runs ``RUN1+RUN2``, whose records are to be written.

    Raises `RunNotFound`, and `InvalidInput` for several runs as `jsonl`, or one named twice.
    """
    run_ids = tuple(map(partial(_run_id_of, reader), name.split(RUN_SEPARATOR)))
    if len(set(run_ids)) < len(run_ids):
        raise InvalidInput("the export", [Problem(name, "a run is named twice")])
    if len(run_ids) > 1 and form == "jsonl":
        message = "jsonl holds the records of one run"
        hint = "export each run, or several as tables: `format='csv'` or `format='parquet'`"
        raise InvalidInput("the export", [Problem(name, message, hint=hint)])
    return run_ids


def _run_id_of(reader: LedgerReader, name: str) -> str:
    """Return the run that a name stands for: a run, or the run of the grading ``RUN.gN``."""
    try:
        return reader.run(name).run_id
    except RunNotFound:
        return reader.graded(name).run.run_id


def write_records(
    reader: LedgerReader,
    run_ids: Sequence[str],
    folder: Path | None,
    what: str,
    out: Path | None,
    form: str,
) -> list[Path]:
    """Write one kind of record, or `all`, to files, and return them.

    Without `out`, writes into the run folder `folder`; several runs have no such folder. Raises
    `InvalidInput`, and `ExtraMissing` if Parquet cannot be written.
    """
    if folder is None and out is None:
        message = "several runs have no run folder in common; expected a file or a folder"
        raise InvalidInput("the export", [Problem(Parameter("out"), message)])
    if out is not None:
        make_folder_for(out)
    folder, paths = folder or Path(), _paths(form)
    if what != "all":
        _require_known(what, form, "all")
        path = out or folder / paths[what]
        if what == "inspect":
            return _write_inspect_logs(reader, run_ids[0], path)
        if form == "jsonl":
            with replace_output(path) as handle:
                stream_records(reader, run_ids, what, handle, form)
        else:
            write_table(reader, run_ids, what, form, path)
        return [path]
    if form != "jsonl":
        target = out or folder / FOLDER
        files = [target / path.name for path in paths.values()]
        for kind, file in zip(paths, files, strict=True):
            write_table(reader, run_ids, kind, form, file)
        return files
    [run_id] = run_ids
    folder = out or folder
    files = mirrors.rebuild_all(reader, run_id, folder)
    mirrors.write_chain(reader, run_id, folder / mirrors.CHAIN_PATH)
    run_summary = summary.build_summary(reader, run_id)
    return [*files, folder / mirrors.CHAIN_PATH, summary.write_summary(folder, run_summary)]


def stream_records(
    reader: LedgerReader, run_ids: Sequence[str], what: str, stream: BinaryIO, form: str
) -> None:
    """Write one kind of record, the chain or the summary to a stream. Raises as `write_records`."""
    _require_known(what, form)
    if form != "jsonl":
        write_table(reader, run_ids, what, form, stream)
        return
    [run_id] = run_ids
    if what == "inspect":
        message = "logs of Inspect are several files; expected a folder"
        raise InvalidInput("the export", [Problem(Parameter("out"), message)])
    if what in mirrors.ALL_PATHS:
        mirrors.rebuild(reader, run_id, what, stream)
    else:
        _, write = _BESIDE_MIRRORS[what]
        write(reader, run_id, stream)


def _write_summary(reader: LedgerReader, run_id: str, stream: BinaryIO) -> None:
    stream.write(summary.summary_bytes(summary.build_summary(reader, run_id)))


def _write_spans(reader: LedgerReader, run_id: str, stream: BinaryIO) -> None:
    require_otel()
    # Imported late: it needs the libraries of the extra `otel`.
    from labledger.export import otel_spans

    otel_spans.write_spans(reader, run_id, stream)


def _write_inspect_logs(reader: LedgerReader, run_id: str, folder: Path) -> list[Path]:
    require_inspect()
    # Imported late: it needs the library of the extra `inspect`.
    from labledger.export import inspect_logs

    return inspect_logs.write_logs(reader, run_id, folder)


_BESIDE_MIRRORS: dict[str, tuple[Path, Callable[[LedgerReader, str, BinaryIO], None]]] = {
    "summary": (summary.PATH, _write_summary),
    "chain": (mirrors.CHAIN_PATH, mirrors.write_chain),
    "trajectories": (trajectories.PATH, trajectories.write_lines),
    "spans": (Path("spans.jsonl"), _write_spans),
}
"""The other files of `jsonl`, below the run folder, and the function that writes each."""


def _paths(form: str) -> dict[str, Path]:
    """Return the file, below the run folder, of each kind that the format `form` has.

    Raises `InvalidInput` if there is no such format.
    """
    if form == "jsonl":
        return {
            **mirrors.ALL_PATHS,
            **{what: path for what, (path, _) in _BESIDE_MIRRORS.items()},
            "inspect": Path("inspect"),
        }
    if form not in TABULAR:
        message = f"found {form!r}; expected one of jsonl, {', '.join(TABULAR)}"
        raise InvalidInput("the export", [Problem(Parameter("format"), message)])
    return {kind: FOLDER / f"{kind}.{form}" for kind in committed_rows.TABLES}


def _require_known(what: str, form: str, *also: str) -> None:
    """Raise `InvalidInput` unless there is this kind. `also` are other values for the message."""
    kinds = _paths(form)
    if what not in kinds:
        as_form = "" if form == "jsonl" else f" as {form},"
        message = f"found {what!r};{as_form} expected one of {', '.join((*kinds, *also))}"
        raise InvalidInput("the export", [Problem(Parameter("what"), message)])
