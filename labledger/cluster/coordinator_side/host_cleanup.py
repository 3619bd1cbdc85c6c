"""Have hosts remove what attempts left whose results are durable here.

Each host lists the attempts of the run of which it has anything, the coordinator says which are
durable, and the host removes those. Used by the cluster executor before and after the slots of a
run are run, and by `labledger clean --on`, which may also have hosts forget attempts that are not
finished. A host that does not answer is left to the next cleanup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from labledger.cluster.coordinator_side.host_link import HostLink
from labledger.cluster.host_messages import (
    AttemptKey,
    CleanedUp,
    CleanUp,
    ForgetAttempts,
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
    sessions = _sessions(links)
    listed = list_attempts(connection, links, setup)
    orders: dict[str, CleanUp] = {}
    warnings = []
    for name, reply in listed.items():
        if isinstance(reply, LabLedgerError):
            warnings.append(f"{name} was not cleaned up: {reply}")
            continue
        if name not in sessions:
            continue
        durable = frozenset(key for key in reply if run.is_durable(*key))
        kept = frozenset(key for key in durable if run.keeps_folder(*key))
        # Also if nothing is left: the host then deletes what the run's trials shared.
        orders[name] = CleanUp(sessions[name], setup, durable, kept)
    for name, reply in _ask(connection, links, orders).items():
        if isinstance(reply, CleanedUp):
            warnings += [f"{name}: {warning}" for warning in reply.warnings]
        else:
            warnings.append(f"{name} was not cleaned up: {reply}")
    return warnings


def list_attempts(
    connection: ClusterConnection, links: Sequence[HostLink], setup: RunSetup
) -> dict[str, frozenset[AttemptKey] | LabLedgerError]:
    """Return the attempts of the run of which each host has anything, or why it did not say."""
    lists = {name: ListAttempts(session, setup) for name, session in _sessions(links).items()}
    return {
        name: reply.attempts if isinstance(reply, ListedAttempts) else reply
        for name, reply in _ask(connection, links, lists).items()
    }


def forget_attempts(
    connection: ClusterConnection,
    links: Sequence[HostLink],
    setup: RunSetup,
    keys: Mapping[str, frozenset[AttemptKey]],
    reason: str,
) -> list[str]:
    """Have hosts forget unfinished attempts of theirs, by host. Return a warning for each failure.

    These will be run again: what they have done is lost.
    """
    orders = {
        name: ForgetAttempts(session, setup, keys[name], reason)
        for name, session in _sessions(links).items()
        if keys.get(name)
    }
    warnings = []
    for name, reply in _ask(connection, links, orders).items():
        if isinstance(reply, CleanedUp):
            warnings += [f"{name}: {warning}" for warning in reply.warnings]
        else:
            warnings.append(f"{name} still has its unfinished attempts: {reply}")
    return warnings


def _sessions(links: Sequence[HostLink]) -> dict[str, str]:
    return {link.name: link.session for link in links if link.session is not None}


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
