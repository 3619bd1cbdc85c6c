"""Takes the values of secrets out of everything that is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MIN_LENGTH = 6
"""A shorter value is no secret: replacing it would garble text that has nothing to do with it."""


def _forms(value: str) -> Iterator[str]:
    """A value as it may stand in text and in the JSON that common programs write."""
    yield value
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")


class Redactor:
    """Replaces each secret's exact value by ``[redacted:NAME]``, in bytes, text and JSON.

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
            form.encode("utf-8", "surrogateescape"): mark.encode()
            for value, mark in self._values.items()
            for form in _forms(value)
        }
        # The longest first, so that a value that contains another is replaced as a whole.
        self._pairs = sorted(pairs.items(), key=lambda pair: -len(pair[0]))

    def data(self, content: bytes) -> bytes:
        for value, replacement in self._pairs:
            content = content.replace(value, replacement)
        return content

    def text(self, content: str) -> str:
        if not self._pairs:
            return content
        return self.data(content.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

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
            return self._values.get(json.dumps(value), value)
        return value
