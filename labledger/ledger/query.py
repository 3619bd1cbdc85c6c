"""Run one SELECT over the ledger's documented views, and offer the views to SQLAlchemy.

SQLite's authorizer refuses every action of a statement except reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labledger import clock
from labledger.errors import InvalidInput, Parameter, Problem, QueryFailed
from labledger.ledger.database import migrations, views_and_triggers
from labledger.ledger.database.column_meanings import meaning
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.sqlite import DRIVER, translated
from labledger.text.words import near_names

if TYPE_CHECKING:
    # Importing it takes longer than most queries.
    from sqlalchemy import Engine, Table

_READ_ACTIONS = {
    DRIVER.SQLITE_SELECT,
    DRIVER.SQLITE_READ,
    DRIVER.SQLITE_FUNCTION,
    DRIVER.SQLITE_RECURSIVE,
}
_REFUSED_FUNCTIONS = frozenset({"load_extension"})
_ENDLESS_FUNCTIONS = frozenset({"regexp", "randomblob", "zeroblob"})
"""Functions that SQLite cannot interrupt: a function in Python, which other threads wait for, and
functions that make a value of any size at once.
"""
_SCHEMA_PRAGMAS = {
    "read_uncommitted",
    "table_info",
    "table_xinfo",
    "foreign_key_list",
    "index_list",
}
"""PRAGMAs that SQLAlchemy reads about a connection and a view. A program could set only the last
one, which has no effect without a shared cache.
"""
_REFUSALS = ("not authorized", "prohibited", "readonly", "cannot modify", "within a transaction")
"""Parts of SQLite's messages about a statement that does more than read."""

_TABLES_SQL = "SELECT name FROM main.sqlite_schema WHERE type = 'table'"
_STEPS_BETWEEN_CHECKS = 10_000
_MAX_VALUE = 64 << 20
"""How many bytes a value may have if a query has a time limit."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_UNBOUND = re.compile(r"supply a value for binding|number of bindings supplied")
_UNKNOWN = re.compile(r"no such (table|column|function): (\S+)")

Row = tuple[Any, ...]
"""Values of a row: int, float, str, bytes or None."""

Params = Mapping[str, Any] | Sequence[Any]
Prepare = Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A documented view."""

    name: str
    comment: str
    """The meaning of a row, in one line that begins with ``one row per``."""
    columns: tuple[str, ...]
    meanings: tuple[str, ...]
    """The meaning of each column."""


def expand_view_name(sql: str) -> str:
    """Return a SELECT of all rows if `sql` is only the name of a view, else `sql`."""
    word = sql.strip()
    return f"SELECT * FROM {word}" if _WORD.fullmatch(word) else sql  # noqa: S608


_ALL_COLUMNS = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+([A-Za-z_]\w*)(?:\s+(?:WHERE|ORDER\s+BY|LIMIT)\b.*|\s*;?\s*)",
    re.IGNORECASE | re.DOTALL,
)
"""A statement with exactly the columns of one view."""


def view_of(sql: str) -> str | None:
    """Return the documented view if a statement selects all of its columns, else None.

    >>> view_of("SELECT * FROM trials WHERE run_id = 'r'")
    'trials'
    >>> view_of("SELECT task_id FROM trials") is view_of("SELECT * FROM a JOIN trials") is None
    True
    """
    match = _ALL_COLUMNS.fullmatch(expand_view_name(sql))
    name = None if match is None else match[1].lower()
    return name if name in views_and_triggers.VIEWS else None


