"""Numbers as a report's reader sees them, the same on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from labledger.clock import parse
from labledger.records import JsonObject
from labledger.text.phrases import counted as counted


def count(number: int) -> str:
    return f"{number:,}"


def rate(estimate: JsonObject | None) -> str:
    """The value of an estimate of a share, in per cent."""
    return "–" if estimate is None else f"{estimate['value']:.1%}"


def bounds(estimate: JsonObject | None, *, signed: bool = False) -> str:
    """The interval of an estimate of a share, in per cent or points."""
    if estimate is None or estimate["low"] is None or estimate["high"] is None:
        return "–"
    sign = "+" if signed else ""
    return f"{100 * estimate['low']:{sign}.1f} to {100 * estimate['high']:{sign}.1f}"


def points(estimate: JsonObject | None) -> str:
    """A difference of shares in points; 0.0 is exactly 0."""
    if estimate is None:
        return "–"
    value = 100 * estimate["value"]
    return f"{value:+.1f} points" if abs(value) >= 0.05 or not value else f"{value:+.2g} points"


def figure(value: float | None) -> str:
    """A number of any size; what is not known is a dash, never 0."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"


def took(milliseconds: float | None) -> str:
    """A duration: ``0.42 s``, ``12.3 s``, ``4 min 5 s``, ``2 h 3 min``."""
    if milliseconds is None:
        return "–"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def moment(text: str) -> str:
    """A time of the ledger, to the minute: ``20 November 2026, 12:42 UTC``."""
    found = parse(text)
    return f"{found.day} {found:%B %Y, %H:%M} UTC"


def level(confidence: float) -> str:
    return f"{100 * confidence:.6g} % CI"


def p_name(comparisons: Iterable[JsonObject]) -> str:
    """What the p values of some comparisons are called."""
    family = family_of(comparisons)
    return f"p of {family} comparisons" if family > 1 else "p"


def family_of(comparisons: Iterable[JsonObject]) -> int:
    """For how many comparisons intervals and p values are corrected together."""
    return max((int(document["family"]) for document in comparisons), default=1)


def p_value(test: JsonObject | None) -> str:
    """The decisive p value: corrected, where there are several comparisons."""
    if test is None:
        return "–"
    p = test["p"] if test["p_adjusted"] is None else test["p_adjusted"]
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
