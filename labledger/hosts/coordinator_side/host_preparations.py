"""Prepare hosts for the agents of a run: keys of models, and the files of installed agents.

A host that is not prepared gets nothing placed. Each new process of a host is prepared again. Files
that a host does not have are sent as a tar, which lies among the coordinator's artifacts meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from labledger import clock
from labledger.agents.agent_trees import tar_of_tree
from labledger.clock import Backoff
from labledger.errors import LabLedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.hosts.coordinator_side.host_discovery import RETRY_S, ClusterState
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.coordinator_side.input_supply import InputSupply
from labledger.hosts.coordinator_side.store_relay import TransferThreads
from labledger.hosts.host_messages import HostRefused, PreparedRun, PrepareRun, WrongSession
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.records.model_grants import KeySource

_CALL_TIMEOUT_S = 300.0
"""A host unpacks and compares the files of agents, and starts a gateway."""
_MAX_RETRY_S = 10.0


class HostPreparation:
    """Prepares the hosts of one run."""

    def __init__(
        self,
        connection: ClusterConnection,
        store: ArtifactStore,
        state: ClusterState,
        inputs: InputSupply,
        keys: Mapping[KeySource, str],
    ) -> None:
        self._connection = connection
        self._store = store
        self._state = state
        self._inputs = inputs
        self._keys = tuple(keys.items())
        self._agents = {each.tree_sha256: each for each in state.setup.agents}
        self._tars: dict[str, asyncio.Task[str]] = {}
        """The digests of the tars that were made, by `tree_sha256`."""
        self._threads = TransferThreads("agent-tars", 1)

    async def keep_prepared(self, link: HostLink) -> None:
        """Prepare each process that the host has, for as long as the run lasts."""
        backoff = Backoff(RETRY_S, _MAX_RETRY_S)
        while True:
            with self._state.lock:
                address, session = link.address, link.session
                is_due = link.lost_because is None and not link.is_ready
            if not is_due or address is None or session is None:
                await asyncio.sleep(RETRY_S / 2)
                continue
            problem = None
            try:
                await self._prepare(link, address, session)
            except (HostUnreachable, WrongSession):
                await asyncio.sleep(RETRY_S)
                continue
            except (LabLedgerError, OSError) as error:
                problem = str(error)
            self._record(link, session, problem)
            if problem is None:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _prepare(self, link: HostLink, address: str, session: str) -> None:
        if self._keys and not address.startswith("tls://"):
            raise HostRefused(f"keys are sent by TLS alone, and its worker is at {address}")
        tars: dict[str, str] = {}
        while True:
            request = PrepareRun(session, self._state.setup, self._keys, tars)
            reply: PreparedRun = await self._connection.call(address, request, _CALL_TIMEOUT_S)
            if reply.problem is not None:
                raise HostRefused(reply.problem)
            if not reply.missing:
                return
            if tars.keys() >= set(reply.missing):
                raise HostRefused("it lacks the files of agents that it was sent")
            for digest in reply.missing:
                tars[digest] = await self._tar(digest)
            await self._inputs.provide(link, frozenset(tars.values()), {})
            # Once unpacked they are gone there: another process may ask for them again.
            link.known_inputs.difference_update(tars.values())
            self._state.blocked.record_activity()

    async def _tar(self, tree_sha256: str) -> str:
        """Return the digest of a tar of an agent's files, which is among the artifacts."""
        if (agent := self._agents.get(tree_sha256)) is None:
            raise HostRefused("it asks for files that the run has not")
        task = self._tars.get(tree_sha256)
        is_gone = (
            task is not None
            and task.done()
            and (task.exception() or not self._store.contains(task.result()))
        )
        if task is None or is_gone:
            making = self._threads.run(self._make_tar, agent.folder)
            task = self._tars[tree_sha256] = asyncio.create_task(making)
        return await asyncio.shield(task)

    def _make_tar(self, folder: Path) -> str:
        return self._store.put_stream(tar_of_tree(folder))[0]

    def _record(self, link: HostLink, session: str, problem: str | None) -> None:
        with self._state.lock:
            if link.session != session:
                return
            if problem is not None and link.preparation_problem is None:
                link.blocked_since = clock.monotonic()
            link.is_prepared, link.preparation_problem = problem is None, problem
            self._state.host_capacity.update(link)
        if problem is not None:
            self._state.tell(f"{link.name}: {problem}")

    def close(self) -> None:
        """Make no further tar, and delete those that were made."""
        self._threads.close()
        for task in self._tars.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                self._store.path(task.result()).unlink(missing_ok=True)