def query(
    path: Path,
    sql: str,
    params: Params = (),
    generation: int | None = None,
    *,
    as_of: str | None = None,
    views_only: bool = False,
    time_limit_s: float | None = None,
) -> tuple[tuple[str, ...], Generator[Row]]:
    """Return the columns of one SELECT, and a generator of its rows.

    `params` are values for `:name` or `?` in the statement. With a `generation`, the views show
    each run's newest complete grading up to that one. With `as_of`, a time as text of
    `labledger.clock`, they show the rows committed by then. `views_only` refuses the ledger's own
    tables, which change between revisions.

    Ctrl-C interrupts the query, and so does the end of `time_limit_s` (seconds from now). With a
    limit, REGEXP, RANDOMBLOB and ZEROBLOB are refused. Values of more than 64 MiB are refused too,
    if Python's SQLite supports such a limit.

    Raises `QueryFailed`, with the nearest view or column if a name is unknown, `InvalidInput`, and
    the errors of `migrations.require_current`.
    """
    if generation is not None and generation < 1:
        problem = Problem("generation", f"found {generation}; expected 1 or more")
        raise InvalidInput("the query", [problem])
    if as_of is not None and generation is not None:
        problem = Problem(Parameter("as_of"), "found a generation too; expected only one of both")
        raise InvalidInput("the query", [problem])

    def prepare(connection: Connection) -> None:
        if as_of is not None:
            views_and_triggers.select_time(connection, as_of)
        elif generation is not None:
            views_and_triggers.select_generation(connection, generation)

    deadline = None if time_limit_s is None else Deadline(time_limit_s)
    return _with_columns(_rows(path, sql, params, prepare, views_only, deadline))


def query_run(
    path: Path, run_id: str, sql: str, params: Params = (), committed: int | None = None
) -> tuple[tuple[str, ...], Generator[Row]]:
    """Do what `query` does, with views that show only one run's rows, even if it is not current.

    Rows of a regrading are shown under its root's id. With `committed`, the views show the rows
    that counted when this number of the run's slots was committed.
    """
    prepare = partial(views_and_triggers.select_run, run_id=run_id, committed=committed)
    return _with_columns(_rows(path, sql, params, prepare))


def require_names(columns: Sequence[str]) -> None:
    """Raise `QueryFailed` if columns share a name, because a row by names would lose one."""
    duplicates = sorted({name for name in columns if columns.count(name) > 1})
    if duplicates:
        raise QueryFailed(
            f"the query has more than one column called {', '.join(duplicates)}",
            hint="give each its own name with AS",
        )


class Deadline:
    """The time after which a query ends."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = clock.monotonic() + limit_s

    def is_over(self) -> bool:
        return clock.monotonic() >= self._end


def _with_columns(rows: Generator[Row]) -> tuple[tuple[str, ...], Generator[Row]]:
    """Return the first of `rows`, which has the columns' names, and the others."""
    return next(rows), rows


def views(path: Path) -> list[ViewInfo]:
    """Return the documented views with their columns, in the order a reader wants them."""
    infos = []
    for name, view in views_and_triggers.VIEWS.items():
        columns, rows = query(path, f"SELECT * FROM {name} LIMIT 0")  # noqa: S608
        list(rows)
        meanings = tuple(meaning(name, column) for column in columns)
        infos.append(ViewInfo(name, view.comment, columns, meanings))
    return infos


def view_engine(path: Path) -> Engine:
    """Return an engine of SQLAlchemy whose connections read the documented views of a ledger.

    It refuses everything except reading the views, as a query does. Each of its transactions reads
    one snapshot. Raises the errors of `migrations.require_current`.
    """
    from sqlalchemy import create_engine, event

    ledger = migrations.any_revision_engine(path)

    def connect() -> Any:
        with translated("open the ledger", path):
            return ledger.open_driver()

    def restrict(driver: Any, _: object) -> None:
        allow_reading(driver, by_library=True)

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    ledger.dispose()  # Only its settings are needed: SQLAlchemy keeps the connections.
    views(path)  # Refuses a ledger of another version now, not at the first query.
    engine = create_engine("sqlite://", module=DRIVER, creator=connect)
    event.listen(engine, "connect", restrict)
    event.listen(engine, "begin", begin)
    return engine


def view_tables(path: Path) -> dict[str, Table]:
    """Return a table of SQLAlchemy for each documented view, with the meaning of each column."""
    from sqlalchemy import Column, MetaData, Table

    metadata = MetaData()
    return {
        view.name: Table(
            view.name,
            metadata,
            *(
                Column(name, comment=meaning)
                for name, meaning in zip(view.columns, view.meanings, strict=True)
            ),
            comment=view.comment,
        )
        for view in views(path)
    }


