"""Complete commands, from the start of a process to its end."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PYTHON = (sys.executable, "-c", "pass")
"""A Python that does nothing."""


def labledger(*words: object) -> list[str]:
    return [sys.executable, "-m", "labledger", *map(str, words)]


def seconds(command: Sequence[str], folder: Path | None = None) -> float:
    """Return the seconds of a command, which must succeed."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def environment() -> dict[str, str]:
    """Return a user's environment: with compiled modules, without a lab folder."""
    unwanted = ("PYTHONDONTWRITEBYTECODE", "LABLEDGER_DIR")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def spread(times: Sequence[float]) -> str:
    """Return median, minimum and maximum as text."""
    return f"{statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})"
