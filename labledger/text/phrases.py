"""Parts of messages: a number with its noun, and the names that an unknown name may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_QUOTED = 60
_MIN_SIMILARITY, _MIN_SIMILARITY_SHORT = 0.7, 0.6
"""How similar, from 0 to 1, a known name must be to be suggested. The second value is for names of
up to three letters, of which one letter may then differ."""


def counted(number: int, noun: str) -> str:
    """Return such as ``1 slot`` or ``1,200 slots``; the plural of `noun` must end in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counted_of(part: int, total: int, noun: str) -> str:
    """Return such as ``0 of 1 slot`` or ``3 of 1,200 slots``, with a noun as `counted` takes."""
    return f"{part:,} of {counted(total, noun)}"


def quoted(text: str) -> str:
    """Return text in quotes; of long text the beginning, and how many characters it has."""
    if len(text) <= _LONGEST_QUOTED:
        return repr(text)
    return f"{text[:_LONGEST_QUOTED]!r}… ({len(text):,} characters)"


def near_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known names of which `name` may be a misspelling, the nearest first."""
    cutoff = _MIN_SIMILARITY_SHORT if len(name) <= 3 else _MIN_SIMILARITY
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)
