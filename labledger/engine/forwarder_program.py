"""The program of a models helper: it forwards a port of a trial's loopback to the gateway's socket.

It runs as `python3 -c` with the standard library of Python 3.11. A child forwards bytes unchanged,
and is replaced if it dies. When `trial.sh` says that the agent has ended, the program closes the
port.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from labledger.engine.relay import BUFFER, Streams, relay_both

MAX_CONNECTIONS = 128
"""How many connections are forwarded at once; others wait."""
_POLL_S = 0.1
"""Seconds between two checks whether the agent has ended."""
_GATEWAY_TIMEOUT_S = 120.0
"""How long a connection waits for a gateway that does not answer, in seconds."""
_RETRY_S = 0.1
_SOCKET_BYTES = 128 << 10
"""The kernel's buffer for each direction of a connection, in bytes."""


class Door(NamedTuple):
    """Where the program listens, and the files that control when it stops."""

    port: int
    gateway: str
    """The gateway's socket."""
    agent_over: Path
    """A file that `trial.sh` changes when the agent has ended. The trial cannot undo this, because
    no process can set the time of such a change."""
    closed: Path
    """A file that gets a line when the port is closed."""


def run(door: Door) -> None:
    """Forward until the agent has ended, close the port, and wait for removal."""
    listener = socket.create_server(("127.0.0.1", door.port), backlog=MAX_CONNECTIONS)
    unchanged = _change_time(door.agent_over)
    print(json.dumps({"what": "listening"}), flush=True)
    child = 0
    while _change_time(door.agent_over) == unchanged:
        if child and os.waitpid(child, os.WNOHANG) != (0, 0):
            print(json.dumps({"what": "replaced"}), flush=True)
            child = 0
        if not child:
            child = _start(listener, door.gateway)
        time.sleep(_POLL_S)
    listener.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    door.closed.write_text("closed\n", "ascii")
    while True:
        signal.pause()


def _change_time(path: Path) -> int:
    return path.stat().st_ctime_ns


def _start(listener: socket.socket, gateway: str) -> int:
    """Start a forwarding process, and return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(_forward_all(listener, gateway))
    finally:
        os._exit(1)


async def _forward_all(listener: socket.socket, gateway: str) -> None:
    listener.setblocking(False)
    free, running = asyncio.Semaphore(MAX_CONNECTIONS), set()
    while True:
        await free.acquire()
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        task = asyncio.ensure_future(_forward(connection, gateway))
        running.add(task)
        task.add_done_callback(running.discard)
        task.add_done_callback(lambda _: free.release())


async def _forward(connection: socket.socket, gateway: str) -> None:
    """Forward one connection to its end."""
    with connection, suppress(OSError):
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = await _connect(gateway)
        try:
            client = await asyncio.open_connection(sock=connection, limit=BUFFER)
            try:
                await relay_both(client, server)
            finally:
                client[1].close()
        finally:
            server[1].close()


async def _connect(gateway: str) -> Streams:
    """Connect to the gateway. Raises `OSError` if it does not answer in time."""
    gives_up = time.monotonic() + _GATEWAY_TIMEOUT_S
    while True:
        try:
            return await asyncio.open_unix_connection(gateway, limit=BUFFER)
        except OSError:
            if time.monotonic() > gives_up:
                raise
            await asyncio.sleep(_RETRY_S)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run(Door(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
