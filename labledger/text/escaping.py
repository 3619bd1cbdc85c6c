"""Escape the characters of untrusted text that could deceive a reader.

The command line prints escapes, which cannot be reversed. Pages and Markdown use `plain_text`,
which removes such characters. Exact formats (JSON, CSV, mirrors) escape nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

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
