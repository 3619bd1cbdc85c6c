"""Numbers, amounts, sizes and times as people read them, written the same in every output."""

from __future__ import annotations

from labledger.clock import parse

_MAX_AMOUNT = 1e15
"""Larger amounts are printed in powers of ten."""


DASH = "–"


def count(number: int) -> str:
    """Return a count with separators, such as ``1,200``."""
    return f"{number:,}"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 as ``61.9%``."""
    return DASH if share is None else f"{share:.1%}"


def points(share: float) -> str:
    """Return a share from 0 to 1 as percentage points: ``2.0 points``; only 0 itself is ``0.0``."""
    value = 100 * share
    digits = ".1f" if abs(value) >= 0.05 or not value else ".2g"
    return f"{value:{digits}} points"


def percent_range(low: float, high: float, *, signed: bool = False) -> str:
    """Return the bounds of a share, or of a difference of shares, as ``-1.5 to +31.3``."""
    return f"{_percent_bound(low, signed)} to {_percent_bound(high, signed)}"


def _percent_bound(share: float, signed: bool) -> str:
    """Return a bound in percent. Only 0 itself is ``0.0``; smaller values keep one digit."""
    value = 100 * share + 0.0  # -0.0 becomes 0.0.
    sign = "+" if signed else ""
    return f"{value:{sign}.1f}" if abs(value) >= 0.05 or not value else f"{value:{sign}.1g}"


def significant(value: float) -> str:
    """Return a number of any unit with six significant digits."""
    return f"{value + 0.0:.6g}"


def exact(value: float) -> str:
    """Return an amount that must not be rounded, such as a budget: ``1,234.0625``."""
    return f"{value:,.10g}"


def rounded(value: float | None) -> str:
    """Return a number of any unit for a table: ``1,234``, ``123.46``, ``0.1235``."""
    if value is None:
        return DASH
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"


def whole_number(value: float | None) -> str:
    """Return a number rounded to a whole one: ``1,234``."""
    return DASH if value is None else f"{value:,.0f}"


def usd(amount: float | None, digits: int = 2) -> str:
    """Return an amount of money: ``$1,234.50``, or ``$1e+300`` if it has too many digits."""
    if amount is None:
        return DASH
    return f"${amount:,.{digits}f}" if abs(amount) < _MAX_AMOUNT else f"${amount:.6g}"


def usd_range(bounds: tuple[float, float] | None, digits: int = 4) -> str:
    """Return the bounds of an amount of money: ``$0.1200 to $0.1800``, or one if they are equal."""
    if bounds is None:
        return DASH
    low, high = (usd(bound, digits) for bound in bounds)
    return low if low == high else f"{low} to {high}"


def confidence_level(confidence: float) -> str:
    """Return the name of an interval, such as ``95 % CI``."""
    return f"{100 * confidence:.6g} % CI"


def p_value(p: float, level: float | None = None) -> str:
    """Return a p value, such as ``0.031`` or ``< 0.001``.

    It has enough digits to stay on its side of `level`: 0.0499 is not rounded to 0.05.
    """
    if p < 0.001 and (level is None or level >= 0.001):
        return "< 0.001"
    digits = 3
    while level is not None and digits < 12 and (round(p, digits) < level) is not (p < level):
        digits += 1
    return f"{p:.{digits}f}"


def p_equation(name: str, p: float, level: float | None = None) -> str:
    """Return a p value with its name, such as ``p = 0.031`` or ``p < 0.001``."""
    text = p_value(p, level)
    return f"{name} {text}" if text.startswith("<") else f"{name} = {text}"


def duration(milliseconds: float | None) -> str:
    """Return a measured time: ``0.42 s``, ``12.3 s``, ``4 min 5 s``, ``2 h 3 min``.

    The script of the report's page has the same function in JavaScript.
    """
    if milliseconds is None:
        return DASH
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def clock_time(seconds: float) -> str:
    """Return an elapsed time for the live display: ``8s``, ``3:07``, ``2:10:00``."""
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds}s"
    minutes, rest = divmod(whole_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def date_and_time(text: str) -> str:
    """Return a time of the ledger, to the minute: ``20 November 2026, 12:42 UTC``."""
    time = parse(text)
    return f"{time.day} {time:%B %Y, %H:%M} UTC"


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
