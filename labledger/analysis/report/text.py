"""Text from trials, as it can be shown anywhere: no control characters, nothing unencodable."""

from __future__ import annotations

import re
from typing import Any

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\^_]"
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Controls, what turns the direction of text, and lone surrogates: `\\t`, `\\n`, `\\r` may stay."""
_MARK = "\ufffd"


def plain(text: str) -> str:
    """The text with terminal sequences taken out, and a mark for every other hidden character."""
    text = _ESCAPE_SEQUENCES.sub("", text)
    return _HIDDEN.sub(_MARK, text.replace("\r\n", "\n")).replace("\r", "\n")


def plain_all(value: Any) -> Any:
    """A JSON value with every text in it plain, keys too."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): plain_all(item) for key, item in value.items()}
    return [plain_all(item) for item in value] if isinstance(value, list) else value
