"""Connections to SQLite, their transactions, and results of statements, directly on the driver.

Importing SQLAlchemy takes longer than most commands, so only Alembic and the engine for users use
it. A `Connection` adds transactions, snapshots, and rows with names to the driver's connection.
Errors of the driver pass through; `sqlite.translated` makes `LedgerError` of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, Self, TypeVar

Params = Sequence[Any] | Mapping[str, Any]
"""The values of one statement, or a list with the values of each repetition."""

_T = TypeVar("_T")

_MAX_IDLE = 5
"""The number of closed connections that are reused."""


class RowStream:
    """The rows of a statement, fetched one by one; columns can be read by name."""

    def __init__(self, cursor: Any, on_close: Callable[[RowStream], None]) -> None:
        self._cursor = cursor
        self._on_close = on_close
        columns = cursor.description
        self._row = _row_type(tuple([column[0] for column in columns])) if columns else Row

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""
        return int(self._cursor.rowcount)

    def close(self) -> None:
        """Discard the rows that were not fetched, and release the snapshot they are read from."""
        self._cursor.close()
        self._on_close(self)

    def __iter__(self) -> Iterator[Any]:
        yield from map(self._row, self._cursor)
        self.close()

    def all(self) -> list[Any]:
        """Return the rows that were not fetched yet."""
        return list(self)

    def first(self) -> Any:
        """Return the first row, or None if there is none, and close the result."""
        row = self._cursor.fetchone()
        self.close()
        return None if row is None else self._row(row)

    def one(self) -> Any:
        """Return the only row. Raise `LookupError` if there is none, or more than one."""
        rows = self._cursor.fetchmany(2)
        self.close()
        if len(rows) != 1:
            raise LookupError(f"the statement has {'no row' if not rows else 'more than one row'}")
        return self._row(rows[0])

    def scalar(self) -> Any:
        """Return the first value of the first row, or None if there is no row."""
        row = self.first()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        """Return the first value of the only row. Raise `LookupError` as `one` does."""
        return self.one()[0]

    def scalars(self) -> Iterator[Any]:
        """Yield the first value of each row."""
        return (row[0] for row in self)


class Row(tuple[Any, ...]):
    """The values of a row, which can also be read by the names of their columns."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[self._fields.index(name)]
        except ValueError:
            raise AttributeError(f"the row has no column {name!r}") from None

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


@lru_cache(maxsize=256)
def _row_type(columns: tuple[str, ...]) -> type[Row]:
    """Return the type of rows with these columns. It costs much less than a `namedtuple`."""
    return type("Row", (Row,), {"__slots__": (), "_fields": columns})


class Connection:
    """A connection to a database file, for one thread at a time.

    A connection that only reads is in one transaction from its first statement until it is closed,
    and so reads one snapshot. One that writes is in a transaction only within `begin`.
    """

    def __init__(self, driver: Any, *, writes: bool, on_close: Callable[[Any], None]) -> None:
        self.driver = driver
        """The driver's own connection."""
        self._writes = writes
        self._on_close = on_close
        self._results: set[RowStream] = set()
        self.closed = False
        if not writes:
            driver.execute("BEGIN")

    def execute(self, statement: str, parameters: Params | None = None) -> RowStream:
        """Execute a statement, once for each item if `parameters` is a list."""
        if isinstance(parameters, list) and parameters:
            cursor = self.driver.executemany(statement, parameters)
        else:
            cursor = self.driver.execute(statement, parameters or ())
        result = RowStream(cursor, self._results.discard)
        if cursor.description is not None:
            self._results.add(result)
        return result

    @contextmanager
    def begin(self) -> Iterator[Self]:
        """Begin a transaction, with the write lock. It is rolled back if the block raises."""
        self.driver.execute("BEGIN IMMEDIATE")
        try:
            yield self
            self._close_results()
            self.commit()
        except BaseException:
            self._roll_back()
            raise

    def commit(self) -> None:
        """Commit the transaction of `begin`, which calls this."""
        self.driver.execute("COMMIT")

    def _roll_back(self) -> None:
        self._close_results()
        if self.driver.in_transaction:
            self.driver.execute("ROLLBACK")

    def _close_results(self) -> None:
        for result in list(self._results):
            result.close()

    def close(self) -> None:
        """Roll back what was not committed, and discard what was not fetched."""
        if self.closed:
            return
        self.closed = True
        try:
            self._roll_back()
        except BaseException:
            self.driver.close()
            raise
        self._on_close(self.driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Database:
    """Opens connections to one database file. May be used from any thread."""

    def __init__(self, open_driver: Callable[[], Any], *, writes: bool) -> None:
        self.open_driver = open_driver
        """Opens a connection of the driver."""
        self._writes = writes
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._disposed = False

    def connect(self) -> Connection:
        """Return a connection. Connections that only read are reused after they were closed."""
        with self._lock:
            driver = self._idle.pop() if self._idle else None
        if driver is None:
            driver = self.open_driver()
        try:
            return Connection(driver, writes=self._writes, on_close=self._put_back)
        except BaseException:
            driver.close()
            raise

    def _put_back(self, driver: Any) -> None:
        with self._lock:
            if not self._writes and not self._disposed and len(self._idle) < _MAX_IDLE:
                self._idle.append(driver)
                return
        driver.close()

    def dispose(self) -> None:
        """Close every connection that is not in use; the others close when they are released."""
        with self._lock:
            self._disposed = True
            idle, self._idle = self._idle, []
        for driver in idle:
            driver.close()


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield `items` in lists of up to `size`. Nothing is read ahead of the list that is yielded."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
