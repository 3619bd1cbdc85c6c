"""Run a `labledger` command; at its end, print its peak memory on stderr.

python -m bench.peak run my-experiment …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from labledger.cli import app


def memory_mb(what: str) -> float:
    """Return the value of this process. `getrusage` would include the peak of its parent."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status says nothing of {what}")


def main() -> None:
    try:
        app.main()
    finally:
        print(json.dumps({"peak_mb": memory_mb("VmHWM")}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