def _rows(
    path: Path,
    sql: str,
    params: Params,
    prepare: Prepare,
    views_only: bool = False,
    deadline: Deadline | None = None,
) -> Generator[Row]:
    """Yield the column names, then each row."""
    with ExitStack() as stack:
        engine = migrations.any_revision_engine(path)
        stack.callback(engine.dispose)
        with translated("open the ledger", path):
            connection = stack.enter_context(engine.connect())
            migrations.require_current_connection(connection, path)
            prepare(connection)
        names = _names(connection)
        authorizer = _restrict(connection, stack, views_only, deadline)
        try:
            values = dict(params) if isinstance(params, Mapping) else tuple(params)
            result = connection.driver.cursor()
            result.execute(sql, values)
            if result.description is None:
                raise QueryFailed("the query is empty", hint="write one SELECT statement")
            yield tuple(column[0] for column in result.description)
            yield from iter(result.fetchone, None)
        except (DRIVER.Error, DRIVER.Warning, ValueError, OverflowError) as error:
            if _was_interrupted(error, authorizer):
                if deadline is not None and deadline.is_over():
                    raise too_slow(deadline.limit_s) from None
                raise KeyboardInterrupt from None
            if authorizer.refused_function in _ENDLESS_FUNCTIONS:
                raise _endless_function_error(authorizer.refused_function) from error
            if authorizer.refused_table is not None:
                raise _internal_table_error(authorizer.refused_table, names["table"]) from error
            raise _query_error(error, names) from error
        except MemoryError:
            raise QueryFailed(
                "the query needs more memory than it may have", hint="ask for fewer rows at once"
            ) from None


def _was_interrupted(error: Exception, authorizer: Authorizer) -> bool:
    """Return whether Ctrl-C or the deadline ended a query.

    SQLite reports a Ctrl-C during a call of the authorizer as a refusal.
    """
    code = getattr(error, "sqlite_errorcode", None)
    is_unrefused = code == DRIVER.SQLITE_AUTH and not authorizer.has_refused
    return code == DRIVER.SQLITE_INTERRUPT or is_unrefused


