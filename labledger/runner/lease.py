"""Who owns a run: the identity of this process, and whether another one is still alive."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from labledger.ledger.model import LeaseInfo, Owner

TTL_S = 30.0
"""How long a lease lasts without a heartbeat, in seconds."""


def this_process() -> Owner:
    return Owner(host=_host(), pid=os.getpid(), process_token=_token(os.getpid()) or "")


def holder_is_dead(holder: LeaseInfo) -> bool:
    """True only when the holder ran on this machine and provably runs no more."""
    return is_dead(holder.owner)


def is_dead(owner: Owner) -> bool:
    """True only when a process ran on this machine and provably runs no more.

    Then its lease need not expire first. A process on another machine, in another container, or
    one that was merely suspended is never taken for dead.
    """
    if owner.host != _host() or not owner.process_token:
        return False
    return _token(owner.pid) != owner.process_token


def _host() -> str:
    """This machine since its last boot, and the namespace in which its process ids hold."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(str(Path(path).readlink() if "ns" in path else _text(path)))
        except OSError:
            continue
    return " ".join(parts)


def _text(path: str) -> str:
    return Path(path).read_text("ascii").strip()


def _token(pid: int) -> str | None:
    """What tells a process from a later one with the same id; None when there is none."""
    if Path("/proc/self/stat").exists():
        try:
            fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    listed = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip() or None
