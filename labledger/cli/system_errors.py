"""What to say of an error of the operating system that nobody has put in words before."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from labledger.api import Exit, LabLedgerError

_HINTS = {
    errno.ENOENT: "something that labledger needs was moved or removed; put it back",
    errno.EEXIST: "move it out of the way",
    errno.EISDIR: "move the folder out of the way",
    errno.EACCES: "check who owns it and its folders, and what others may do there",
    errno.EPERM: "check who owns it and its folders, and what others may do there",
    errno.EROFS: "choose a place on a file system that can be written",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the space that you may use there",
    errno.EIO: "check the disk and its file system",
    errno.EMFILE: "let it open more files (`ulimit -n`), or run fewer trials at once (-n)",
    errno.ENFILE: "close other programs: the machine has as many files open as it can",
    errno.ENOMEM: "free some memory, or run fewer trials at once (-n)",
}
_AGAIN = "and try again; what is committed stays, and `labledger resume` goes on with a run"


class SystemFailure(LabLedgerError):
    """The operating system refused something that the command needs."""

    exit_code = Exit.INCOMPLETE


def in_words(error: OSError) -> SystemFailure:
    """The command that failed, the path and the reason, and what to do."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    reason = error.strerror or str(error) or type(error).__name__
    hint = _HINTS.get(error.errno or 0, "mend that")
    place = ""
    if error.filename is not None:
        path = Path(str(error.filename))
        place = f" at {path}"
        if error.errno == errno.ENOTDIR:
            hint = f"{_file_in_the_way(path)} is a file where a folder is needed; move it away"
    return SystemFailure(
        f"could not go on with `labledger {command}`{place}: {reason}", hint=f"{hint}, {_AGAIN}"
    )


def _file_in_the_way(path: Path) -> Path:
    """The nearest of a path and those above it that is there and no folder."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)
