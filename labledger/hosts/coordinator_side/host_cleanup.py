"""Find and pull images on hosts, and remove the remains of a run from hosts.

One host pulls an image that no host has; the others pull it for their first trial and compare the
id. In a cleanup, each host lists its attempts of the run, and removes those with durable results.
The next cleanup repeats what failed.
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
"""How many hosts try to pull an image before the coordinator gives up."""
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
    """The ids of images on hosts, and the problems of pulls."""

    ids: Mapping[str, Mapping[str, str]]
    """For each image, its ids by the names of the hosts that have it."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why an image that no host has could not be pulled."""


def find_images(
    connection: ClusterConnection, hosts: Sequence[AskedHost], refs: Iterable[str], *, pull: bool
) -> ImagesOfHosts:
    """Return the ids of images on hosts. With `pull`, hosts pull images that no host has.

    Hosts that do not answer are left out. A pull may take as long as the host's engine tries.
    """
    names = tuple(dict.fromkeys(refs))
    ids: dict[str, dict[str, str]] = {ref: {} for ref in names}
    requests = {host: FindImages(host.session, names) for host in hosts}
    for name, reply in _ask(connection, requests, _LOOKUP_S).items():
        if isinstance(reply, FoundImages):
            for ref in names:
                if (image := reply.ids.get(ref)) is not None:
                    ids[ref][name] = image
    missing = [ref for ref in names if not ids[ref]] if pull and hosts else []
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
        """Have one host after the other try to pull an image. Return why all failed, else None.

        `number` spreads several missing images over different hosts.
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
"""How many seconds the coordinator waits. A host that takes longer continues alone."""


def clean_up_hosts(
    connection: ClusterConnection, hosts: Sequence[AskedHost], setup: RunSetup, run: RunRecords
) -> list[str]:
    """Remove the remains of durable attempts from hosts. Return a warning for each failure."""
    listed = list_attempts(connection, hosts, setup)
    orders, warnings = {}, []
    for host in hosts:
        attempts = listed[host.name]
        if isinstance(attempts, LabLedgerError):
            warnings.append(f"{host.name} was not cleaned up: {attempts}")
            continue
        durable = frozenset(key for key in attempts if run.is_durable(*key))
        kept = frozenset(key for key in durable if run.keeps_folder(*key))
        # Without attempts too: the host then deletes the files that the run's trials shared.
        orders[host] = CleanUp(host.session, setup, durable, kept)
    return warnings + _order(connection, orders, "was not cleaned up")


def list_attempts(
    connection: ClusterConnection, hosts: Sequence[AskedHost], setup: RunSetup
) -> dict[str, frozenset[AttemptKey] | LabLedgerError]:
    """Return the attempts of the run that each host has files or containers of, or its error."""
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
    """Have hosts forget their unfinished attempts. Return a warning for each failure.

    The attempts will run again, and their work so far is lost.
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
    """Send orders that `CleanedUp` answers. Return the hosts' warnings, and one per failed host."""
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
    """Return the reply or the error of each host for its request, by the host's name."""
    by_address = {host.address: request for host, request in requests.items()}
    replies = connection.run(connection.call_all(by_address, timeout_s)).result()
    return {host.name: replies[host.address] for host in requests}
