"""Have hosts remove what attempts left whose results are durable here.

Each host lists the attempts of the run of which it has anything, the coordinator says which are
durable, and the host removes those. Used by the cluster executor before and after the slots of a
run are run; a host that does not answer is left to the next cleanup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from labledger.cluster.coordinator_side.host_link import HostLink
from labledger.cluster.host_messages import (
    CleanedUp,
    CleanUp,
    ListAttempts,
    ListedAttempts,
    RunSetup,
)
from labledger.cluster.host_transport import ClusterConnection, HostUnreachable
from labledger.errors import LabLedgerError
from labledger.executors.executor import RunRecords

_TIMEOUT_S = 30.0
"""How long the coordinator waits. A host that takes longer goes on by itself."""


def clean_up_hosts(
    connection: ClusterConnection, links: Sequence[HostLink], setup: RunSetup, run: RunRecords
) -> list[str]:
    """Remove what durable attempts left on hosts. Return a warning for each that failed."""
    sessions = {link.name: link.session for link in links if link.session is not None}
    lists = {name: ListAttempts(session, setup) for name, session in sessions.items()}
    listed = _ask(connection, links, lists)
    orders: dict[str, CleanUp] = {}
    warnings = []
    for name, reply in listed.items():
        if not isinstance(reply, ListedAttempts):
            warnings.append(f"{name} was not cleaned up: {reply}")
            continue
        durable = frozenset(key for key in reply.attempts if run.is_durable(*key))
        kept = frozenset(key for key in durable if run.keeps_folder(*key))
        # Also if nothing is left: the host then deletes what the run's trials shared.
        orders[name] = CleanUp(sessions[name], setup, durable, kept)
    for name, reply in _ask(connection, links, orders).items():
        if isinstance(reply, CleanedUp):
            warnings += [f"{name}: {warning}" for warning in reply.warnings]
        else:
            warnings.append(f"{name} was not cleaned up: {reply}")
    return warnings


def _ask(
    connection: ClusterConnection, links: Sequence[HostLink], requests: Mapping[str, object]
) -> dict[str, Any]:
    """Return the reply of each host that has a request, or the error, by the host's name."""

    async def ask(link: HostLink) -> Any:
        if link.address is None:
            return HostUnreachable(f"{link.name} does not answer")
        try:
            return await connection.call(link.address, requests[link.name], _TIMEOUT_S)
        except LabLedgerError as error:
            return error

    asked = [link for link in links if link.name in requests]

    async def ask_all() -> list[Any]:
        return list(await asyncio.gather(*map(ask, asked)))

    replies = connection.run(ask_all()).result()
    return {link.name: reply for link, reply in zip(asked, replies, strict=True)}
