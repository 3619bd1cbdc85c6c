"""The program of the gateway's process, which its clients start: `python -m labledger.gateway`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.gateway.process import serve


def main() -> None:
    """Serve the folder that is the first argument, detached; the second is a descriptor.

    What is written there is empty once the gateway answers, or says why it does not.
    """
    folder, report = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    try:
        serve(folder, lambda: os.close(report))
    except (LabLedgerError, OSError) as error:
        with suppress(OSError):
            os.write(report, str(error).encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
