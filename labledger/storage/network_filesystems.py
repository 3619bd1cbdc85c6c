"""Where a ledger may lie: not on a network file system, on which WAL mode loses data."""

from __future__ import annotations

import re
from pathlib import Path

from labledger.errors import LedgerError

NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "beegfs", "glusterfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse"),
    }
)
"""File systems that several machines can write, as Linux names them."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network(path: Path) -> None:
    """Raise `LedgerError` where `path` lies on a network file system.

    Says nothing where the machine does not tell, as on macOS.
    """
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    kind = file_system(path, mounts)
    if kind in NETWORK:
        raise LedgerError(
            f"{path} lies on a network file system ({kind}), where SQLite's shared memory and "
            "locks do not hold between machines and commits can be lost",
            hint="keep the lab on a local disk: --lab-dir, or LABLEDGER_DIR",
        )


def file_system(path: Path, mounts: str) -> str | None:
    """The type of the file system that holds `path`, by the text of Linux's `mountinfo`."""
    place = path.absolute()
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        if place.is_relative_to(mount) and (found is None or len(mount.parts) >= found[0]):
            # Of two on one place, the later hides the earlier.
            found = (len(mount.parts), after.split()[0])
    return found[1] if found else None
