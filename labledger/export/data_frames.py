"""Rows of a query for other programs: CSV, JSON, JSON lines, Parquet, frames.

Text is written one row at a time, with bytes as hex. In Parquet and frames, each column gets one
type, whatever the order of rows. In Parquet, columns of a view have declared types, so files of
several ledgers fit together.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from labledger import clock, resources
from labledger.errors import InvalidInput, Parameter, Problem, QueryFailed
from labledger.ledger.database.column_types import ColumnKind, column_kind, common_kind
from labledger.ledger.database.connection import batched
from labledger.ledger.query import require_names
from labledger.text.escaping import escape_json

Rows = Iterable[Sequence[Any]]

RowWriter = Callable[[Sequence[str], Rows, BinaryIO], int]
"""Writes column names and rows to a binary stream, and returns the number of rows."""


def text_writer(form: str) -> RowWriter:
    """Return the writer of a format. Raises `InvalidInput` if there is none.

    A writer of JSON raises `QueryFailed` for what JSON cannot hold: two columns of one name, or an
    infinite number.
    """
    if form not in _FORMATS:
        expected = ", ".join(("table", *_FORMATS, "parquet"))
        message = f"found {form!r}; expected one of {expected}"
        raise InvalidInput("the query", [Problem(Parameter("format"), message)])

    def write(columns: Sequence[str], rows: Rows, stream: BinaryIO) -> int:
        counter = itertools.count()
        # `zip` reads the next row before it increments the counter, so that the counter ends at the
        # number of rows.
        counted = (row for row, _ in zip(rows, counter, strict=False))
        stream.writelines(text.encode() for text in _FORMATS[form](columns, counted))
        return next(counter)

    return write


def _csv(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    writer = csv.writer(_ReturningFile(), lineterminator="\n")
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow(_with_hex(row))


class _ReturningFile:
    """A file whose `write` returns its text, which `csv` passes on to its caller."""

    def write(self, text: str) -> str:
        return text


def _json_lines(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    for value in _objects(columns, rows):
        yield escape_json(json.dumps(value, ensure_ascii=False)) + "\n"


def _json_array(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """Yield the text that `json.dumps` of the whole array, with an indent of 2, would return."""
    separator = "["
    for value in _objects(columns, rows):
        text = json.dumps([value], indent=2, ensure_ascii=False)
        yield separator + escape_json(text.removeprefix("[").removesuffix("\n]"))
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def _objects(columns: Sequence[str], rows: Rows) -> Iterator[dict[str, Any]]:
    require_names(columns)
    for row in rows:
        named = dict(zip(columns, _with_hex(row), strict=True))
        for name, value in named.items():
            if isinstance(value, float) and math.isinf(value):
                raise QueryFailed(
                    f"the query returned {value} in the column {name}, and JSON has no such number",
                    hint="ask for CSV, or cast it to text",
                )
        yield named


def _with_hex(row: Sequence[Any]) -> list[Any]:
    """Return values that JSON and CSV can hold: bytes as hex."""
    return [value.hex() if isinstance(value, bytes) else value for value in row]


_FORMATS = {"json": _json_array, "jsonl": _json_lines, "csv": _csv}
"""The function that makes the text of rows, in pieces, by format."""


BATCH_ROWS = 50_000

LIBRARIES = {"pandas": "frames", "polars": "polars"}
"""The libraries of DataFrames, each with the extra that installs it."""


_MIXED_NUMBERS = "mixed numbers"
"""The type of a column of integers and floats. Finished tables have it as `double`.

An unfinished file has it as text, from which each number can still be restored: if text follows in
a later batch, an early 1 is then the text "1", not "1.0".
"""

_TIME = str(ColumnKind.TIME)

_COLUMN_TYPES: dict[frozenset[type], str] = {
    frozenset(): "null",
    frozenset({int}): "int64",
    frozenset({float}): "double",
    frozenset({int, float}): _MIXED_NUMBERS,
    frozenset({bytes}): "binary",
}
"""A column's type by the set of the types of its values; `string` for any other set."""


def require_parquet() -> None:
    """Raise `ExtraMissing` if the library that writes Parquet is not installed."""
    resources.require_for(
        "writing Parquet", "frames", "pyarrow", alternative="; `format='csv'` needs nothing"
    )


def write_parquet(
    columns: Sequence[str],
    rows: Rows,
    handle: BinaryIO,
    scratch: Path | None,
    view: str | None = None,
) -> int:
    """Write the rows as a Parquet file, in flat memory; return their number.

    The columns of `view` have their declared types, whatever their values. Another column has the
    narrowest type of its values. Without values, it has the type of the view columns with its name.
    Whole numbers are `double` if these columns are.
    The folder `scratch`, else `$TMPDIR`, holds the unfinished file and needs as much disk space
    again. Raises `ExtraMissing`, and `QueryFailed` if two columns have the same name.
    """
    require_parquet()
    require_names(columns)
    count = 0
    # Imported late: with the random numbers for its names it takes longer than a small query.
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir=scratch, prefix=".parquet-") as folder:
        types = ["null" if view is None else str(column_kind(view, name)) for name in columns]
        file = _UnfinishedFile(columns, types, Path(folder))
        for batch in batched(rows, BATCH_ROWS):
            file.add(batch)
            count += len(batch)
        with file.finish().open("rb") as finished:
            shutil.copyfileobj(finished, handle)
    return count


