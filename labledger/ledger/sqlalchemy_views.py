"""The documented views for SQLAlchemy: an engine that only reads, and a `Table` for each view.

The engine refuses what a query refuses: everything but reading, and the ledger's own tables. Each
of its transactions reads one snapshot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Column, Engine, MetaData, Table, create_engine, event

from labledger.ledger.database.sqlite import DRIVER, readonly_engine, translated
from labledger.ledger.query import allow_reading, views


def view_engine(path: Path) -> Engine:
    """Return an engine whose connections read the documented views of a ledger.

    Raises what `migrations.require_current` raises.
    """
    ledger = readonly_engine(path)

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
    """Return a table for each documented view, by name, with the meaning of each column."""
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
