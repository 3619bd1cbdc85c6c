"""The process of the `labledger` command and of `python -m labledger`.

While a command runs, Ctrl-C raises `KeyboardInterrupt`, so that the command releases its resources.
Before and after that, Ctrl-C ends the process at once. The process writes its buffers, runs exit
handlers, and then ends without the slow finalization of the interpreter.
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
"""The value of `Exit.INTERRUPTED`, which is imported too late for early interrupts."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _end_at_interrupts()
    _use_utf8()
    use_safe_path()
    # Imported late: the path must be safe first.
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
    """Restart in Python's UTF-8 mode if the locale encodes file names differently.

    The ledger and SQLite encode file names in UTF-8. In the locale C, Python chooses this mode
    itself unless the environment forbids it.
    """
    if sys.getfilesystemencoding() != "utf-8":
        restart_in_utf8_mode()


def _end_at_interrupts() -> None:
    """Let Ctrl-C end the process, unless the signal is ignored, as in a script's background job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_interrupted)


def _end_interrupted(*_: Any) -> NoReturn:
    """End the process at once. Nothing is in progress that needs an orderly end."""
    with suppress(OSError):
        os.write(2, b"labledger: interrupted\n")
    os._exit(_INTERRUPTED)


def leave(code: int) -> NoReturn:
    """End the process with an exit code. Called from the main thread with every file closed.

    If another thread is still running, the interpreter ends as usual. The caller has flushed
    `sys.stdout`, or silenced it if it has no reader.
    """
    _end_at_interrupts()
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # It is None if the process was started without it. Its reader may be gone.
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
