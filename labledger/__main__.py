"""The `labledger` command as a process of its own, and `python -m labledger`.

The process ends without finalizing the interpreter, which takes longer than most commands. All that
matters is done first: buffers are written and exit handlers run.
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from labledger.cli.app import main as run_command


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        run_command()
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        leave(ending.code)


def leave(code: int) -> NoReturn:
    """End the process with an exit code. Called from the main thread with every file closed.

    The interpreter ends as usual if another thread is still running. `sys.stdout` was flushed, or
    silenced if it has no reader.
    """
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