def make_frame(columns: Sequence[str], rows: Rows, library: str) -> Any:
    """Return the rows as a DataFrame of `library`. In pandas, integers are nullable `Int64`.

    Raises `ExtraMissing`, `InvalidInput` for an unknown library, and `QueryFailed` if two
    columns have the same name.
    """
    if library not in LIBRARIES:
        message = f"found {library!r}; expected one of {', '.join(LIBRARIES)}"
        raise InvalidInput("the frame", [Problem("engine", message)])
    resources.require_for(f"a frame of {library}", LIBRARIES[library], library, "pyarrow")
    require_names(columns)
    all_rows = list(rows)
    types = _widened_types(columns, ["null"] * len(columns), all_rows)
    table = _table(columns, _final_types(types), all_rows)
    if library == "polars":
        import polars

        return polars.from_arrow(table)
    import pandas
    import pyarrow

    return table.to_pandas(types_mapper={pyarrow.int64(): pandas.Int64Dtype()}.get)


class _UnfinishedFile:
    """A Parquet file to which rows are added; it is rewritten if a column needs another type."""

    def __init__(self, columns: Sequence[str], types: list[str], folder: Path) -> None:
        self._columns = columns
        self._folder = folder
        self._types = types
        self._rewrites = 0
        self._writer = self._open()

    def add(self, batch: Sequence[Sequence[Any]]) -> None:
        types = _widened_types(self._columns, self._types, batch)
        if types != self._types:
            self._rewrite(types)
        self._writer.write_table(_table(self._columns, types, batch))

    def finish(self) -> Path:
        """Complete the file, with the final types of its columns; return its path."""
        final_types = list(map(_declared_or_own, self._columns, _final_types(self._types)))
        if final_types != self._types:
            self._rewrite(final_types)
        self._writer.close()
        return self._path

    @property
    def _path(self) -> Path:
        return self._folder / str(self._rewrites)

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(self._path, _schema(self._columns, self._types))

    def _rewrite(self, types: list[str]) -> None:
        from pyarrow import parquet

        self._writer.close()
        old_path = self._path
        self._types, self._rewrites = types, self._rewrites + 1
        self._writer = self._open()
        with parquet.ParquetFile(old_path) as old_file:
            for batch in old_file.iter_batches(BATCH_ROWS):
                rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
                self._writer.write_table(_table(self._columns, types, rows))
        old_path.unlink()


def _widened_types(
    columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]
) -> list[str]:
    """Return the narrowest type of each column that holds `types` and the values of `rows`."""
    if not rows:
        return list(types)
    row_types = map(_column_type, columns, zip(*rows, strict=True))
    return [_common_type({*pair}) for pair in zip(types, row_types, strict=True)]


def _column_type(name: str, values: Sequence[Any]) -> str:
    types = frozenset(map(type, values)) - {type(None)}
    if name.endswith("_at") and types == {str} and all(map(_is_time, values)):
        return _TIME
    return _COLUMN_TYPES.get(types, "string")


def _is_time(value: str | None) -> bool:
    """Return whether a value is null, or a time as the ledger stores it."""
    if value is None:
        return True
    try:
        return clock.TIME.fullmatch(value) is not None and clock.iso(clock.parse(value)) == value
    except ValueError:
        return False


def _common_type(types: set[str]) -> str:
    """Return the narrowest type that holds these."""
    types = types - {"null"}
    if len(types) < 2:
        return next(iter(types), "null")
    return _MIXED_NUMBERS if types <= {"int64", "double", _MIXED_NUMBERS} else "string"


def _final_types(types: Sequence[str]) -> list[str]:
    return ["double" if name == _MIXED_NUMBERS else name for name in types]


def _declared_or_own(name: str, kind: str) -> str:
    """Return the type of a column in a file: costs that happen to be whole numbers are `double`."""
    declared = str(common_kind(name))
    if kind == "null" or (kind == "int64" and declared == ColumnKind.REAL):
        return declared
    return kind


def _schema(columns: Sequence[str], types: Sequence[str]) -> Any:
    import pyarrow

    special = {_MIXED_NUMBERS: pyarrow.string(), _TIME: pyarrow.timestamp("ms", tz="UTC")}
    arrow_types = (special.get(name) or pyarrow.type_for_alias(name) for name in types)
    return pyarrow.schema(list(zip(columns, arrow_types, strict=True)))


def _table(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    import pyarrow

    schema = _schema(columns, types)
    values_by_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pyarrow.array(_converted(values, name), field.type)
        for values, name, field in zip(values_by_column, types, schema, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _converted(values: Sequence[Any], column_type: str) -> Sequence[Any]:
    """Return the values as the column's type stores them."""
    if column_type == "double":
        return [None if value is None else float(value) for value in values]
    if column_type == _TIME:
        return [clock.parse(value) if isinstance(value, str) else value for value in values]
    return list(map(_text, values)) if column_type in ("string", _MIXED_NUMBERS) else values


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.hex() if isinstance(value, bytes) else str(value)
