"""The simulated disks: writes fail on request, and a power cut loses unsynced data.

Files are real, in a folder in memory. SQLite writes through the usual VFS with other methods for
writing, syncing, locking and sleeping. `os.fsync` notes the syncs of Python code. `lose_power`
undoes unsynced writes, names and files by chance, and tears some of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.scheduler import Process, world

_OK, _BUSY, _IOERR, _FULL = 0, 5, 10, 13
_IOERR_WRITE, _IOERR_FSYNC, _IOERR_TRUNCATE = (_IOERR | (code << 8) for code in (3, 4, 6))
_UNLOCK, _LOCK, _EXCLUSIVE = 1, 2, 8
_WRITE_LOCK = 0
"""The number of the lock for writing among those in the shared memory of a log."""
_SECTOR = 512
_PAGE = 4096
_LEDGER = frozenset({"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"})
"""Files whose writes are noted one by one, and which exist as long as their ledger."""


class _Methods(Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = [
        ("iVersion", c_int),
        ("xClose", CFUNCTYPE(c_int, c_void_p)),
        ("xRead", c_void_p),
        ("xWrite", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)),
        ("xTruncate", CFUNCTYPE(c_int, c_void_p, c_int64)),
        ("xSync", CFUNCTYPE(c_int, c_void_p, c_int)),
        ("xFileSize", c_void_p),
        ("xLock", CFUNCTYPE(c_int, c_void_p, c_int)),
        ("xUnlock", CFUNCTYPE(c_int, c_void_p, c_int)),
        ("xCheckReservedLock", c_void_p),
        ("xFileControl", c_void_p),
        ("xSectorSize", c_void_p),
        ("xDeviceCharacteristics", c_void_p),
        ("xShmMap", c_void_p),
        ("xShmLock", CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)),
        ("xShmBarrier", c_void_p),
        ("xShmUnmap", CFUNCTYPE(c_int, c_void_p, c_int)),
        ("xFetch", c_void_p),
        ("xUnfetch", c_void_p),
    ]


class _File(Structure):
    _fields_ = [("methods", POINTER(_Methods))]


_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
# SQLite stores more behind a name in memory, so the name is passed on as a pointer.
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_SLEEP = CFUNCTYPE(c_int, c_void_p, c_int)
_RANDOM = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
_TIME = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))


class _Vfs(Structure):
    """`sqlite3_vfs`, version 3."""


_Vfs._fields_ = [
    ("iVersion", c_int),
    ("szOsFile", c_int),
    ("mxPathname", c_int),
    ("pNext", c_void_p),
    ("zName", c_char_p),
    ("pAppData", c_void_p),
    ("xOpen", _OPEN),
    ("xDelete", _DELETE),
    ("xAccess", c_void_p),
    ("xFullPathname", c_void_p),
    ("xDlOpen", c_void_p),
    ("xDlError", c_void_p),
    ("xDlSym", c_void_p),
    ("xDlClose", c_void_p),
    ("xRandomness", _RANDOM),
    ("xSleep", _SLEEP),
    ("xCurrentTime", c_void_p),
    ("xGetLastError", c_void_p),
    ("xCurrentTimeInt64", _TIME),
    ("xSetSystemCall", c_void_p),
    ("xGetSystemCall", c_void_p),
    ("xNextSystemCall", c_void_p),
]


@dataclass(slots=True)
class _OpenFile:
    """A file that a process has open through SQLite."""

    path: str
    process: Process
    pointer: int
    shared: int = 0
    exclusive: int = 0
    """Bit masks of its locks in the shared memory."""
    descriptor: int = -1


@dataclass(slots=True)
class _Write:
    """An unsynced write, with the bytes that it replaced."""

    offset: int
    before: bytes
    after: bytes
    size: int
    """The size of the file before."""


@dataclass
class Disk:
    """The disk of a machine, below one folder."""

    root: Path
    prefix: str = ""
    """The same folder, as text."""
    is_full: bool = False
    locked_until: float = 0.0
    """Until when SQLite's lock for writing is held, as if by another program."""
    before: Callable[[str], None] = lambda _kind: None
    """Called with the kind of each operation that can fail, before it happens."""
    fails_at: dict[str, int] = field(default_factory=dict)
    """Kinds of operation, and how many of them succeed before one fails with EIO."""
    steps_after_failure: int | None = None
    """How many steps after the next EIO its process dies; None if it lives on."""
    unsynced: dict[str, list[_Write]] = field(default_factory=dict)
    """The writes of SQLite since the last sync, by path."""
    dropped: dict[str, list[_Write]] = field(default_factory=dict)
    """The writes of SQLite whose sync failed, by path.

    As on Linux, the next sync ignores them, and only writing them again stores them.
    """
    rewritten: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The ranges of such files that Python code wrote again since the last sync."""
    dropped_contents: dict[int, bytes] = field(default_factory=dict)
    """The contents of other files when a sync of them failed, by inode. They are lost, too."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """The durable content of each file that was synced, by inode."""
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    """The durable entries of each folder that was synced: names and inodes."""

    def __post_init__(self) -> None:
        self.prefix = str(self.root)

    def fails(self, kind: str) -> bool:
        successes_left = self.fails_at.get(kind)
        if successes_left is None:
            return False
        if successes_left > 0:
            self.fails_at[kind] = successes_left - 1
            return False
        del self.fails_at[kind]
        if self.steps_after_failure is not None:
            process = world().current.process
            process.dies_at = process.steps + self.steps_after_failure
            self.steps_after_failure = None
        return True

    def forget_dropped(self, path: str, start: int, end: int) -> None:
        """Note that a part of a file is written again or cut off."""
        if path in self.dropped:
            self.dropped[path] = [
                write
                for write in self.dropped[path]
                if write.offset >= end or write.offset + len(write.after) <= start
            ]

    def note_rewritten(self, path: str, start: int, content: bytes) -> None:
        """Note that Python code writes the present content of a ledger's file again."""
        if os.path.basename(path) in _LEDGER:
            with open(path, "rb") as file:
                file.seek(start)
                assert file.read(len(content)) == content, f"{path} is changed behind SQLite"
            self.rewritten.setdefault(path, []).append((start, start + len(content)))

    def sync_ledger(self, path: str, *, fails: bool) -> None:
        """Note that a file of a ledger was synced, or that its sync dropped the content."""
        writes = self.unsynced.pop(path, [])
        rewritten = self.rewritten.pop(path, [])
        if fails:
            self.dropped.setdefault(path, []).extend(writes)
            return
        for start, end in rewritten:
            self.forget_dropped(path, start, end)

    def stored(self, inode: int, content: bytes) -> bytes:
        """Return the durable content after a sync: everything that no earlier sync dropped."""
        dropped, before = self.dropped_contents.get(inode), self.contents.get(inode, b"")
        if dropped is None:
            return content
        pages = []
        for start in range(0, len(content), _PAGE):
            page, end = content[start : start + _PAGE], start + _PAGE
            is_dropped = page == dropped[start:end] != before[start:end]
            pages.append(before[start:end].ljust(len(page), b"\0") if is_dropped else page)
        return b"".join(pages)


