"""Text from trials, as it can be shown anywhere: no control characters, nothing unencodable."""

from __future__ import annotations

import re
from typing import Any

from labledger.text.terminal_text import Replacements

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\^_]"
)
_MARKED = Replacements(lambda _: "\ufffd", unchanged="\t\n")


def plain(text: str) -> str:
    """The text with terminal sequences taken out, and a mark for every other hidden character."""
    if text.isascii() and text.isprintable():
        return text  # The same text, so that a large report is not in memory twice.
    text = _ESCAPE_SEQUENCES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_MARKED)


def plain_all(value: Any) -> Any:
    """A JSON value with every text in it plain, keys too."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): plain_all(item) for key, item in value.items()}
    return [plain_all(item) for item in value] if isinstance(value, list) else value
