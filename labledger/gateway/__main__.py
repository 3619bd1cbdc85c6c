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
    """Serve the folder that is the first argument, detached; the second is a descriptor.

    The descriptor is closed once the gateway answers. If it does not, the reason is written there
    first. This process waits until then: only the parent of a process learns that it was killed.
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
    """Write which signal ended a starting gateway; nothing if no signal did."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.write(report, ended_by(os.WTERMSIG(status)).encode())


if __name__ == "__main__":
    main()
