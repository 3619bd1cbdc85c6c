"""Leaving the process without taking the interpreter apart, which takes longer than most commands.

Everything that matters at an exit is done first: what is buffered is written, and the exit handlers
run. Where another thread still runs, the interpreter leaves as it usually does.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process with an exit code, from the main thread, when every file is closed.

    `sys.stdout` was flushed before, or is silenced where nobody can read it.
    """
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # None where the process was started without it; what a handler wrote may have no reader.
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)
