"""Make the tar of a small folder that a container could write, as its engine would.

Only what needs no care is read here: a few plain files with one name each, folders and links. The
engine reads every other folder. No link is followed. `declared_artifacts` packs such a tar as it
packs those of an engine: what is safe for a grader is decided there. No process may be left that
could change the folder.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from itertools import islice
from pathlib import Path

from labledger.workspace.untrusted_files import MIB, UnsafeFile, UntrustedFile

MAX_ENTRIES = 1000
MAX_BYTES = MIB
"""Of all files together. The tar is held in memory."""


class _NeedsEngine(Exception):
    """The folder holds something that is not read here."""


def small_tar(folder: Path, name: str) -> io.BytesIO | None:
    """Return a tar of a folder with what is below it, as `name`; None if the engine is to read it.

    A folder comes before what it holds, names in the order of their bytes, as from an engine.
    """
    file = io.BytesIO()
    try:
        with tarfile.open(
            fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8"
        ) as archive:
            _add(archive, folder, name)
    except (OSError, UnsafeFile, _NeedsEngine):
        return None
    file.seek(0)
    return file


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    entries_left, bytes_left = MAX_ENTRIES, MAX_BYTES
    pending = [(folder, name)]
    while pending:
        path, name = pending.pop()
        status = path.lstat()
        member, content = tarfile.TarInfo(name), b""
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, entries_left + 1)]
            entries_left -= len(names)
            if entries_left < 0:
                raise _NeedsEngine
            names.sort(key=os.fsencode, reverse=True)
            pending += [(path / child, f"{name}/{child}") for child in names]
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
        else:
            content = UntrustedFile(path.parent, path.name).read(bytes_left) or b""
            bytes_left -= len(content)
            member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
