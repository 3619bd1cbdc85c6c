"""Takes the values of secrets out of everything that is kept."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote_from_bytes

MAX_MESSAGE = 2_000
"""How many characters of a message are kept: it may quote megabytes that a container wrote."""
MIN_LENGTH = 6
"""A shorter value is no secret: replacing it would garble text that has nothing to do with it."""


def _forms(value: str) -> Iterator[bytes]:
    """A value as it may stand in text, in JSON, and encoded as programs encode keys."""
    raw = value.encode("utf-8", "surrogateescape")
    yield raw
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        for text in (escaped, escaped.replace("/", "\\/")):
            yield text.encode("utf-8", "surrogateescape")
    for quote in (quote_from_bytes(raw, safe=""), quote_from_bytes(raw)):
        for text in (quote, quote.replace("%20", "+"), _lower_escapes(quote)):
            yield text.encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _base64_forms(raw, encode)


def _lower_escapes(quoted: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)


def _base64_forms(raw: bytes, encode: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """What stands in the Base64 of any text that holds `raw`, wherever in it that begins.

    Base64 takes three bytes at a time. Characters that also depend on what stands beside `raw`
    are left out.
    """
    for before in range(3):
        encoded = encode(b"\0" * before + raw)
        depends_before = (0, 2, 3)[before]
        depends_after = (0, 3, 2)[(before + len(raw)) % 3]
        yield encoded[depends_before : len(encoded) - depends_after]


class Redactor:
    """Replaces each secret by ``[redacted:NAME]`` in bytes, text and JSON, and counts.

    Found are its exact value and the value escaped for JSON or a URL, in hex, and in Base64.

    A value that occurs in one of the `public` texts is no secret either: the records' own words
    and names are kept whatever the environment holds.
    """

    def __init__(self, secrets: Mapping[str, str], public: Iterable[str] = ()) -> None:
        shown = "\n".join(public)
        self._values = {
            value: f"[redacted:{name}]"
            for name, value in secrets.items()
            if len(value) >= MIN_LENGTH and value not in shown
        }
        pairs = {
            form: mark.encode() for value, mark in self._values.items() for form in _forms(value)
        }
        self.count = 0
        """How many were replaced so far."""
        # The longest first, so that a value that contains another is replaced as a whole.
        self._pairs = sorted(pairs.items(), key=lambda pair: -len(pair[0]))

    def finds_in(self, chunks: Iterable[bytes]) -> bool:
        """True where a content, given in pieces, holds what `data` would replace."""
        longest = max((len(value) for value, _ in self._pairs), default=0)
        if not longest:
            return False
        end = b""
        for chunk in chunks:
            content = end + chunk
            if any(value in content for value, _ in self._pairs):
                return True
            end = content[-longest:]
        return False

    def data(self, content: bytes) -> bytes:
        for value, replacement in self._pairs:
            if found := content.count(value):
                self.count += found
                content = content.replace(value, replacement)
        return content

    def text(self, content: str) -> str:
        if not self._pairs:
            return content
        return self.data(content.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def message(self, content: str) -> str:
        """A text for a person, without secrets, and then no longer than such a text should be."""
        text = self.text(content)
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."

    def json(self, value: Any) -> Any:
        """The same JSON without secrets: in texts and keys, however they were escaped, and as a
        number that is one.
        """
        if not self._pairs:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, int | float):
            return self._number(value)
        return value

    def _number(self, value: float) -> float | str:
        mark = self._values.get(json.dumps(value))
        if mark is None:
            return value
        self.count += 1
        return mark
