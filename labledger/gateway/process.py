"""The process of a gateway: one for a lab folder on a host, which outlives its clients.

It holds a lock on the folder, listens at the control socket, serves the open attempts, and ends
by itself when nobody has needed it for some minutes. Keys are in its memory alone: it leaves no
core dump, and other processes of the user cannot look into it.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from aiohttp import web

from labledger.errors import LabLedgerError
from labledger.files.durable_files import make_folder
from labledger.gateway.attempts import Attempts
from labledger.gateway.client import CONTROL, LOCK, LOG
from labledger.gateway.control import Control
from labledger.gateway.open_attempts import OpenAttempts
from labledger.gateway.pacing import PaceSettings
from labledger.gateway.unix_sockets import listen
from labledger.gateway.upstream import Upstream

_IDLE_S = 300.0
"""For how long it stays without open attempts and clients, in seconds."""
_LOOK_S = 5.0
_ATTEMPTS = "attempts.jsonl"
_MAX_LOG = 1 << 20
_FILES = 65_536
_PR_SET_DUMPABLE = 4
_log = logging.getLogger("labledger.gateway")


class GatewayRuns(LabLedgerError):
    """A gateway serves the lab folder already."""


def serve(
    folder: Path,
    started: Callable[[], None],
    *,
    settings: PaceSettings | None = None,
    idle_s: float = _IDLE_S,
) -> None:
    """Serve the gateway whose files are in `folder` until it is stopped or nobody needs it.

    `started` is called once it answers. Raises `GatewayRuns`, `LabLedgerError`, and `OSError`.
    """
    make_folder(folder)
    folder.chmod(0o700)
    with _locked(folder / LOCK):
        _harden()
        _log_to(folder / LOG)
        asyncio.run(_serve(folder, started, settings or PaceSettings(), idle_s))


async def _serve(
    folder: Path, started: Callable[[], None], settings: PaceSettings, idle_s: float
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(_log_exception)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    upstream = Upstream(settings)
    listed = OpenAttempts(folder / _ATTEMPTS)
    attempts = Attempts(listed, upstream)
    control = Control(attempts, upstream, stop)
    server = web.Server(control.handle, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    try:
        await attempts.take_up()
        await runner.setup()
        await web.SockSite(runner, listen(folder / CONTROL)).start()
        _log.info("the gateway serves %s attempts", len(attempts))
        started()
        await _until_unneeded(stop, attempts, control, idle_s)
    finally:
        (folder / CONTROL).unlink(missing_ok=True)
        await attempts.leave_all()
        await runner.cleanup()
        await upstream.close()
        listed.close()
        _log.info("the gateway has ended")


async def _until_unneeded(
    stop: asyncio.Event, attempts: Attempts, control: Control, idle_s: float
) -> None:
    """Return when the gateway is told to stop, or has nothing to do for some time."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LOOK_S, idle_s)):
                await stop.wait()
        if not len(attempts) and time.monotonic() - control.asked_at >= idle_s:
            return


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GatewayRuns(f"another gateway serves {path.parent}") from None
        yield
    finally:
        os.close(descriptor)


def _harden() -> None:
    """Keep keys out of core dumps and from other processes, and allow many connections."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_to(path: Path) -> None:
    """Log what the gateway does, but not what passes through it, in a bounded file."""
    handler = RotatingFileHandler(path, maxBytes=_MAX_LOG, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    # An HTTP library logs what it could not read.
    logging.getLogger("aiohttp").addHandler(logging.NullHandler())
    logging.getLogger("aiohttp").propagate = False
    logging.getLogger("asyncio").addHandler(logging.NullHandler())
    logging.getLogger("asyncio").propagate = False


def _log_exception(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    # Neither its message nor its traceback: they could show what was sent.
    error = context.get("exception")
    _log.error("unexpected: %s %s", context.get("message"), type(error).__name__)