def _restrict(
    connection: Connection, stack: ExitStack, views_only: bool, deadline: Deadline | None
) -> Authorizer:
    """Allow only reading until `stack` ends, and let signals and the deadline interrupt it."""
    driver: Any = connection.driver
    endless = frozenset() if deadline is None else _ENDLESS_FUNCTIONS
    authorizer = allow_reading(driver, views_only=views_only, refused_functions=endless)
    stack.callback(driver.set_authorizer, None)
    is_over = (lambda: 0) if deadline is None else deadline.is_over
    if deadline is not None and hasattr(driver, "setlimit"):
        # SQLite cannot be interrupted while it makes a value, and needs its size in memory twice.
        driver.setlimit(DRIVER.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    driver.set_progress_handler(is_over, _STEPS_BETWEEN_CHECKS)
    stack.callback(driver.set_progress_handler, None, 0)
    return authorizer


def too_slow(limit_s: float) -> QueryFailed:
    """Return the error for a query that did not end in time."""
    return QueryFailed(
        f"the query took longer than {limit_s:g} seconds",
        hint="ask for fewer rows, or use `labledger query`, which has no limit",
    )


def _endless_function_error(name: str) -> QueryFailed:
    return QueryFailed(
        f"the query was refused: {name.upper()} cannot be interrupted when the time is over",
        hint="`labledger query` runs it: it has no limit"
        + ("; LIKE and GLOB can be interrupted" if name == "regexp" else ""),
    )


def allow_reading(
    driver: Any,
    *,
    views_only: bool = True,
    by_library: bool = False,
    refused_functions: frozenset[str] = frozenset(),
) -> Authorizer:
    """Allow only reading on a driver's connection, as long as it has the authorizer.

    `views_only` refuses the ledger's own tables, and `refused_functions` are refused too.
    `by_library` allows transactions, and the PRAGMAs that a library reads before its first query,
    such as the columns of a view.
    """
    driver.execute("PRAGMA query_only = ON")
    # Older SQLites create these table functions at first use, and the authorizer would refuse that.
    driver.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchall()
    tables = [name for (name,) in driver.execute(_TABLES_SQL)] if views_only else []
    refused_functions |= _REFUSED_FUNCTIONS
    authorizer = Authorizer(frozenset(tables), refused_functions, by_library=by_library)
    driver.set_authorizer(authorizer)
    return authorizer


class Authorizer:
    """Allows only reading, and only the columns of the ledger's tables that a view reads."""

    def __init__(
        self, tables: Collection[str], functions: Collection[str], *, by_library: bool
    ) -> None:
        self._tables = tables
        self._refused_functions = functions
        self._by_library = by_library
        self._read_by_views: set[str] = set()
        self.refused_table: str | None = None
        """The table of the ledger that the query itself names."""
        self.refused_function: str | None = None
        self.has_refused = False
        """Whether it has refused anything."""

    def __call__(
        self,
        action: int,
        name: str | None,
        detail: str | None,
        _schema: str | None,
        source: str | None,
    ) -> int:
        if self._allows(action, name, detail, source):
            return int(DRIVER.SQLITE_OK)
        self.has_refused = True
        return int(DRIVER.SQLITE_DENY)

    def _allows(
        self, action: int, name: str | None, detail: str | None, source: str | None
    ) -> bool:
        if self._by_library and (
            action == DRIVER.SQLITE_TRANSACTION
            or (action == DRIVER.SQLITE_PRAGMA and name in _SCHEMA_PRAGMAS)
        ):
            return True
        if action not in _READ_ACTIONS:
            return False
        if action == DRIVER.SQLITE_FUNCTION and detail in self._refused_functions:
            self.refused_function = detail
            return False
        if action == DRIVER.SQLITE_READ and name is not None and name in self._tables:
            if source in _view_parts():
                self._read_by_views.add(name)
            # SQLite names no view for a table if the view needs none of the table's columns.
            elif detail or name not in self._read_by_views:
                self.refused_table = name
                return False
        return True


@cache
def _view_parts() -> frozenset[str]:
    """Return the names of views and of their common table expressions, as SQLite reports them."""
    views = views_and_triggers.VIEWS.values()
    expressions = (re.findall(r"\b(\w+) AS (?:MATERIALIZED )?\(", view.sql) for view in views)
    return frozenset().union(
        views_and_triggers.ALL_VIEWS, views_and_triggers.TEMPORARY_VIEWS, *expressions
    )


def _names(connection: Connection) -> dict[str, list[str]]:
    """Return the names that a query may use: the views as tables, and all their columns."""
    columns = {
        row[0]
        for view in views_and_triggers.VIEWS
        for row in connection.execute("SELECT name FROM pragma_table_info(?)", (view,))
    }
    return {"table": list(views_and_triggers.VIEWS), "column": sorted(columns)}


def _query_error(error: Exception, names: dict[str, list[str]]) -> QueryFailed:
    text = str(error)
    # An unknown name may contain such a part.
    if _UNKNOWN.search(text) is None and any(refusal in text for refusal in _REFUSALS):
        return QueryFailed(
            "the query was refused: it may only read", hint="write one SELECT statement"
        )
    if _UNBOUND.search(text):
        return QueryFailed(
            f"the query failed: {text}",
            hint="give every :NAME in the statement its value with -p NAME=VALUE",
        )
    if "one statement at a time" in text:
        return QueryFailed(
            "the query is more than one statement", hint="write one SELECT at a time"
        )
    return QueryFailed(f"the query failed: {text}", hint=_hint(text, names))


def _internal_table_error(table: str, views: list[str]) -> QueryFailed:
    """Return the error for a query that names a table of the ledger instead of a view."""
    near = near_names(table, views)
    view = next((name for name in (f"{table}s", *near) if name in views), None)
    return QueryFailed(
        f"the query was refused: {table!r} is a table of the ledger, not a view: "
        "tables change between versions",
        hint=f"query the view {view!r}" if view else f"query a view: {', '.join(views)}",
    )


def _hint(text: str, names_by_kind: dict[str, list[str]]) -> str | None:
    match = _UNKNOWN.search(text)
    if match is None:
        return "`labledger query --schema` lists the views and their columns"
    kind, name = match.groups()
    names = names_by_kind.get(kind, [])
    name = name.rpartition(".")[2]
    close = near_names(name, names)
    if name in names:
        return f"another view has {name!r}: `labledger query --schema` lists them all"
    if close:
        return f"did you mean {close[0]!r}?"
    if kind == "table":
        return f"the views are {', '.join(names)}"
    return "`labledger query --schema` lists the views and their columns"
