"""The `labledger` command as a process of its own, and `python -m labledger`.

Until the command line is imported, and again once a command has ended, Ctrl-C ends the process at
once; in between it raises `KeyboardInterrupt`, so that what a command holds is released. The
process ends without finalizing the interpreter, which takes longer than most commands. All that
matters is done first: buffers are written and exit handlers run.
"""

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

from labledger.host_programs import restart_in_utf8_mode, use_safe_path

_INTERRUPTED = 130
"""`Exit.INTERRUPTED`, which is imported too late for the first interruptions."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _end_at_interrupts()
    _use_utf8()
    use_safe_path()
    from labledger.cli.app import main as run_command

    try:
        if signal.getsignal(signal.SIGINT) is _end_interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        leave(ending.code)
    except KeyboardInterrupt:
        _end_interrupted()


def _use_utf8() -> None:
    """Start again in Python's UTF-8 mode if a locale gives names another encoding.

    The ledger and SQLite's own names of files are UTF-8. In the locale C, Python chooses this mode
    itself, unless the environment forbids that.
    """
    if sys.getfilesystemencoding() != "utf-8":
        restart_in_utf8_mode()


def _end_at_interrupts() -> None:
    """Let Ctrl-C end the process, unless it is ignored, as in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_interrupted)


def _end_interrupted(*_: Any) -> NoReturn:
    """End the process, which has begun nothing that must be ended in order."""
    with suppress(OSError):
        os.write(2, b"labledger: interrupted\n")
    os._exit(_INTERRUPTED)


def leave(code: int) -> NoReturn:
    """End the process with an exit code. Called from the main thread with every file closed.

    The interpreter ends as usual if another thread is still running. `sys.stdout` was flushed, or
    silenced if it has no reader.
    """
    _end_at_interrupts()
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # None if the process was started without it; its reader may be gone.
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
