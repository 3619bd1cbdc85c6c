"""Sizes as a person writes them in an experiment or an option, such as ``512m``, and reads them."""

from __future__ import annotations

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(size: str | float) -> int:
    """Return the bytes in a size such as ``512m``, ``1.5g`` or a plain number.

    Units are powers of 1024. Raises `ValueError` for anything else.
    """
    text = str(size).lower()
    number = text.rstrip("bkmg")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"{size!r} has an unknown unit")
    return int(float(number) * _UNITS[unit])


def format_size(size: int) -> str:
    """Return a number of bytes for a person, such as ``340 bytes`` or ``1.5 MiB``."""
    if size < 1024:
        return f"{size} bytes"
    value, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
