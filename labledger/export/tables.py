"""Tables for other tools, which `labledger export` writes as CSV or Parquet.

Their columns and types are those of `ledger.read.export_tables`. Rows are streamed. `run_records`
uses this module.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.export.data_frames import require_parquet
from labledger.ledger.read import export_tables
from labledger.ledger.reader import LedgerReader
from labledger.records.identity import RUN_SEPARATOR
from labledger.storage.batches import batched
from labledger.storage.durable_files import replace_output

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
    """Write one of `export_tables.TABLES` as `form`, into a stream or, atomically, into a file.

    The rows are those of the runs, one after the other. Memory does not grow with them. Raises
    `ExtraMissing` if Parquet cannot be written.
    """
    if form == "parquet":
        require_parquet()
    rows = chain.from_iterable(reader.flat_rows(run_id, kind) for run_id in run_ids)
    run_id = RUN_SEPARATOR.join(run_ids)
    with replace_output(out) if isinstance(out, Path) else nullcontext(out) as handle:
        if form == "csv":
            _write_csv(export_tables.TABLES[kind].columns, rows, handle)
        elif isinstance(out, Path):
            _write_parquet(run_id, kind, rows, handle)
        else:
            # Parquet ends with offsets into the file, which a pipe does not have.
            with tempfile.TemporaryFile() as file:
                _write_parquet(run_id, kind, rows, file)
                file.seek(0)
                shutil.copyfileobj(file, handle)


def write_tables(
    reader: LedgerReader, run_ids: Sequence[str], form: str, folder: Path
) -> list[Path]:
    """Write each of `export_tables.TABLES` into a file in `folder`; return the files."""
    files = {kind: folder / f"{kind}.{form}" for kind in export_tables.TABLES}
    for kind, path in files.items():
        write_table(reader, run_ids, kind, form, path)
    return list(files.values())


def check_format(form: str) -> None:
    """Raise `InvalidInput` unless `form` is one of `TABULAR`."""
    if form not in TABULAR:
        message = f"found {form!r}; expected one of jsonl, {', '.join(TABULAR)}"
        raise InvalidInput("the export", [Problem(Parameter("format"), message)])


# -- CSV


def _write_csv(columns: Sequence[export_tables.Column], rows: Iterator[Row], out: BinaryIO) -> None:
    """Write CSV by RFC 4180 in UTF-8. Null is an empty field; empty text is two quotes."""
    out.write(_csv_line([column.name for column in columns]).encode())
    boolean_indexes = _boolean_indexes(columns)
    out.writelines(
        "".join(_csv_line(_with_booleans(row, boolean_indexes)) for row in batch).encode()
        for batch in batched(rows, _ROWS_PER_BATCH)
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
    boolean_indexes = _boolean_indexes(export_tables.TABLES[kind].columns)
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[pyarrow.RecordBatch] = []
        size = 0
        for batch in _record_batches(pyarrow, schema, rows, boolean_indexes):
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
        export_tables.ColumnType.TEXT: pyarrow.string(),
        export_tables.ColumnType.INTEGER: pyarrow.int64(),
        export_tables.ColumnType.REAL: pyarrow.float64(),
        export_tables.ColumnType.BOOLEAN: pyarrow.bool_(),
    }
    metadata = {
        "labledger.format": export_tables.FORMAT,
        "labledger.kind": kind,
        "labledger.run_id": run_id,
    }
    return pyarrow.schema(
        [(column.name, types[column.type]) for column in export_tables.TABLES[kind].columns],
        metadata,
    )


def _record_batches(
    arrow: Any, schema: pyarrow.Schema, rows: Iterator[Row], boolean_indexes: Sequence[int]
) -> Iterator[pyarrow.RecordBatch]:
    for batch in batched(rows, _ROWS_PER_BATCH):
        columns = zip(*(_with_booleans(row, boolean_indexes) for row in batch), strict=True)
        arrays = [
            arrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        yield arrow.RecordBatch.from_arrays(arrays, schema=schema)


def _boolean_indexes(columns: Sequence[export_tables.Column]) -> list[int]:
    return [
        n for n, column in enumerate(columns) if column.type is export_tables.ColumnType.BOOLEAN
    ]


def _with_booleans(row: Row, indexes: Sequence[int]) -> Row:
    """Return a row with 0 and 1 as booleans, which SQLite does not have."""
    if not indexes:
        return row
    values = list(row)
    for idx in indexes:
        values[idx] = None if values[idx] is None else bool(values[idx])
    return tuple(values)
