"""Which images hosts have, and what is removed from them after a run.

An image that no host has is pulled by one of them, and by the others when their first trial needs
it, which they compare by id. For a cleanup, each host lists the attempts of the run of which it has
anything, the coordinator says which of their results are durable, and the host removes those. A
host that does not answer is left to the next cleanup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labledger.errors import LabLedgerError
from labledger.execution.executor import RunRecords
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.host_messages import (
    AttemptKey,
    CleanedUp,
    CleanUp,
    FindImages,
    ForgetAttempts,
    FoundImages,
    ListAttempts,
    ListedAttempts,
    PulledImage,
    PullImage,
    RunSetup,
)
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable

_LOOKUP_S = 15.0
_HOSTS_THAT_TRY = 3
"""How many hosts try to pull an image before none is asked any more."""
_FIRST_POLL_S = 0.2
_MAX_POLL_S = 5.0
_MAX_FAILED_POLLS = 10


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that answers."""

    name: str
    address: str
    session: str


@dataclass(frozen=True, slots=True)
class ImagesOfHosts:
    """What the hosts have of some images."""

    ids: Mapping[str, Mapping[str, str]]
    """For each image, its ids by the names of the hosts that have it."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why an image that no host has could not be pulled."""


def find_images(
    connection: ClusterConnection, hosts: Sequence[AskedHost], refs: Iterable[str], *, pull: bool
) -> ImagesOfHosts:
    """Return which ids images have on hosts. With `pull`, hosts pull those that none has.

    Hosts that do not answer are left out. A pull may take as long as the host's engine tries.
    """
    lookup = _Lookup(connection, hosts)
    return connection.run(lookup.find(tuple(dict.fromkeys(refs)), pull=pull)).result()


@dataclass(slots=True)
class _Lookup:
    connection: ClusterConnection
    hosts: Sequence[AskedHost]

    async def find(self, refs: tuple[str, ...], *, pull: bool) -> ImagesOfHosts:
        ids: dict[str, dict[str, str]] = {ref: {} for ref in refs}
        replies = await asyncio.gather(*(self._ask(host, refs) for host in self.hosts))
        for host, of_host in zip(self.hosts, replies, strict=True):
            for ref, image in of_host.items():
                ids[ref][host.name] = image
        missing = [ref for ref in refs if not ids[ref]] if pull and self.hosts else []
        pulls = (self._pull(ref, number, ids[ref]) for number, ref in enumerate(missing))
        problems = await asyncio.gather(*pulls)
        failed = {ref: why for ref, why in zip(missing, problems, strict=True) if why is not None}
        return ImagesOfHosts(ids, failed)

    async def _ask(self, host: AskedHost, refs: tuple[str, ...]) -> Mapping[str, str]:
        try:
            request = FindImages(host.session, refs)
            reply: FoundImages = await self.connection.call(host.address, request, _LOOKUP_S)
        except LabLedgerError:
            return {}
        return reply.ids

    async def _pull(self, ref: str, number: int, ids: dict[str, str]) -> str | None:
        """Have a host pull an image, the next if it cannot. Return why none could, else None.

        Images that are missing together, each with a `number`, are pulled by different hosts.
        """
        first = number % len(self.hosts)
        problems = []
        for host in [*self.hosts[first:], *self.hosts[:first]][:_HOSTS_THAT_TRY]:
            try:
                ids[host.name] = await self._pull_on(host, ref)
            except LabLedgerError as error:
                problems.append(f"{host.name}: {error.message}")
            else:
                return None
        return "; ".join(problems)

    async def _pull_on(self, host: AskedHost, ref: str) -> str:
        """Return the id of an image that a host pulls. Raises `LabLedgerError` if it cannot."""
        poll_s, failures = _FIRST_POLL_S, 0
        while True:
            try:
                request = PullImage(host.session, ref)
                reply: PulledImage = await self.connection.call(host.address, request, _LOOKUP_S)
            except HostUnreachable:
                failures += 1
                if failures > _MAX_FAILED_POLLS:
                    raise
            else:
                if reply.image_id is not None:
                    return reply.image_id
                if reply.problem is not None:
                    raise LabLedgerError(reply.problem)
            await asyncio.sleep(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)


_CLEANUP_S = 30.0
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
            return await connection.call(link.address, requests[link.name], _CLEANUP_S)
        except LabLedgerError as error:
            return error

    asked = [link for link in links if link.name in requests]

    async def ask_all() -> list[Any]:
        return list(await asyncio.gather(*map(ask, asked)))

    replies = connection.run(ask_all()).result()
    return {link.name: reply for link, reply in zip(asked, replies, strict=True)}
