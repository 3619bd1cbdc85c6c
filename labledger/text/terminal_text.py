"""Make text safe for a terminal: characters that do not print become escapes, such as ``\\x1b``.

Text of a container, a task or an experiment may contain control characters, which move the cursor
or set the title; characters that reverse the direction of text; and characters without a width,
which make two names look alike. The command line prints such text only through these functions.
Escapes are for people and cannot be reversed: exact formats (JSON, CSV, mirrors) do not use them.
The report's page and Markdown use `plain_text`, which removes instead of escaping.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u3164\uffa0"
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Characters that Unicode counts as letters or marks, and that no terminal shows."""

_TAB_WIDTH = 8


class Replacements(dict[int, str]):
    """A table for `str.translate` that replaces characters that do not print; filled as needed."""

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
    """Return text as part of one line: everything that does not print is an escape, as in ``\\n``.

    >>> escape_line("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def escape_lines(text: str) -> str:
    """Return text of several lines with each line escaped. Tabs become spaces."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(escape_line(line.expandtabs(_TAB_WIDTH)) for line in lines)


def escape_json(document: str) -> str:
    """Return JSON whose strings hold what does not print as ``\\u`` escapes: the same values."""
    return document if document.isascii() and document.isprintable() else document.translate(_JSON)


def plain_text(text: str) -> str:
    """Return text for a page or Markdown.

    Terminal sequences are removed, and every other hidden character becomes U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text  # The same object, so that a large report is not in memory twice.
    text = _TERMINAL_SEQUENCES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_MARKED)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))


_VISIBLE = Replacements(lambda character: character.encode("unicode_escape").decode("ascii"))
_JSON = Replacements(_json_escape, unchanged="\n")
_MARKED = Replacements(lambda _: "\ufffd", unchanged="\t\n")
_TERMINAL_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\^_]"
)
