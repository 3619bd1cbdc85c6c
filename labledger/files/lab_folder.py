"""The lab folder, and labledger's other folders: the user's cache, and temporary folders.

The lab folder holds the ledger, the artifact store and the run folders. It is closed to other users
of the machine. A ledger on a network file system is refused, because SQLite's shared memory and
locks do not work between machines, and commits can be lost.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labledger.errors import InvalidInput, LedgerError, Problem
from labledger.files.durable_files import make_folder, sync_folder, write_file
from labledger.records import JsonObject
from labledger.records.canonical_json import sha256_hex

FOLDER = ".lab"
VARIABLE = "LABLEDGER_DIR"
SETTINGS_SCHEMA = "lab_settings_v1"
MAX_SETTINGS_BYTES = 1 << 20
"""The most bytes of a settings file that are read."""


@dataclass(frozen=True, slots=True)
class LabFolder:
    """The paths of one lab folder. They exist only after a run is created."""

    root: Path

    @classmethod
    def find(cls, given: Path | str | None = None) -> LabFolder:
        """Return the lab folder `given`, else `$LABLEDGER_DIR`, else the nearest `.lab` upwards.

        Without one upwards, return the folder that would be created in the working directory.
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
    def settings(self) -> Path:
        """The file of the lab's settings, which may be missing."""
        return self.root / "settings.yaml"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def benchmarks(self) -> Path:
        """The folder of translated benchmarks."""
        return self.root / "benchmarks"

    @property
    def builds(self) -> Path:
        """The folder of the logs of image builds."""
        return self.root / "builds"

    @property
    def gateway(self) -> Path:
        """The folder of the model gateway: its sockets, its log, and its list of attempts."""
        return self.root / "gateway"

    def run_folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def create(self) -> None:
        """Create the lab folder, closed to other users of this machine.

        A folder that was missing or empty becomes trusted: see `lab_trust`. A folder that other
        users could write to loses the user's trust, because they may have changed it.
        """
        is_new = self._make_root()
        with suppress(FileExistsError), (self.root / ".gitignore").open("xb") as ignore:
            ignore.write(b"*\n")
        if is_new:
            # Imported late: labs are created once.
            from labledger.files.lab_trust import trust_new

            trust_new(self)

    def _make_root(self) -> bool:
        """Create the lab folder if it is missing, and close it to other users.

        Return whether it is empty and belongs to this user.
        """
        make_folder(self.root.parent)
        try:
            self.root.mkdir(0o700)
        except FileExistsError:
            make_folder(self.root)  # Raises for anything except a folder.
            is_mine = self._close()
            return is_mine and next(self.root.iterdir(), None) is None
        self.root.chmod(0o700)  # The umask may have removed rights of this user.
        sync_folder(self.root.parent)
        return True

    def _close(self) -> bool:
        """Close the lab folder to other users, and return whether it belongs to this user."""
        # Imported late: labs are created once.
        from labledger.files import permissions

        status = self.root.stat()
        was_open = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        # Forget before closing, because this process may be killed in between. Forget again after
        # closing, because other users could restore the old mark until then.
        if was_open:
            permissions.forget_lab_folder(self.root)
        self.root.chmod(0o700)
        if was_open:
            permissions.forget_lab_folder(self.root)
        return status.st_uid == os.geteuid()

    def read_settings(self) -> JsonObject:
        """Return the settings of the lab, which are empty without a file.

        Unknown fields and versions are errors, so that a misspelled setting is not ignored. Raises
        `InvalidInput` with every problem of the file.
        """
        # Imported late: that module imports this one.
        from labledger.files.project_files import read_regular

        path = self.settings
        try:
            text = read_regular(path, MAX_SETTINGS_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            message = error.strerror or str(error)
            raise InvalidInput(f"cannot read {path}", [Problem(str(path), message)]) from error
        # Imported late: few labs have the file, and every command finds the lab.
        from labledger.records import json_schemas
        from labledger.records.bounded_yaml import NotYaml, load_yaml

        try:
            document: JsonObject = load_yaml(text)
        except NotYaml as error:
            raise InvalidInput(f"cannot read {path}", [Problem(str(path), str(error))]) from None
        if not isinstance(document, dict):
            # The file may be a secret instead of settings, so no message repeats its text.
            json_schemas.refuse_problems(path, [((), "expected a mapping")])
        json_schemas.refuse_problems(path, json_schemas.problems(document, SETTINGS_SCHEMA))
        return document


NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "beegfs", "glusterfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse"),
        *("gpfs", "fuse.ceph-fuse", "fuse.juicefs"),
        # Folders of the host in a virtual machine. WSL shows the drives of Windows as 9p.
        *("9p", "drvfs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse"),
    }
)
"""Linux names of the file systems to which several systems can write."""

MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network(path: Path) -> None:
    """Raise `LedgerError` if `path` is on a network file system.

    Without `mountinfo`, as on macOS, nothing is checked.
    """
    try:
        mounts = MOUNTS.read_text("utf-8", "surrogateescape")
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
            # A later mount on the same path hides the earlier one.
            depth, type_at_depth = len(mount.parts), after.split()[0]
    return type_at_depth


# -- the cache, and temporary folders


def read_cached(name: str) -> bytes | None:
    """Return the cached content of a name; None if it is missing, damaged or another user's.

    The name must contain a digest of everything that the content depends on.
    """
    top = cache_folder()
    if top is None:
        return None
    try:
        with (top / name).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            digest, _, content = file.read().partition(b"\n")
    except OSError:
        return None
    return content if digest == sha256_hex(content).encode() else None


def store_cached(name: str, content: bytes) -> None:
    """Cache content under a name, if possible. Only speed may depend on it."""
    top = cache_folder()
    if top is None:
        return
    try:
        write_file(top / name, sha256_hex(content).encode() + b"\n" + content)
    except OSError:
        return  # Without a cache, the caller computes the content again.


def expand_home(path: str) -> Path:
    """Return a path with a leading `~` or `~USER` replaced, if that user has a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cache_folder() -> Path | None:
    """Return labledger's folder in the user's cache; None if this user has no home folder."""
    try:
        top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(top) / "labledger"


_RANDOM = "[a-z0-9_]" * 8
"""The glob of the unique part of a name from `tempfile`."""


@contextmanager
def scratch_folder(purpose: str, place: Path | None = None) -> Iterator[Path]:
    """Yield a new empty folder in `place`, by default `$TMPDIR`, and remove it at the end.

    The folder is locked meanwhile. Folders of killed processes with the same `purpose`, which is a
    part of the name, are removed first. Raises `OSError`.
    """
    # Imported late: they take longer than a small query, and every command finds the lab.
    import shutil
    import tempfile

    root = place or Path(tempfile.gettempdir())
    prefix = f"labledger-{purpose}-"
    if place is not None:
        # Users have folders of their own there, whose names may begin in the same way.
        prefix = f".labledger-{purpose}-unfinished-"
    for path in root.glob(f"{prefix}{_RANDOM if place else '*'}"):
        _remove_if_abandoned(path)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        # Before it is locked, another process may remove it as abandoned.
        try:
            descriptor = _open_folder(path)
        except FileNotFoundError:
            continue
        _lock(descriptor, fcntl.LOCK_SH)
        if path.exists():
            break
        os.close(descriptor)
    # Do not yield the locked folder itself. Upgrading a ledger in it would wait for the lock.
    inner = path / "files"
    try:
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _remove_if_abandoned(path: Path) -> None:
    """Remove a folder if it belongs to this user and no process has locked it."""
    # Imported late: it takes longer than a small query, and every command finds the lab.
    import shutil

    with suppress(OSError):
        descriptor = _open_folder(path)
        try:
            is_mine = os.fstat(descriptor).st_uid == os.geteuid()
            if is_mine and _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock a folder. Return False if it is locked, or if the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True
