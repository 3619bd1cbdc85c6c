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

from labledger.clock import Backoff
from labledger.errors import LabLedgerError
from labledger.execution.executor import RunRecords
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
    asked = tuple(dict.fromkeys(refs))
    ids: dict[str, dict[str, str]] = {ref: {} for ref in asked}
    requests = {host: FindImages(host.session, asked) for host in hosts}
    for name, reply in _ask(connection, requests, _LOOKUP_S).items():
        if isinstance(reply, FoundImages):
            for ref in asked:
                if (image := reply.ids.get(ref)) is not None:
                    ids[ref][name] = image
    missing = [ref for ref in asked if not ids[ref]] if pull and hosts else []
    pulls = _Pulls(connection, hosts).pull_all(missing, ids)
    return ImagesOfHosts(ids, connection.run(pulls).result())


@dataclass(slots=True)
class _Pulls:
    connection: ClusterConnection
    hosts: Sequence[AskedHost]

    async def pull_all(
        self, missing: Sequence[str], ids: Mapping[str, dict[str, str]]
    ) -> dict[str, str]:
        """Have hosts pull images, and add their ids. Return why some could not be pulled."""
        pulls = (self._pull(ref, number, ids[ref]) for number, ref in enumerate(missing))
        problems = await asyncio.gather(*pulls)
        return {ref: why for ref, why in zip(missing, problems, strict=True) if why is not None}

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
        backoff, failures = Backoff(_FIRST_POLL_S, _MAX_POLL_S), 0
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
            await asyncio.sleep(backoff.next_s())


_CLEANUP_S = 30.0
"""How long the coordinator waits. A host that takes longer goes on by itself."""


def clean_up_hosts(
    connection: ClusterConnection, hosts: Sequence[AskedHost], setup: RunSetup, run: RunRecords
) -> list[str]:
    """Remove what durable attempts left on hosts. Return a warning for each that failed."""
    listed = list_attempts(connection, hosts, setup)
    orders, warnings = {}, []
    for host in hosts:
        attempts = listed[host.name]
        if isinstance(attempts, LabLedgerError):
            warnings.append(f"{host.name} was not cleaned up: {attempts}")
            continue
        durable = frozenset(key for key in attempts if run.is_durable(*key))
        kept = frozenset(key for key in durable if run.keeps_folder(*key))
        # Also if nothing is left: the host then deletes what the run's trials shared.
        orders[host] = CleanUp(host.session, setup, durable, kept)
    return warnings + _order(connection, orders, "was not cleaned up")


def list_attempts(
    connection: ClusterConnection, hosts: Sequence[AskedHost], setup: RunSetup
) -> dict[str, frozenset[AttemptKey] | LabLedgerError]:
    """Return the attempts of the run of which each host has anything, or why it did not say."""
    requests = {host: ListAttempts(host.session, setup) for host in hosts}
    return {
        name: reply.attempts if isinstance(reply, ListedAttempts) else reply
        for name, reply in _ask(connection, requests, _CLEANUP_S).items()
    }


def forget_attempts(
    connection: ClusterConnection,
    hosts: Sequence[AskedHost],
    setup: RunSetup,
    keys: Mapping[str, frozenset[AttemptKey]],
    reason: str,
) -> list[str]:
    """Have hosts forget unfinished attempts of theirs, by host. Return a warning for each failure.

    These will be run again: what they have done is lost.
    """
    orders = {
        host: ForgetAttempts(host.session, setup, keys[host.name], reason)
        for host in hosts
        if keys.get(host.name)
    }
    return _order(connection, orders, "still has its unfinished attempts")


def _order(
    connection: ClusterConnection, orders: Mapping[AskedHost, object], failure: str
) -> list[str]:
    """Have hosts carry out what `CleanedUp` answers. Return their warnings, and who failed."""
    warnings = []
    for name, reply in _ask(connection, orders, _CLEANUP_S).items():
        if isinstance(reply, CleanedUp):
            warnings += [f"{name}: {warning}" for warning in reply.warnings]
        else:
            warnings.append(f"{name} {failure}: {reply}")
    return warnings


def _ask(
    connection: ClusterConnection, requests: Mapping[AskedHost, object], timeout_s: float
) -> dict[str, Any]:
    """Return the reply of each host to its request, or the error instead, by the host's name."""
    by_address = {host.address: request for host, request in requests.items()}
    replies = connection.run(connection.call_all(by_address, timeout_s)).result()
    return {host.name: replies[host.address] for host in requests}
