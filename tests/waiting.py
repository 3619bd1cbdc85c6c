"""Waiting for what must happen, instead of sleeping for as long as it usually takes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240
"""How long a test waits for what must happen before it fails."""


def wait_until(
    condition: Callable[[], object], what: str = "a condition", patience_s: float = PATIENCE_S
) -> None:
    """Return as soon as a condition holds; fail, naming `what`, where it takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
