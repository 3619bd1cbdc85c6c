"""A Dask worker that is a host: `labledger worker`, and the plugin for workers of a cluster class.

A Dask worker ends when it loses its scheduler. So the host's process owns the service, with its
running trials, and starts one Dask worker after another for it. In a cluster class, each worker
opens its own service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

import dask
from distributed import Security, Worker, WorkerPlugin

from labledger.hosts.dask_transport import quiet_dask
from labledger.hosts.host_service import HostService, HostSettings

PLUGIN_NAME = "labledger-host"
"""The name by which `dask_transport.answer` finds the plugin of a worker."""

_THREADS = 8
"""Dask's threads for requests. A waiting request frees its thread: see `dask_transport.answer`."""
_RESTART_S = 0.5
LESS_WATCHING = {
    # Dask's profiler reads the frames of other threads, which has crashed a worker on Python 3.11.
    "distributed.worker.profile.enabled": False,
    # By default, Dask checks fifty times a second whether its event loop is late.
    "distributed.admin.tick.interval": "1s",
}
"""Settings for every worker of a host, with which Dask observes less than by default."""
_DASK_SETTINGS = {
    **LESS_WATCHING,
    # Messages must not reach the disk, because they may hold secrets.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.daemon": False,
}


class HostPlugin(WorkerPlugin):
    """A plugin of a Dask worker that holds the service of its host. Pickled before `setup`."""

    name = PLUGIN_NAME

    def __init__(self, settings: HostSettings, service: HostService | None = None) -> None:
        self._settings = settings
        self._stack: ExitStack | None = None
        self.service = service

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Open the service, unless the worker's process already has one."""
        if self.service is None:
            self._stack = ExitStack()
            self.service = self._settings.open(self._stack)

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        """Leave running trials to the host's next worker, if this worker opened the service."""
        if self._stack is not None:
            self._stack.close()
            self.service = self._stack = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_stack": None, "service": None}


def serve(
    address: str,
    settings: HostSettings,
    security: Security | None,
    report: Callable[[str], None],
) -> None:
    """Serve this machine as a host of the cluster with a scheduler, until SIGINT or SIGTERM.

    `report` receives sentences for the user. Raises as `HostSettings.open` does.
    """
    quiet_dask(logging.WARNING)
    with ExitStack() as stack:
        service = settings.open(stack)
        report(f"serving host {service.identity.name} with {settings.slots} slots")
        be_worker = partial(_be_worker, address, service, settings, security, report)
        asyncio.run(_serve(be_worker))
        report("stopped; running containers continue, and the next worker collects them")


async def _serve(be_worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run one Dask worker after another until SIGINT or SIGTERM."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stop = asyncio.create_task(stopping.wait())
    while not stopping.is_set():
        work = asyncio.create_task(be_worker())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        if not stopping.is_set():
            await asyncio.wait({stop}, timeout=_RESTART_S)


async def _be_worker(
    address: str,
    service: HostService,
    settings: HostSettings,
    security: Security | None,
    report: Callable[[str], None],
) -> None:
    """Run a Dask worker until the scheduler is gone. Wait for the scheduler without end."""
    worker = None
    with dask.config.set(_DASK_SETTINGS):
        try:
            worker = Worker(
                address,
                nthreads=_THREADS,
                name=f"{service.identity.name}@{service.session}",
                security=security,
                port=settings.port or None,
                memory_limit=0,
                local_directory=str(service.folder / "dask"),
                plugins=(HostPlugin(settings, service),),
                dashboard=False,
                # Dask serves its figures without TLS, so serve them to this machine only.
                dashboard_address="127.0.0.1:0",
                death_timeout=None,
            )
            await worker
            report(f"connected to {address}")
            await worker.finished()  # type: ignore[no-untyped-call]
            report(f"the scheduler {address} is gone; waiting for it")
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            report(f"could not join {address}: {error}; trying again")
        finally:
            if worker is not None:
                with contextlib.suppress(Exception):
                    await worker.close(timeout=2, executor_wait=False, nanny=False)
