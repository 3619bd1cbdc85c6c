"""Text for people: numbers with nouns, figures, sizes, and escaping of untrusted text.

Figures look the same on a terminal, in Markdown and on pages. An unknown number is a dash, never 0.
Untrusted text may control a terminal or make two names look alike. Terminals get escapes, pages and
Markdown get `plain_text`, and JSON, CSV and mirrors stay exact.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from labledger.clock import parse

_LONGEST_QUOTED = 60
_SCALARS = frozenset({str, int, float, bool, type(None)})
_MIN_SIMILARITY, _MIN_SIMILARITY_SHORT = 0.7, 0.6
"""The similarity, from 0 to 1, from which a known name is suggested. The second value is for names
of up to three letters. It allows one different letter."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 trial`` or ``1,200 trials``.

    The plural of `noun` must be formed with s.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counted_of(part: int, total: int, noun: str) -> str:
    """Return a part with its total, such as ``0 of 1 trial``; the noun is as for `counted`."""
    return f"{part:,} of {counted(total, noun)}"


def model_labels(models: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return a label for each pair of provider and model: the model's name.

    If several providers in the list have the same model, the provider's name is put before it.
    """
    providers: dict[str | None, set[str | None]] = {}
    for provider, model in models:
        providers.setdefault(model, set()).add(provider)
    return [
        f"{provider}/{model}" if provider and len(providers[model]) > 1 else model or ""
        for provider, model in models
    ]


def quoted(text: str) -> str:
    """Return text in quotes. Long text is cut, and followed by its length."""
    if len(text) <= _LONGEST_QUOTED:
        return repr(text)
    return f"{text[:_LONGEST_QUOTED]!r}… ({len(text):,} characters)"


def named_briefly(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def near_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known names that are similar to `name`, the most similar first."""
    cutoff = _MIN_SIMILARITY_SHORT if len(name) <= 3 else _MIN_SIMILARITY
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)


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


_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u3164\uffa0"
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Characters that Unicode classifies as letters or marks, but that terminals do not show."""

_TAB_WIDTH = 8


class Replacements(dict[int, str]):
    """A table for `str.translate` that replaces characters that do not print, filled on demand."""

    def __init__(self, replace: Callable[[str], str], unchanged: str = "") -> None:
        super().__init__({ord(character): character for character in unchanged})
        self._replace = replace

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = character if is_shown(character) else self._replace(character)
        return self[code]


def is_shown(character: str) -> bool:
    """Return whether a terminal shows a character as itself, or as a space."""
    if character in _INVISIBLE:
        return False
    return character.isprintable() or unicodedata.category(character) == "Zs"


def escape_line(text: str) -> str:
    """Return text as part of one line, with escapes for all characters that do not print.

    >>> escape_line("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def escape_lines(text: str) -> str:
    """Return text with each of its lines escaped. Tabs become spaces."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(escape_line(line.expandtabs(_TAB_WIDTH)) for line in lines)


def escape_values(value: Any) -> Any:
    """Return a JSON value with escaped texts and keys. Line breaks and tabs stay."""
    if isinstance(value, str):
        if value.isascii() and value.isprintable():
            return value
        return value.replace("\r\n", "\n").translate(_VISIBLE_LINES)
    if isinstance(value, dict):
        return {escape_values(key): escape_values(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [escape_values(item) for item in value]
    return value


def escape_json(document: str) -> str:
    """Return JSON with ``\\u`` escapes for characters that do not print. The values stay equal."""
    return document if document.isascii() and document.isprintable() else document.translate(_JSON)


def json_pieces(value: Any, *, ascii_only: bool = True, margin: str = "\n") -> Iterator[str]:
    """Yield the text of a JSON value in pieces, indented like ``json.dumps(value, indent=2)``.

    An iterator in the value becomes a list, with one item at a time in memory. Items must not
    contain iterators. `margin` is the line break and indent of the value's line.
    """
    inner = f"{margin}  "
    encode = _encoder(inner, ascii_only)
    if isinstance(value, Iterator):
        before = "["
        for item in value:
            item_pieces = json_pieces(item, ascii_only=ascii_only, margin=inner)
            yield f"{before}{inner}{''.join(item_pieces)}"
            before = ","
        yield "[]" if before == "[" else f"{margin}]"
    elif not value or not isinstance(value, dict | list | tuple):
        yield encode(value)
    elif _is_flat(value):
        text = encode(value)
        yield f"{text[0]}{inner}{text[1:-1]}{margin}{text[-1]}"
    else:
        before, end = "{}" if isinstance(value, dict) else "[]"
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield f"{before}{inner}{encode(key)}: " if end == "}" else f"{before}{inner}"
            yield from json_pieces(member, ascii_only=ascii_only, margin=inner)
            before = ","
        yield f"{margin}{end}"


def _is_flat(value: Any) -> bool:
    """Return whether all members of an object or list are scalars."""
    members = value.values() if isinstance(value, dict) else value
    return _SCALARS.issuperset(map(type, members))


@cache
def _encoder(inner: str, ascii_only: bool) -> Callable[[Any], str]:
    """Return an encoder for flat values that puts each member on its own line."""
    separators = f",{inner}", ": "  # With `indent`, Python would not use its C encoder.
    return json.JSONEncoder(ensure_ascii=ascii_only, separators=separators).encode


def plain_text(text: str) -> str:
    """Return text for a page or Markdown.

    Removes terminal sequences, and replaces every other hidden character by U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text  # The same object, to avoid a second copy of a large report.
    text = _TERMINAL_SEQUENCES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_MARKED)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_VISIBLE = Replacements(_escape)
_VISIBLE_LINES = Replacements(_escape, unchanged="\t\n")
_JSON = Replacements(_json_escape, unchanged="\n")
_MARKED = Replacements(lambda _: "\ufffd", unchanged="\t\n")
_TERMINAL_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\^_]"
)


def nests_too_deeply(error: Exception) -> bool:
    """Return whether PyYAML refused a text because it is nested too deeply.

    PyYAML has this limit from 6.0.4 on. It is larger than every limit of labledger.
    """
    return "maximum nesting depth" in str(getattr(error, "problem", ""))


def yaml_fault(error: Exception) -> str:
    """Return the end of a sentence that says where a file is not valid YAML.

    The sentence does not quote the file, which may be a link to a secret.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"is not YAML{place}"
