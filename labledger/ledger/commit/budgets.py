"""What a run may spend, inside the writer's transactions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from labledger.ledger.commit import statements
from labledger.ledger.database.connection import Connection


def keep(connection: Connection, run_no: int, limits: Mapping[str, float]) -> None:
    """Replace a run's limits of these kinds; an infinite one is none. The others stay."""
    for kind, limit in limits.items():
        if math.isinf(limit):
            connection.exec_driver_sql(statements.DELETE_BUDGET, (run_no, kind))
        else:
            connection.exec_driver_sql(statements.UPSERT_BUDGET, (run_no, kind, float(limit)))
