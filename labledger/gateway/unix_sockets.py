"""Unix sockets below folders of any depth.

The system allows about a hundred bytes for a socket's address. On Linux, a longer path is reached
through a descriptor of its folder. Elsewhere, the system reports an error.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_ADDRESS = 100


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address by which `path` can be bound or connected to. Raises `OSError`."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Return a connection to the socket at `path`. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with socket_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the listening process; None if the system does not report it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(user)


def listen(path: Path, *, for_all: bool = False) -> socket.socket:
    """Return a socket that listens at `path`, and replaces an existing file. Raises `OSError`.

    `for_all` lets every user who can reach the folder connect. Only the owner may write to it.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the mode of the descriptor, without the bits of the umask.
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(path) as address:
            listener.bind(address)
        if for_all:
            path.chmod(0o666)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
