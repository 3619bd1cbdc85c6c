"""Waiting for what must happen, instead of sleeping for as long as it usually takes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240
"""How long a test waits for what must happen before it fails."""


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "a condition",
    patience_s: float = PATIENCE_S,
) -> None:
    """Return as soon as a condition holds; fail, naming `what`, where it takes too long.

    A function says at the end what was waited for, such as with the log of that time.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited in vain for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
