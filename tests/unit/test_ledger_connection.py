"""Connections: atomic transactions, snapshots that are kept and released, rows by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labledger.ledger.database.connection import Database
from labledger.ledger.database.sqlite import DRIVER, readonly_engine, writable_engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.sqlite"
    raw = DRIVER.connect(str(path), isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY, word TEXT)")
    raw.execute(
        "CREATE TABLE child (n INTEGER REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED)"
    )
    raw.executemany("INSERT INTO parent VALUES (?, ?)", [(1, "one"), (2, "two")])
    raw.close()
    return path


@pytest.fixture
def reading(path: Path) -> Iterator[Database]:
    engine = readonly_engine(path)
    yield engine
    engine.dispose()


@pytest.fixture
def writing(path: Path) -> Iterator[Database]:
    engine = writable_engine(path)
    yield engine
    engine.dispose()


WORDS = "SELECT n, word FROM parent ORDER BY n"


def test_rows_have_names_and_are_tuples(reading: Database) -> None:
    """A row is a tuple of its values with an attribute for each column."""
    with reading.connect() as connection:
        row = connection.execute(WORDS).first()
        assert row == (1, "one")
        assert (row.n, row.word, row._asdict()) == (1, "one", {"n": 1, "word": "one"})
        with pytest.raises(AttributeError, match="'letters'"):
            _ = row.letters
        assert list(connection.execute(WORDS).scalars()) == [1, 2]
        assert connection.execute(f"{WORDS} LIMIT 0").first() is None
        for sql, what in (("LIMIT 0", "no row"), ("", "more than one")):
            with pytest.raises(LookupError, match=what):
                connection.execute(f"{WORDS} {sql}").one()


def test_a_failed_transaction_leaves_nothing(writing: Database, reading: Database) -> None:
    """A failed statement or commit leaves neither rows nor a lock."""
    with writing.connect() as connection:
        with pytest.raises(DRIVER.IntegrityError, match="UNIQUE"), connection.begin():
            connection.execute("INSERT INTO parent VALUES (?, ?)", [(3, ""), (1, "")])
        with pytest.raises(DRIVER.IntegrityError, match="FOREIGN KEY"), connection.begin():
            connection.execute("INSERT INTO child VALUES (?)", (4,))
        with connection.begin():
            rows = connection.execute(WORDS)
            assert next(iter(rows)) == (1, "one")
            connection.execute("INSERT INTO child VALUES (?)", [(1,), (2,)])
    with reading.connect() as connection:
        assert len(connection.execute(WORDS).all()) == 2
        assert connection.execute("SELECT count(*) FROM child").scalar_one() == 2


def test_a_reader_keeps_to_one_state_until_it_is_closed(
    writing: Database, reading: Database
) -> None:
    """A closed connection with unread rows does not keep an old snapshot."""
    connection = reading.connect()
    rows = iter(connection.execute(WORDS))
    assert next(rows) == (1, "one")
    with writing.connect() as writer:
        with writer.begin():
            writer.execute("INSERT INTO parent VALUES (3, 'three')")
        assert connection.execute("SELECT count(*) FROM parent").scalar() == 2
        connection.close()
        busy, *_ = writer.driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0
    with reading.connect() as again:
        assert again.driver is connection.driver
        assert again.execute("SELECT count(*) FROM parent").scalar() == 3


def test_a_disposed_engine_keeps_no_file_open(reading: Database) -> None:
    """A connection in use while its pool is disposed is closed after its use."""
    connection = reading.connect()
    reading.dispose()
    assert connection.execute("SELECT 1").scalar() == 1
    connection.close()
    with pytest.raises(DRIVER.ProgrammingError, match="closed"):
        connection.driver.execute("SELECT 1")


def test_regular_expressions_can_be_asked(reading: Database) -> None:
    """SQL's REGEXP is Python's search; for NULL it is NULL."""
    with reading.connect() as connection:
        sql = "SELECT 'slot 12' REGEXP '[0-9]+$', 'slot' REGEXP '[0-9]', NULL REGEXP 'x'"
        assert connection.execute(sql).one() == (1, 0, None)


def test_a_connection_that_cannot_be_set_up_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not a database leaves no open connection, which newer Pythons report."""
    (tmp_path / "no.sqlite").write_text("no database" * 999)
    connect, opened = DRIVER.connect, []

    def recorded(*words: Any, **options: Any) -> Any:
        opened.append(connect(*words, **options))
        return opened[-1]

    monkeypatch.setattr(DRIVER, "connect", recorded)
    with pytest.raises(DRIVER.DatabaseError, match="not a database"):
        writable_engine(tmp_path / "no.sqlite").connect()
    with pytest.raises(DRIVER.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
