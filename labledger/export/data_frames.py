"""Answers of queries as columns of one type each: Parquet files, and frames of pandas or polars.

In SQLite every value has its own type. A column gets the narrowest type that holds all its values:
64-bit integers, doubles, bytes, or text. A column of nulls alone has Arrow's type `null`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from labledger import optional_libraries
from labledger.errors import InvalidInput, Problem
from labledger.ledger.query import require_names
from labledger.storage.batches import batched

BATCH_ROWS = 50_000

ENGINES = {"pandas": "frames", "polars": "polars"}
"""The libraries that make frames, each with the extra that installs it."""

Rows = Iterable[Sequence[Any]]

_KINDS: dict[frozenset[type], str] = {
    frozenset(): "null",
    frozenset({int}): "int64",
    frozenset({float}): "double",
    frozenset({int, float}): "double",
    frozenset({bytes}): "binary",
}
"""Arrow's type for the set of types of a column's values; `string` for any other set."""


def require_parquet() -> None:
    """Raise `ExtraMissing` if the library that writes Parquet is not installed."""
    optional_libraries.require_for(
        "writing Parquet", "frames", "pyarrow", alternative="; --format csv needs nothing"
    )


def write_parquet(columns: Sequence[str], rows: Rows, handle: BinaryIO, scratch: Path) -> int:
    """Write an answer as a Parquet file, in flat memory; return the number of its rows.

    The folder `scratch` holds the unfinished file and needs as much disk space again. Raises
    `ExtraMissing`, and `QueryFailed` if two columns have the same name.
    """
    require_parquet()
    require_names(columns)
    count = 0
    with TemporaryDirectory(dir=scratch, prefix=".parquet-") as folder:
        spool = _Spool(columns, Path(folder))
        for batch in batched(rows, BATCH_ROWS):
            spool.add(batch)
            count += len(batch)
        with spool.close().open("rb") as file:
            shutil.copyfileobj(file, handle)
    return count


def frame(columns: Sequence[str], rows: Rows, engine: str) -> Any:
    """Return an answer as a DataFrame of `engine`. In pandas, integers are nullable `Int64`.

    Raises `ExtraMissing`, `InvalidInput` for an unknown engine, and `QueryFailed` if two
    columns have the same name.
    """
    if engine not in ENGINES:
        message = f"found {engine!r}; expected one of {', '.join(ENGINES)}"
        raise InvalidInput("the frame", [Problem("engine", message)])
    optional_libraries.require_for(f"a frame of {engine}", ENGINES[engine], engine, "pyarrow")
    require_names(columns)
    values = list(rows)
    table = _table(columns, _wider(["null"] * len(columns), values), values)
    if engine == "polars":
        import polars

        return polars.from_arrow(table)
    import pandas
    import pyarrow

    return table.to_pandas(types_mapper={pyarrow.int64(): pandas.Int64Dtype()}.get)


class _Spool:
    """A Parquet file that is being written; it is rewritten if a column needs a wider type."""

    def __init__(self, columns: Sequence[str], folder: Path) -> None:
        self._columns = columns
        self._folder = folder
        self._kinds = ["null"] * len(columns)
        self._number = 0
        self._writer = self._open()

    def add(self, batch: Sequence[Sequence[Any]]) -> None:
        kinds = _wider(self._kinds, batch)
        if kinds != self._kinds:
            self._widen(kinds)
        self._writer.write_table(_table(self._columns, self._kinds, batch))

    def close(self) -> Path:
        """Complete the file; return its path."""
        self._writer.close()
        return self._path

    @property
    def _path(self) -> Path:
        return self._folder / str(self._number)

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(self._path, _schema(self._columns, self._kinds))

    def _widen(self, kinds: list[str]) -> None:
        from pyarrow import parquet

        narrow_path = self.close()
        self._kinds, self._number = kinds, self._number + 1
        self._writer = self._open()
        with parquet.ParquetFile(narrow_path) as narrow:
            for batch in narrow.iter_batches(BATCH_ROWS):
                rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
                self._writer.write_table(_table(self._columns, kinds, rows))
        narrow_path.unlink()


def _wider(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the narrowest kind of each column that holds both `kinds` and the values of `rows`."""
    of_rows = [_kind(values) for values in zip(*rows, strict=True)] or kinds
    return [_common_kind({*pair}) for pair in zip(kinds, of_rows, strict=True)]


def _kind(values: Iterable[Any]) -> str:
    return _KINDS.get(frozenset(map(type, values)) - {type(None)}, "string")


def _common_kind(kinds: set[str]) -> str:
    """Return the narrowest kind that holds these."""
    kinds = kinds - {"null"}
    if len(kinds) < 2:
        return next(iter(kinds), "null")
    return "double" if kinds == {"int64", "double"} else "string"


def _schema(columns: Sequence[str], kinds: Sequence[str]) -> Any:
    import pyarrow

    types = (pyarrow.type_for_alias(kind) for kind in kinds)
    return pyarrow.schema(list(zip(columns, types, strict=True)))


def _table(columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    import pyarrow

    schema = _schema(columns, kinds)
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pyarrow.array(_plain(column, kind), field.type)
        for column, kind, field in zip(values, kinds, schema, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _plain(values: Sequence[Any], kind: str) -> Sequence[Any]:
    """Return the values converted to the column's type."""
    if kind == "double":
        return [None if value is None else float(value) for value in values]
    return list(map(_text, values)) if kind == "string" else values


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
