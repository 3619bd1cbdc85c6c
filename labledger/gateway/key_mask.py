"""Keeps a provider's key from the agent where the provider's answer repeats it.

The key's bytes are replaced by as many `*`, so that lengths stay as announced. What an answer ends
with is held back only where it may be the beginning of the key.
"""

from __future__ import annotations

_SHORTEST = 8
"""Shorter keys are words such as `EMPTY`, which no provider means seriously."""


class KeyMask:
    """Masks one key in one stream of bytes."""

    def __init__(self, key: str | None) -> None:
        self._key = (key or "").encode("ascii")
        self._is_active = len(self._key) >= _SHORTEST
        self._tail = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may pass once a piece has come."""
        if not self._is_active:
            return piece
        data = (self._tail + piece).replace(self._key, b"*" * len(self._key))
        held = self._beginning(data)
        self._tail = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """Return what was held back, once nothing more comes."""
        tail, self._tail = self._tail, b""
        return tail

    def _beginning(self, data: bytes) -> int:
        """Return how many bytes at the end of the data are a beginning of the key."""
        longest = min(len(data), len(self._key) - 1)
        start = data.find(self._key[:1], len(data) - longest)
        while start >= 0:
            if self._key.startswith(data[start:]):
                return len(data) - start
            start = data.find(self._key[:1], start + 1)
        return 0


def masked(text: str, key: str | None) -> str:
    """Return a text in which a key is masked."""
    return text.replace(key, "*" * len(key)) if key and len(key) >= _SHORTEST else text
