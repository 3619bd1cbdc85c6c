"""Write where a run's trials run: its settings, and the hosts that somebody declared lost.

A host that is declared lost for a run is fenced off: the transaction that would store one of its
results refuses it. A declaration is never changed or taken back. The writer calls these functions
inside its transactions.
"""

from __future__ import annotations

from collections.abc import Mapping

from labledger.errors import HostLost, InvalidInput, Problem
from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection

_UPSERT_SETTING = row_sql.upsert("run_setting")
_INSERT_FENCE = row_sql.insert("host_fence", unless_exists="run_no, host")
_FENCE_SQL = "SELECT declared_at, because FROM host_fence WHERE run_no = ? AND host = ?"
_HOSTS_SQL = "SELECT DISTINCT host FROM dispatch WHERE run_no = ? ORDER BY host"


def write_settings(connection: Connection, run_no: int, settings: Mapping[str, str]) -> None:
    """Replace the settings of a run that are given."""
    for name, value in settings.items():
        connection.exec_driver_sql(_UPSERT_SETTING, (run_no, name, value))


def read_hosts(connection: Connection, run_no: int) -> list[str]:
    """Return the hosts that attempts of a run were dispatched to, by name."""
    return list(connection.exec_driver_sql(_HOSTS_SQL, (run_no,)).scalars())


def declare_lost(
    connection: Connection, run_no: int, run_id: str, host: str, because: str, now: str
) -> None:
    """Fence a host off. Do nothing if it is declared lost already.

    Raises `InvalidInput` for a host to which no attempt of the run was dispatched.
    """
    hosts = read_hosts(connection, run_no)
    if host not in hosts:
        known = ", ".join(hosts) or "none"
        text = f"run {run_id} has dispatched nothing to {host!r}; its hosts are: {known}"
        raise InvalidInput("the host", [Problem("HOST", text)])
    if "/" not in host:
        text = f"{host} is the machine of a coordinator, whose trials `labledger resume` continues"
        raise InvalidInput("the host", [Problem("HOST", text)])
    connection.exec_driver_sql(_INSERT_FENCE, (run_no, host, now, because))


def require_not_lost(connection: Connection, run_no: int, host: str) -> None:
    """Raise `HostLost` if a host was declared lost for a run."""
    fence = connection.exec_driver_sql(_FENCE_SQL, (run_no, host)).first()
    if fence is not None:
        declared_at, because = fence
        raise HostLost(f"host {host} was declared lost at {declared_at}: {because}")
