"""Connections to SQLite, results of statements, and transactions, over the driver itself.

The ledger's code speaks SQL and needs no more than this of a database library; SQLAlchemy, whose
import takes longer than most commands do, is left to Alembic, which makes the tables. The method
names are SQLAlchemy's, so that Alembic's connection can be used in the same way.

The driver's own errors come through: `engine.translated` makes `LedgerError` of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

Params = Sequence[Any] | Mapping[str, Any]
"""The values of one statement, or a list with those of each of its repetitions."""

_MAX_IDLE = 5
"""How many connections are kept for further use."""


class Result:
    """The rows of a statement, fetched as they are asked for; columns can be read by name."""

    def __init__(self, cursor: Any, when_closed: Callable[[Result], None]) -> None:
        self._cursor = cursor
        self._when_closed = when_closed
        self._make = _row_type(tuple(column[0] for column in cursor.description or ()))

    @property
    def rowcount(self) -> int:
        """How many rows the statement has changed."""
        return int(self._cursor.rowcount)

    def close(self) -> None:
        """Give up the rows that were not fetched. The state they were read from is released."""
        self._cursor.close()
        self._when_closed(self)

    def __iter__(self) -> Iterator[Any]:
        yield from map(self._make, self._cursor)
        self.close()

    def fetchmany(self, size: int) -> list[Any]:
        """At most `size` further rows; none at the end."""
        rows = [self._make(row) for row in self._cursor.fetchmany(size)]
        if not rows:
            self.close()
        return rows

    def all(self) -> list[Any]:
        """All further rows."""
        return list(self)

    def first(self) -> Any:
        """The first row, or None where there is none. Closes the result."""
        row = self._cursor.fetchone()
        self.close()
        return None if row is None else self._make(row)

    def one(self) -> Any:
        """The only row. Raises `LookupError` where there is none or another one."""
        rows = self._cursor.fetchmany(2)
        self.close()
        if len(rows) != 1:
            raise LookupError("no row was found" if not rows else "more than one row was found")
        return self._make(rows[0])

    def scalar(self) -> Any:
        """The first value of the first row, or None where there is no row."""
        row = self.first()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        """The first value of the only row. Raises `LookupError` as `one` does."""
        return self.one()[0]

    def scalars(self) -> Scalars:
        """The first value of each row."""
        return Scalars(self)


class Scalars:
    """The first value of each row of a result."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def __iter__(self) -> Iterator[Any]:
        return (row[0] for row in self._result)

    def all(self) -> list[Any]:
        return list(self)


class Row(tuple[Any, ...]):
    """The values of a row, also to be read by the names of their columns."""

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
    """The rows that have these columns. Costs much less than a `namedtuple`."""
    return type("Row", (Row,), {"__slots__": (), "_fields": columns})


class Connection:
    """A connection to a database file, for one thread at a time.

    A connection that only reads is in one transaction from its first statement until it is closed,
    and so sees one state. One that writes is in a transaction only within `begin`.
    """

    def __init__(self, driver: Any, *, writes: bool, when_closed: Callable[[Any], None]) -> None:
        self.driver = driver
        """The driver's own connection."""
        self._writes = writes
        self._when_closed = when_closed
        self._results: set[Result] = set()
        self.closed = False
        if not writes:
            driver.execute("BEGIN")

    def exec_driver_sql(self, statement: str, parameters: Params | None = None) -> Result:
        """Execute a statement. A list of parameters repeats it for each of them."""
        if isinstance(parameters, list) and parameters:
            cursor = self.driver.executemany(statement, parameters)
        else:
            cursor = self.driver.execute(statement, parameters or ())
        result = Result(cursor, self._results.discard)
        if cursor.description is not None:
            self._results.add(result)
        return result

    @contextmanager
    def begin(self) -> Iterator[Self]:
        """A transaction that takes the write lock at once: committed whole, or rolled back."""
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
        """Give up what was not committed, and what was not fetched."""
        if self.closed:
            return
        self.closed = True
        try:
            self._roll_back()
        except BaseException:
            self.driver.close()
            raise
        self._when_closed(self.driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """Makes connections to one database file. May be used from any thread."""

    def __init__(self, open_driver: Callable[[], Any], *, writes: bool) -> None:
        self._open_driver = open_driver
        self._writes = writes
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._disposed = False

    def connect(self) -> Connection:
        """A connection: one that was closed before, where connections that read can share it."""
        with self._lock:
            driver = self._idle.pop() if self._idle else None
        if driver is None:
            driver = self._open_driver()
        try:
            return Connection(driver, writes=self._writes, when_closed=self._put_back)
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
        """Close every connection that is not in use; the others are closed after their use."""
        with self._lock:
            self._disposed = True
            idle, self._idle = self._idle, []
        for driver in idle:
            driver.close()
