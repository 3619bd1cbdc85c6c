"""Artifacts: content that records refer to by its SHA-256, and the form of such a reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from labledger.records.canonical_json import sha256_hex

_PREFIX = "artifact://sha256/"
REFERENCE = re.compile(_PREFIX + "([0-9a-f]{64})")
"""A reference to an artifact; its group is the digest in hex."""


def digest_of(reference: str) -> str:
    """Return the digest that a reference names. Any other text is returned unchanged."""
    return reference.removeprefix(_PREFIX)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Content that a record refers to by its SHA-256 (hex)."""

    sha256: str
    size: int
    content: bytes | None
    """None if the artifact store has it already."""

    @classmethod
    def inline(cls, content: bytes) -> Self:
        return cls(sha256_hex(content), len(content), content)

    @property
    def reference(self) -> str:
        return _PREFIX + self.sha256
