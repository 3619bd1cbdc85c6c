"""The lab folder, which holds the ledger, the artifact store and the run folders.

Every command finds it in the same way: an explicit path, `LABLEDGER_DIR`, or the nearest `.lab`
folder upwards from the working directory. It is closed to other users of the machine. A ledger on a
network file system is refused before it is created, upgraded or opened for writing: SQLite's shared
memory and locks do not work between machines, and WAL mode can lose commits there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from labledger.errors import LedgerError
from labledger.files.durable_files import make_folder

FOLDER = ".lab"
VARIABLE = "LABLEDGER_DIR"


@dataclass(frozen=True, slots=True)
class LabFolder:
    """The paths of one lab folder. Nothing in it exists until a run is created."""

    root: Path

    @classmethod
    def find(cls, given: Path | str | None = None) -> LabFolder:
        """Return the lab folder `given`, else `$LABLEDGER_DIR`, else the nearest `.lab` upwards.

        If there is none upwards, return the one that would be created in the working directory.
        """
        if given is not None:
            return cls(Path(given).absolute())
        if from_environment := os.environ.get(VARIABLE):
            return cls(Path(from_environment).absolute())
        working_dir = Path.cwd()
        for folder in (working_dir, *working_dir.parents):
            if (folder / FOLDER).is_dir():
                return cls(folder / FOLDER)
        return cls(working_dir / FOLDER)

    @property
    def existing(self) -> Path:
        """The nearest existing path: the lab folder itself, or a folder above it."""
        return next(path for path in (self.root, *self.root.parents) if os.access(path, os.F_OK))

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def benchmarks(self) -> Path:
        """The folder of the experiments that benchmarks were translated to."""
        return self.root / "benchmarks"

    @property
    def builds(self) -> Path:
        """The folder of the logs of images that were built."""
        return self.root / "builds"

    def run_folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def create(self) -> None:
        """Create the lab folder, closed to other users of this machine."""
        make_folder(self.root)
        self.root.chmod(0o700)
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")


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
