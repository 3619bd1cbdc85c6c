"""Dask as the transport: short tasks, each pinned to the worker of one host.

A task carries one request and its reply. Dask never holds a trial, so it may lose or repeat tasks
without harm. The transport reconnects for ever, with a new client if Dask gives up the old one.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from labledger.hosts.cluster_file import is_secure
from labledger.hosts.host_transport import HostUnreachable, NotAHost
from labledger.records import JsonObject
from labledger.resources import require_for

if TYPE_CHECKING:
    from distributed import Client, Security


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that belongs to no module, so that Dask sends its code."""
    original = cast("FunctionType", function)
    global_names = {"__builtins__": builtins}
    copy = FunctionType(original.__code__, global_names, original.__name__, original.__defaults__)
    copy.__module__ = "__main__"
    return copy


def answer(request: bytes) -> bytes:
    """Run on a worker, and return its host's answer to a request. Empty if the worker is no host.

    Dask sends this function by value, so that a scheduler needs no labledger. Therefore it imports
    everything itself, and uses no name of this module.
    """
    from distributed import get_worker, secede

    worker = get_worker()
    plugin: Any = worker.plugins.get("labledger-host")
    if plugin is None or plugin.service is None:
        return b""
    # The call may wait long, and must not occupy a thread of the worker meanwhile.
    secede()  # type: ignore[no-untyped-call]
    reply: bytes = plugin.service.answer(request)
    return reply


_CONNECT_TIMEOUT_S = 10
_FIRST_CONNECT_S = 30.0
"""How many seconds the first connection may take before the run is refused."""
_RETRY_S = 0.5
_MAX_NAME = 100
_ANSWER = by_value(answer)


def quiet_dask(level: int) -> None:
    """Have Dask log only messages of this level or above. Users cannot act on its other ones."""
    import distributed  # noqa: F401

    for name in [*logging.root.manager.loggerDict, "distributed"]:
        if name.partition(".")[0] in {"distributed", "tornado"}:
            logging.getLogger(name).setLevel(level)


def require_dask() -> None:
    """Raise `ExtraMissing` where Dask is not installed."""
    require_for("a cluster", "dask", "distributed", "msgpack")


def _host_of(worker_name: str) -> str:
    """Return the host in the name of a Dask worker, HOST@SESSION; empty for other names."""
    host, _, session = worker_name.partition("@")
    return host[:_MAX_NAME] if session else ""


class DaskTransport:
    """Reaches the workers of one scheduler. See `HostTransport`."""

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        start_cluster: Callable[[], Any] | None = None,
        plugin: Any = None,
        insecure: bool = False,
    ) -> None:
        """`start_cluster` starts a cluster that lives as long as the connection.

        Then `address` is only its name in messages, and `plugin` turns its workers into hosts.
        Workers without TLS on other machines are not used, unless `insecure`.
        """
        self._address = address
        self._security = security
        self._start_cluster = start_cluster
        self._plugin = plugin
        self._insecure = insecure
        self._cluster: Any = None
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last_error = f"no connection within {_FIRST_CONNECT_S:.0f} s"

    async def open(self) -> None:
        """Connect. Raises `HostUnreachable` if the scheduler does not answer for a while."""
        quiet_dask(logging.CRITICAL)
        if self._start_cluster is not None:
            self._cluster = await asyncio.to_thread(self._start_cluster)
        self._keeper = asyncio.create_task(self._keep_connected())
        try:
            await asyncio.wait_for(self._connected.wait(), _FIRST_CONNECT_S)
        except TimeoutError:
            raise HostUnreachable(
                f"the Dask scheduler at {self._address} does not answer: {self._last_error}",
                hint="start one (`dask scheduler`), or check address, firewall and certificates",
            ) from None

    async def _keep_connected(self) -> None:
        """Keep a client while the transport is open. Dask closes a client that fails too long."""
        from distributed import Client

        while True:
            client = None
            try:
                target = self._address if self._cluster is None else self._cluster.scheduler_address
                security = self._security
                if self._cluster is not None and security is None:
                    security = self._cluster.security
                client = await Client(  # type: ignore[no-untyped-call]
                    target,
                    asynchronous=True,
                    security=security,
                    timeout=_CONNECT_TIMEOUT_S,
                    set_as_default=False,
                    name="labledger",
                )
                if self._plugin is not None:
                    await client.register_plugin(self._plugin)
                self._client = client
                self._connected.set()
                while client.status in {"running", "connecting"}:
                    await asyncio.sleep(_RETRY_S)
            except Exception as error:
                # Only a new client may help, and no other code handles errors of this task.
                self._last_error = str(error) or type(error).__name__
            finally:
                self._client = None
                if client is not None:
                    with contextlib.suppress(Exception):
                        await client.close(timeout=1)
            await asyncio.sleep(_RETRY_S)

    async def addresses(self) -> Mapping[str, str]:
        client = self._running_client()
        try:
            assert client.scheduler is not None
            called = client.scheduler.identity()
            identity: JsonObject = await asyncio.wait_for(called, _CONNECT_TIMEOUT_S)
        except (AssertionError, OSError, TimeoutError) as error:
            raise HostUnreachable(f"the scheduler {self._address} does not answer") from error
        workers = identity["workers"].items()
        return {address: _host_of(str(worker.get("name", ""))) for address, worker in workers}

    async def call(self, address: str, request: bytes, timeout_s: float) -> bytes:
        from distributed.scheduler import KilledWorker

        if not (self._insecure or is_secure(address)):
            raise NotAHost(f"the worker at {address} would be reached without TLS")
        client = self._running_client()
        future = None
        try:
            future = client.submit(
                _ANSWER,
                request,
                workers=[address],
                allow_other_workers=False,
                retries=0,
                pure=False,
            )
            reply: bytes = await asyncio.wait_for(future, timeout_s)
        except (asyncio.CancelledError, TimeoutError, OSError, KilledWorker) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise HostUnreachable(f"the worker at {address} did not answer") from error
        except Exception as error:
            message = f"the worker at {address} could not be asked: {type(error).__name__}: {error}"
            raise HostUnreachable(message) from error
        finally:
            if future is not None:
                future.release()  # type: ignore[no-untyped-call]
        if not isinstance(reply, bytes):
            raise HostUnreachable(
                f"the worker at {address} sent a {type(reply).__name__}, which is no message"
            )
        if not reply:
            raise NotAHost(f"the Dask worker at {address} is no host of labledger")
        return reply

    def _running_client(self) -> Client:
        client = self._client
        if client is None or client.status != "running":
            raise HostUnreachable(f"the scheduler {self._address} does not answer")
        return client

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.close)
