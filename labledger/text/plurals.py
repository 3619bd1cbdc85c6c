"""Numbers with the nouns that they count."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return such as ``1 slot`` or ``1,200 slots``; the plural of `noun` ends in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
