"""Process identity: which process owns a run, and whether that process is dead.

A process that is known to be dead loses its lease at once. Any other process keeps it until it
expires. Only processes of this machine, boot and process namespace can be known to be dead.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from labledger import clock
from labledger.host_programs import find_program
from labledger.ledger.database.run_info import LeaseInfo, Owner

DEFAULT_LEASE_TTL_S = 30.0
"""How long a lease lasts without a heartbeat, in seconds."""


def this_process() -> Owner:
    """Return the identity of this process."""
    return Owner(host=_host(), pid=os.getpid(), process_token=token_of_process(os.getpid()) or "")


def is_live(lease: LeaseInfo | None) -> bool:
    """Return whether a lease is valid and its holder may be alive."""
    return (
        lease is not None
        and lease.expires_at > clock.utc_now()
        and not process_is_dead(lease.owner)
    )


def process_is_dead(owner: Owner) -> bool:
    """Return True only if a process ran on this machine and has certainly ended.

    Its lease then need not expire first. A process on another machine, in another container, or one
    that is only suspended never counts as dead.
    """
    if owner.host != _host() or not owner.process_token or _is_hidden(owner.pid):
        return False
    return token_of_process(owner.pid) != owner.process_token


def machine_id() -> str:
    """Return this machine's id, which survives restarts; empty if unknown."""
    try:
        return read_text("/etc/machine-id")
    except (OSError, UnicodeDecodeError):
        return ""


def _host() -> str:
    """Return an identity of this machine, its current boot, and its process namespace."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(str(Path(path).readlink() if "ns" in path else read_text(path)))
        except OSError:
            continue
    return " ".join(parts)


def read_text(path: str) -> str:
    return Path(path).read_text("ascii").strip()


def _is_hidden(pid: int) -> bool:
    """Return whether a process may exist but be hidden from this one.

    Processes of other users can be hidden.
    """
    try:
        read_text(f"/proc/{pid}/stat")
    except PermissionError:
        return True
    except OSError:
        pass
    else:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return Path("/proc/self/stat").exists()
    return False


def token_of_process(pid: int) -> str | None:
    """Return the start time of a process, or None if there is no such process.

    A later process with the same id has another start time.
    """
    if Path("/proc/self/stat").exists():
        try:
            fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        except OSError:
            return None
        state, start_time = fields[0], fields[19]
        return None if state in "ZX" else start_time
    ps = subprocess.run(
        [find_program("ps") or "/bin/ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return ps.stdout.strip() or None
