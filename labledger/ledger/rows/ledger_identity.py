"""The ledger's id, its first id, and the time of the backup that it was restored from."""

from __future__ import annotations

import re

from labledger.errors import LedgerError
from labledger.ledger.database.connection import Connection

_LEDGER_ID = re.compile(r"[0-9a-f]{32}")


def ledger_id(connection: Connection) -> str:
    """Return the ledger's id (32 hex digits), which never changes.

    Raises `LedgerError` if the row that holds it is missing or holds something else.
    """
    value = connection.execute(LEDGER_ID_SQL).scalar()
    if not isinstance(value, str) or _LEDGER_ID.fullmatch(value) is None:
        raise LedgerError(
            f"the ledger is damaged: its table ledger_meta says {value!r} where it should say the "
            "ledger's id",
            hint="`labledger verify` lists what differs; restore a copy of the ledger",
        )
    return value


def read_backup_time(connection: Connection) -> str | None:
    """Return the time of the backup that a ledger was restored from; None for any other ledger."""
    value = connection.execute(_BACKED_UP_SQL).scalar()
    return None if value is None else str(value)


ORIGINAL_ID = "original_id"
"""The key of a restored ledger's first id; absent in a ledger that never was restored.

The digests of its tombstones begin with that id."""


BACKED_UP_AT = "backed_up_at"
"""The key of the time of the backup from which a ledger was restored."""


LEDGER_ID_SQL = "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"


_BACKED_UP_SQL = f"SELECT value FROM ledger_meta WHERE key = '{BACKED_UP_AT}'"  # noqa: S608
