"""The program of the gateway's process, which its clients start: `python -m labledger.gateway`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.gateway.client import ended_by
from labledger.gateway.process import serve


def main() -> None:
    """Serve the folder in the first argument, in a detached child process.

    The second argument is a descriptor. The child closes it when it answers. If the child fails,
    the reason is written to the descriptor first. This process waits for either, because only a
    parent learns that its child was killed.
    """
    folder, report = Path(sys.argv[1]), int(sys.argv[2])
    is_started, starts = os.pipe()
    child = os.fork()
    if child:
        os.close(starts)
        if not os.read(is_started, 1):
            _report_end(child, report)
        os._exit(0)
    os.close(is_started)
    os.setsid()

    def started() -> None:
        os.write(starts, b"1")
        os.close(starts)
        os.close(report)

    try:
        serve(folder, started)
    except (LabLedgerError, OSError) as error:
        with suppress(OSError):
            os.write(report, str(error).encode())
        sys.exit(1)


def _report_end(child: int, report: int) -> None:
    """Write to `report` which signal ended a starting gateway, if one did."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.write(report, ended_by(os.WTERMSIG(status)).encode())


if __name__ == "__main__":
    main()
