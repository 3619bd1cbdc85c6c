"""Find the name that was probably meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR, _NEAR_SHORT = 0.7, 0.6
"""How alike two names are (0 to 1) where one may be a slip of the other. Of three letters, two."""


def near_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known names that differ from `name` by a slip, the nearest first."""
    cutoff = _NEAR_SHORT if len(name) <= 3 else _NEAR
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)
