"""What is stored of an earlier trial, read again."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from labledger.canonical import sha256_hex
from labledger.errors import LabLedgerError
from labledger.records import Artifact, JsonObject
from labledger.store import ArtifactStore
from labledger.trial.contract import StoredTrial, TrialSpec
from labledger.trial.outputs import MIB

_REFERENCE = re.compile(r"artifact://sha256/([0-9a-f]{64})")
_MARK = re.compile(rb"\[redacted:\w+\]")
_CAP = 64 * MIB
"""Nothing that labledger keeps of a trial is larger."""


class EvidenceIncomplete(LabLedgerError):
    """What an earlier trial left cannot be restored exactly from what is stored of it."""


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """The artifacts of an earlier trial by the names that its evidence has for them."""

    earlier: StoredTrial
    store: ArtifactStore

    @classmethod
    def of(cls, spec: TrialSpec, earlier: StoredTrial) -> StoredArtifacts:
        return cls(earlier, ArtifactStore(spec.plan.store_root))

    @property
    def references(self) -> dict[str, str]:
        found: dict[str, str] = self.earlier.evidence["evidence"]
        return found

    def problem(self, name: str) -> str | None:
        """Why a piece of evidence is not there, or is not whole, as was noted then."""
        problem = stored_extension(self.earlier, "problems").get(name)
        return None if problem is None else str(problem)

    def read(self, name: str) -> bytes | None:
        """The content under a name, or None where there is none. Raises `EvidenceIncomplete`."""
        with self.opened(name) as file:
            content = None if file is None else file.read(_CAP + 1)
        if content is None:
            return None
        if len(content) > _CAP or sha256_hex(content) != _digest(self.references[name]):
            raise EvidenceIncomplete(f"{name}: its artifact is not what was stored")
        return content

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """The content under a name as a file, unchecked; None where there is none.

        Raises `EvidenceIncomplete` where its artifact is gone.
        """
        if (reference := self.references.get(name)) is None:
            yield None
            return
        digest = _digest(reference)
        if (content := self.earlier.contents.get(digest)) is not None:
            yield io.BytesIO(content)
            return
        try:
            file = self.store.path(digest).open("rb")
        except FileNotFoundError:
            raise EvidenceIncomplete(f"{name}: its artifact {digest} is gone") from None
        with file:
            yield file

    def artifact(self, reference: str) -> Artifact | None:
        """An artifact that is referred to once more; None where it is gone, or never was."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return None
        digest = match[1]
        if (content := self.earlier.contents.get(digest)) is not None:
            return Artifact.inline(content)
        try:
            return Artifact(digest, self.store.path(digest).stat().st_size, None)
        except FileNotFoundError:
            return None

    def holds_redacted(self, content: bytes) -> bool:
        """True where a secret may have been taken out of a stored content."""
        return bool(redacted_in(self.earlier)) and _MARK.search(content) is not None


def stored_extension(earlier: StoredTrial, key: str) -> JsonObject:
    """What labledger said under a key of `ext` in an earlier trial's evidence, if anything."""
    found = earlier.evidence.get("ext", {}).get(key)
    return found if isinstance(found, dict) else {}


def redacted_in(earlier: StoredTrial) -> int:
    """How many secrets were taken out of what an earlier trial left."""
    found = earlier.evidence.get("ext", {}).get("redacted")
    return found if isinstance(found, int) else 0


def _digest(reference: str) -> str:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise EvidenceIncomplete(f"{reference!r} refers to no artifact")
    return match[1]
