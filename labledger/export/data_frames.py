"""Answers as columns of one type each: Parquet files, and frames of pandas or polars.

SQLite gives every value its own type; a column is given the narrowest that holds all of its own:
64-bit integers, doubles, bytes, or text. Nulls fit everywhere, and a column of nothing else has
Arrow's type `null`.
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
"""What makes frames, and the extra that brings it."""

Rows = Iterable[Sequence[Any]]

_KINDS: dict[frozenset[type], str] = {
    frozenset(): "null",
    frozenset({int}): "int64",
    frozenset({float}): "double",
    frozenset({int, float}): "double",
    frozenset({bytes}): "binary",
}
"""Arrow's type for the types of a column's values; for any others it is `string`."""


def require_parquet() -> None:
    """Raise `ExtraMissing` where Parquet cannot be written."""
    optional_libraries.require_for("writing Parquet", "frames", "pyarrow")


def write_parquet(columns: Sequence[str], rows: Rows, handle: BinaryIO, scratch: Path) -> int:
    """Write an answer as a Parquet file, in flat memory; the number of its rows.

    The folder `scratch` holds what is not finished, and needs as much room again. Raises
    `ExtraMissing`, and `QueryFailed` where two columns have one name.
    """
    require_parquet()
    require_names(columns)
    count = 0
    with TemporaryDirectory(dir=scratch, prefix=".parquet-") as folder:
        spool = _Spool(columns, Path(folder))
        for batch in batched(rows, BATCH_ROWS):
            spool.add(batch)
            count += len(batch)
        with spool.finished().open("rb") as whole:
            shutil.copyfileobj(whole, handle)
    return count


def frame(columns: Sequence[str], rows: Rows, engine: str) -> Any:
    """An answer as a DataFrame of `engine`. In pandas, integers are `Int64`, which has nulls.

    Raises `ExtraMissing`, `InvalidInput` for an unknown engine, and `QueryFailed` where two
    columns have one name.
    """
    if engine not in ENGINES:
        message = f"found {engine!r}; expected one of {', '.join(ENGINES)}"
        raise InvalidInput("the frame", [Problem("engine", message)])
    optional_libraries.require_for(f"a frame of {engine}", ENGINES[engine], engine, "pyarrow")
    require_names(columns)
    found = list(rows)
    table = _table(columns, _wider(["null"] * len(columns), found), found)
    if engine == "polars":
        import polars

        return polars.from_arrow(table)
    import pandas
    import pyarrow

    return table.to_pandas(types_mapper={pyarrow.int64(): pandas.Int64Dtype()}.get)


class _Spool:
    """A Parquet file in the making; it is begun anew where a column needs a wider type."""

    def __init__(self, columns: Sequence[str], folder: Path) -> None:
        self._columns = columns
        self._folder = folder
        self._kinds = ["null"] * len(columns)
        self._number = 0
        self._writer = self._begin()

    def add(self, batch: Sequence[Sequence[Any]]) -> None:
        kinds = _wider(self._kinds, batch)
        if kinds != self._kinds:
            self._widen(kinds)
        self._writer.write_table(_table(self._columns, self._kinds, batch))

    def finished(self) -> Path:
        """The whole file, closed."""
        self._writer.close()
        return self._path

    @property
    def _path(self) -> Path:
        return self._folder / str(self._number)

    def _begin(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(self._path, _schema(self._columns, self._kinds))

    def _widen(self, kinds: list[str]) -> None:
        from pyarrow import parquet

        before = self.finished()
        self._kinds, self._number = kinds, self._number + 1
        self._writer = self._begin()
        with parquet.ParquetFile(before) as narrow:
            for batch in narrow.iter_batches(BATCH_ROWS):
                rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
                self._writer.write_table(_table(self._columns, kinds, rows))
        before.unlink()


def _wider(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The kind of each column that holds what is there already, and `rows` as well."""
    found = [_kind(values) for values in zip(*rows, strict=True)] or kinds
    return [_both(*pair) for pair in zip(kinds, found, strict=True)]


def _kind(values: Iterable[Any]) -> str:
    return _KINDS.get(frozenset(map(type, values)) - {type(None)}, "string")


def _both(one: str, other: str) -> str:
    """The narrowest kind that holds two."""
    kinds = {one, other} - {"null"}
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
    """Values that are all of the column's type."""
    if kind == "double":
        return [None if value is None else float(value) for value in values]
    return list(map(_text, values)) if kind == "string" else values


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