class Disks:
    """Every disk of a world, and the files that SQLite has open on them."""

    def __init__(self) -> None:
        self.disks: list[Disk] = []
        self.open: dict[int, _OpenFile] = {}
        self.flocks: dict[Process, set[int]] = {}

    def of(self, path: str | os.PathLike[str]) -> Disk | None:
        text = os.fspath(path)
        for disk in self.disks:
            if text.startswith(disk.prefix):
                return disk
        return None

    def forget(self, process: Process) -> None:
        """Free the locks of a process that has died, as its kernel does."""
        vfs = _installed
        assert vfs is not None
        for pointer, file in list(self.open.items()):
            if file.process is not process:
                continue
            vfs.drop(pointer, file)
            del self.open[pointer]
        for descriptor in self.flocks.pop(process, ()):
            with_suppressed(lambda fd=descriptor: _REAL_FLOCK(fd, fcntl.LOCK_UN))


def with_suppressed(act: Callable[[], object]) -> None:
    try:
        act()
    except OSError:
        return


class _SimulatedVfs:
    """SQLite's file system with other methods, registered as the default."""

    def __init__(self) -> None:
        self.library = _library()
        self.library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self.library.sqlite3_vfs_find.argtypes = [c_char_p]
        self.library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
        self.usual = self.library.sqlite3_vfs_find(None)
        self.vfs = _Vfs()
        ctypes.memmove(ctypes.byref(self.vfs), self.usual, ctypes.sizeof(_Vfs))
        self.vfs.zName = b"simulated"
        self.vfs.pNext = None
        self._usual_open = _OPEN(self._address(self.usual.contents.xOpen))
        self._usual_delete = _DELETE(self._address(self.usual.contents.xDelete))
        self.vfs.xOpen = _OPEN(self._open)
        self.vfs.xDelete = _DELETE(self._delete)
        self.vfs.xSleep = _SLEEP(self._sleep)
        self.vfs.xRandomness = _RANDOM(self._randomness)
        self.vfs.xCurrentTimeInt64 = _TIME(self._time)
        self._tables: dict[int, tuple[_Methods, _Methods]] = {}
        """The usual and the simulated methods, by the address of the usual ones."""
        self._by_file: dict[int, _Methods] = {}
        """The usual methods of each open file."""
        self.disks = Disks()
        if self.library.sqlite3_vfs_register(ctypes.byref(self.vfs), 1) != _OK:
            raise RuntimeError("SQLite did not take another VFS")

    @staticmethod
    def _address(function: Any) -> int:
        return int(ctypes.cast(function, c_void_p).value or 0)

    # -- opening and closing

    def _open(self, _vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        path = "" if name is None else ctypes.string_at(name).decode()
        disk = self.disks.of(path)
        if disk is not None:
            world().point("open", os.path.basename(path))
        result = int(self._usual_open(self._address_of_usual(), name, file, flags, out))
        if result != _OK or disk is None:
            return result
        handle = _File.from_address(file)
        address = ctypes.addressof(handle.methods.contents)
        if address not in self._tables:
            usual = _Methods()
            ctypes.memmove(ctypes.byref(usual), address, ctypes.sizeof(_Methods))
            self._tables[address] = (usual, self._simulated(usual))
        usual, simulated = self._tables[address]
        self._by_file[file] = usual
        self.disks.open[file] = _OpenFile(path, world().current.process, file)
        handle.methods = ctypes.pointer(simulated)
        return _OK

    def _address_of_usual(self) -> int:
        return ctypes.addressof(self.usual.contents)

    def _simulated(self, usual: _Methods) -> _Methods:
        methods = _Methods()
        ctypes.memmove(ctypes.byref(methods), ctypes.byref(usual), ctypes.sizeof(_Methods))
        types = dict(_Methods._fields_)
        for name in ("xClose", "xWrite", "xTruncate", "xSync", "xShmLock", "xShmUnmap"):
            if name.startswith("xShm") and usual.iVersion < 2:
                continue
            setattr(methods, name, types[name](getattr(self, f"_{name}")))
        return methods

    def _xClose(self, file: int) -> int:
        usual = self._by_file.pop(file)
        opened = self.disks.open.pop(file, None)
        if opened is not None and opened.descriptor >= 0:
            os.close(opened.descriptor)
        return int(usual.xClose(file))

    def drop(self, pointer: int, file: _OpenFile) -> None:
        """Free the locks of a file whose process has died."""
        usual = self._by_file[pointer]
        if usual.iVersion >= 2:
            for bit in range(8):
                if file.shared & (1 << bit):
                    usual.xShmLock(pointer, bit, 1, _UNLOCK | 4)
                if file.exclusive & (1 << bit):
                    usual.xShmLock(pointer, bit, 1, _UNLOCK | _EXCLUSIVE)
            usual.xShmUnmap(pointer, 0)
        usual.xUnlock(pointer, 0)
        usual.xClose(pointer)
        if file.descriptor >= 0:
            os.close(file.descriptor)

    # -- writing

    def _xWrite(self, file: int, content: int, size: int, offset: int) -> int:
        opened = self.disks.open[file]
        disk = self.disks.of(opened.path)
        assert disk is not None
        world().point("write", os.path.basename(opened.path))
        disk.before("write")
        if disk.is_full:
            return _FULL
        if disk.fails("write"):
            return _IOERR_WRITE
        if opened.descriptor < 0:
            opened.descriptor = os.open(opened.path, os.O_RDONLY)
        length = os.fstat(opened.descriptor).st_size
        before = os.pread(opened.descriptor, size, offset)
        after = ctypes.string_at(content, size)
        disk.unsynced.setdefault(opened.path, []).append(_Write(offset, before, after, length))
        disk.forget_dropped(opened.path, offset, offset + size)
        return int(self._by_file[file].xWrite(file, content, size, offset))

    def _xTruncate(self, file: int, size: int) -> int:
        opened = self.disks.open[file]
        disk = self.disks.of(opened.path)
        assert disk is not None
        world().point("truncate", os.path.basename(opened.path))
        disk.before("truncate")
        if disk.fails("truncate"):
            return _IOERR_TRUNCATE
        if opened.descriptor < 0:
            opened.descriptor = os.open(opened.path, os.O_RDONLY)
        length = os.fstat(opened.descriptor).st_size
        before = os.pread(opened.descriptor, max(length - size, 0), size)
        disk.unsynced.setdefault(opened.path, []).append(_Write(size, before, b"", length))
        disk.forget_dropped(opened.path, size, length)
        return int(self._by_file[file].xTruncate(file, size))

    def _xSync(self, file: int, flags: int) -> int:
        opened = self.disks.open[file]
        disk = self.disks.of(opened.path)
        assert disk is not None
        world().point("sync", os.path.basename(opened.path))
        disk.before("sync")
        fails = disk.fails("sync")
        disk.sync_ledger(opened.path, fails=fails)
        if fails:
            return _IOERR_FSYNC
        if os.path.basename(opened.path) not in _LEDGER:
            inode = os.stat(opened.path).st_ino
            disk.contents[inode] = Path(opened.path).read_bytes()
        return _OK

    def _xShmLock(self, file: int, first: int, number: int, flags: int) -> int:
        opened = self.disks.open.get(file)
        if opened is not None and first == _WRITE_LOCK and flags == _LOCK | _EXCLUSIVE:
            on = self.disks.of(opened.path)
            if on is not None and on.locked_until > world().now:
                return _BUSY
        result = int(self._by_file[file].xShmLock(file, first, number, flags))
        if opened is not None and (result == _OK):
            mask = ((1 << number) - 1) << first
            if flags & _UNLOCK:
                opened.shared &= ~mask
                opened.exclusive &= ~mask
            elif flags & _EXCLUSIVE:
                opened.exclusive |= mask
            else:
                opened.shared |= mask
        return result

    def _xShmUnmap(self, file: int, delete: int) -> int:
        opened = self.disks.open.get(file)
        if opened is not None:
            opened.shared = opened.exclusive = 0
        return int(self._by_file[file].xShmUnmap(file, delete))

    def _delete(self, _vfs: int, name: bytes, sync: int) -> int:
        disk = self.disks.of(name.decode())
        if disk is not None:
            world().point("delete", os.path.basename(name.decode()))
            disk.unsynced.pop(name.decode(), None)
            disk.dropped.pop(name.decode(), None)
        return int(self._usual_delete(self._address_of_usual(), name, sync))

    # -- time and chance

    def _sleep(self, _vfs: int, microseconds: int) -> int:
        world().sleep(max(microseconds, 1) / 1e6)
        return microseconds

    def _randomness(self, _vfs: int, size: int, out: int) -> int:
        ctypes.memmove(out, world().random.randbytes(size), size)
        return size

    def _time(self, _vfs: int, out: Any) -> int:
        out[0] = round((world().unix_time() / 86400 + 2440587.5) * 86_400_000)
        return _OK


_installed: _SimulatedVfs | None = None
_REAL_FSYNC = os.fsync
_REAL_FLOCK = fcntl.flock


def disks() -> Disks:
    assert _installed is not None, "the simulated disks are not installed"
    return _installed.disks


def install() -> Disks:
    """Register the VFS, and note syncs and locks of Python code. Once per process."""
    global _installed
    _installed = _SimulatedVfs()
    os.fsync = _fsync
    fcntl.flock = _flock
    return _installed.disks


def _library() -> ctypes.CDLL:
    """Return the SQLite library of the standard library's driver."""
    sqlite3.connect(":memory:").close()
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        match = re.search(r"(/\S*libsqlite3\S*)$", line)
        if match:
            return ctypes.CDLL(match[1])
    raise RuntimeError("Python's sqlite3 brings a SQLite of its own, which takes no other VFS")


def _fsync(descriptor: int | Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    path = os.readlink(f"/proc/self/fd/{number}")
    disk = disks().of(path)
    if disk is None:
        return
    world().point("fsync", os.path.basename(path))
    disk.before("fsync")
    if disk.is_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    fails = disk.fails("fsync") or (path.endswith(".jsonl") and disk.fails("fsync of a mirror"))
    inode = os.fstat(number).st_ino
    if os.path.isdir(path):
        if not fails:
            _note_names(disk, path, inode)
    elif os.path.basename(path) in _LEDGER:
        disk.sync_ledger(path, fails=fails)
    else:
        with open(f"/proc/self/fd/{number}", "rb") as file:
            content = file.read()
        if fails:
            disk.dropped_contents[inode] = content
        else:
            disk.contents[inode] = disk.stored(inode, content)
    if fails:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def _flock(descriptor: int | Any, operation: int) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    locked = disks().flocks.setdefault(world().current.process, set())
    while True:
        try:
            _REAL_FLOCK(number, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
            world().sleep(0.01)
    if operation & fcntl.LOCK_UN:
        locked.discard(number)
    else:
        locked.add(number)


# -- losing the power


def lose_power(disk: Disk) -> None:
    """Undo unsynced writes on a disk by chance, and tear some of them.

    No process of the machine may be alive.
    """
    chance = world().random
    for path, writes in disk.unsynced.items():
        if os.path.exists(path):
            _undo(path, writes, chance)
    disk.unsynced.clear()
    for path, writes in disk.dropped.items():
        if os.path.exists(path):
            _drop(path, writes, chance)
    disk.dropped.clear()
    disk.rewritten.clear()
    _undo_files(disk, chance)


def _undo(path: str, writes: list[_Write], chance: Any) -> None:
    """Keep the first writes of SQLite to a file, or a random choice, whole or torn."""
    with open(path, "r+b") as file:
        for write in reversed(writes):
            file.truncate(write.size)
            if write.before:
                file.seek(write.offset)
                file.write(write.before)
        in_order = chance.random() < 0.5
        for number, write in enumerate(writes):
            if in_order and number >= chance.randrange(len(writes) + 1):
                break
            share = chance.random()
            if share < 0.4 and not in_order:
                continue
            after = write.after
            if share > 0.8:
                after = after[: chance.randrange(len(after) // _SECTOR + 1) * _SECTOR]
            if write.after:
                file.seek(write.offset)
                file.write(after)
            else:
                file.truncate(write.offset)


def _drop(path: str, writes: list[_Write], chance: Any) -> None:
    """Undo writes that a failed sync dropped. Bytes that were never on the disk are zeros."""
    with open(path, "r+b") as file:
        for write in reversed(writes):
            size = file.seek(0, os.SEEK_END)
            length = min(len(write.after), size - write.offset)
            if length > 0 and chance.random() < 0.8:
                file.seek(write.offset)
                file.write(write.before[:length].ljust(length, b"\0"))


def _undo_files(disk: Disk, chance: Any) -> None:
    """Undo names and contents of other files that are not durable."""
    for folder, folders, files in list(os.walk(disk.root, topdown=False)):
        durable = disk.names.get(os.stat(folder).st_ino, {})
        for name in sorted([*files, *folders]):
            path = os.path.join(folder, name)
            if name in _LEDGER:
                continue
            status = os.lstat(path)
            if durable.get(name) != status.st_ino and chance.random() < 0.5:
                world().note(f"lost with the power: {path[len(str(disk.root)) :]}")
                _remove(path)
            elif os.path.isfile(path) and not os.path.islink(path):
                _tear(path, disk.contents.get(status.st_ino, b""), chance)
        for name, inode in sorted(durable.items()):
            path = os.path.join(folder, name)
            is_file = inode in disk.contents and name not in _LEDGER
            if is_file and not os.path.lexists(path) and chance.random() < 0.5:
                Path(path).write_bytes(disk.contents[inode])
    settle(disk)


def _tear(path: str, durable: bytes, chance: Any) -> None:
    """Keep the durable content of a file, and of appended bytes a part or zeros."""
    with open(path, "r+b") as file:
        now = file.read()
        if now == durable:
            return
        if now.startswith(durable):
            end = chance.randrange(len(durable), len(now) + 1)
            if chance.random() < 0.2:
                # The size was stored, but not all bytes before the end.
                file.seek(end)
                file.write(bytes(chance.randrange(len(now) - end + 1)))
            else:
                file.truncate(end)
        elif chance.random() < 0.5:
            file.seek(0)
            file.write(durable)
            file.truncate(len(durable))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                child = os.path.join(folder, name)
                os.unlink(child) if os.path.islink(child) else os.rmdir(child)
        os.rmdir(path)
    else:
        os.unlink(path)


def settle(disk: Disk) -> None:
    """Declare everything on a disk durable."""
    disk.names.clear()
    disk.contents.clear()
    disk.dropped_contents.clear()
    for folder, _, files in os.walk(disk.root):
        _note_names(disk, folder, os.stat(folder).st_ino)
        for name in files:
            path = Path(folder, name)
            if not name.startswith("ledger.sqlite") and not path.is_symlink():
                disk.contents[path.stat().st_ino] = path.read_bytes()


def _note_names(disk: Disk, folder: str, inode: int) -> None:
    with os.scandir(folder) as entries:
        disk.names[inode] = {entry.name: entry.inode() for entry in entries}
