"""Content that records refer to by its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger.records.canonical_json import sha256_hex


@dataclass(frozen=True, slots=True)
class Artifact:
    """Content that a record refers to by its SHA-256 (hex)."""

    sha256: str
    size: int
    content: bytes | None
    """None when it lies in the artifact store already."""

    @classmethod
    def inline(cls, content: bytes) -> Self:
        return cls(sha256_hex(content), len(content), content)

    @property
    def reference(self) -> str:
        return f"artifact://sha256/{self.sha256}"
