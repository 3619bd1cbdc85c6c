"""Parts of messages: a number with its noun, and the names that an unknown name may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR, _NEAR_SHORT = 0.7, 0.6
"""The similarity, from 0 to 1, from which on one name may be a slip of the other. With names of up
to three letters, one letter may differ."""


def counted(number: int, noun: str) -> str:
    """Return such as ``1 slot`` or ``1,200 slots``; the plural of `noun` ends in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def near_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known names that differ from `name` by a slip, the nearest first."""
    cutoff = _NEAR_SHORT if len(name) <= 3 else _NEAR
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)
