"""Refuse a ledger on a network file system, on which WAL mode can lose commits.

SQLite's shared memory and locks do not work between machines. Used before a ledger is created,
upgraded or opened for writing, and by preflight.
"""

from __future__ import annotations

import re
from pathlib import Path

from labledger.errors import LedgerError

NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "beegfs", "glusterfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse"),
        *("gpfs", "fuse.ceph-fuse", "fuse.juicefs"),
        # Folders of the host in a virtual machine; WSL shows the drives of Windows as 9p.
        *("9p", "drvfs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse"),
    }
)
"""Types of file systems to which several systems can write, as Linux names them."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network(path: Path) -> None:
    """Raise `LedgerError` if `path` is on a network file system.

    Nothing is checked where there is no `mountinfo`, as on macOS.
    """
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    file_system = file_system_type(path, mounts)
    if file_system in NETWORK:
        raise LedgerError(
            f"{path} is on a network file system ({file_system}), where SQLite's shared memory and "
            "locks do not work between systems and commits can be lost",
            hint="keep the lab on a local disk of this system: `lab_dir=`, or LABLEDGER_DIR",
        )


def file_system_type(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that holds `path`, from the text of `mountinfo`."""
    absolute = path.absolute()
    depth, type_at_depth = 0, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if absolute.is_relative_to(mount) and len(mount.parts) >= depth:
            # Of two mounts on one path, the later hides the earlier.
            depth, type_at_depth = len(mount.parts), after.split()[0]
    return type_at_depth
