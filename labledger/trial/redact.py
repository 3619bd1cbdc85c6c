"""Takes the values of secrets out of everything that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping

MIN_LENGTH = 6
"""A shorter value is no secret: replacing it would garble text that has nothing to do with it."""


class Redactor:
    """Replaces each secret's exact value by ``[redacted:NAME]``, in bytes and in text."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        pairs = {}
        for name, value in secrets.items():
            if len(value) < MIN_LENGTH:
                continue
            for form in (
                value,
                json.dumps(value)[1:-1],
                json.dumps(value, ensure_ascii=False)[1:-1],
            ):
                pairs[form.encode()] = f"[redacted:{name}]".encode()
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
