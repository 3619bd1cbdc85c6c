"""Read the stored artifacts of a trial that is graded again.

They may come from an imported ledger and are not trusted: contents are checked against their
digests. `EvidenceIncomplete` is raised if something is missing. Used by `restored_inputs`,
`restored_workspace` and `regraded_evidence`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from labledger.errors import ArtifactChanged
from labledger.records.artifacts import REFERENCE, Artifact
from labledger.records.canonical_json import sha256_hex
from labledger.storage.artifact_store import ArtifactStore
from labledger.trial.attempt_spec import AttemptSpec, StoredTrial
from labledger.trial.trial_kind import EvidenceIncomplete
from labledger.workspace.untrusted_files import MIB

_REDACTION_MARK = re.compile(rb"\[redacted:\w+\]")
_MAX_READ_BYTES = 64 * MIB
"""No artifact of a trial that is read as a whole has more bytes."""


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """The artifacts of a stored trial, by their names in its evidence."""

    trial: StoredTrial
    store: ArtifactStore

    @classmethod
    def of(cls, spec: AttemptSpec, trial: StoredTrial) -> StoredArtifacts:
        return cls(trial, ArtifactStore(spec.plan.store_root))

    @property
    def references(self) -> dict[str, str]:
        references: dict[str, str] = self.trial.evidence["evidence"]
        return references

    def problem(self, name: str) -> str | None:
        """Return the recorded reason why a piece of evidence is missing or incomplete, if any."""
        problem = self.trial.extension("problems").get(name)
        return None if problem is None else str(problem)

    def read(self, name: str) -> bytes | None:
        """Return the content of an artifact, None if there is none. Raises `EvidenceIncomplete`."""
        with self.opened(name) as file:
            content = None if file is None else file.read(_MAX_READ_BYTES + 1)
        if content is None:
            return None
        if len(content) > _MAX_READ_BYTES or sha256_hex(content) != _digest(self.references[name]):
            raise EvidenceIncomplete(f"{name}: its artifact is not what was stored")
        return content

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """Open an artifact as a file; None if there is none.

        Raises `EvidenceIncomplete` if its artifact is gone or was changed.
        """
        if (reference := self.references.get(name)) is None:
            yield None
            return
        digest = _digest(reference)
        if (content := self.trial.contents.get(digest)) is not None:
            yield io.BytesIO(content)
            return
        try:
            file = self.store.checked(digest).open("rb")
        except FileNotFoundError:
            raise EvidenceIncomplete(f"{name}: its artifact {digest} is gone") from None
        except ArtifactChanged:
            raise EvidenceIncomplete(f"{name}: its artifact is not what was stored") from None
        with file:
            yield file

    def artifact(self, reference: str) -> Artifact | None:
        """Return the artifact of a reference; None if it is missing."""
        match = REFERENCE.fullmatch(reference)
        if match is None:
            return None
        digest = match[1]
        if (content := self.trial.contents.get(digest)) is not None:
            return Artifact.inline(content)
        try:
            return Artifact(digest, self.store.path(digest).stat().st_size, None)
        except FileNotFoundError:
            return None

    def holds_redacted(self, content: bytes) -> bool:
        """Return True if a secret may have been redacted from a stored content."""
        return self.trial.redactions > 0 and _REDACTION_MARK.search(content) is not None


def _digest(reference: str) -> str:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise EvidenceIncomplete(f"{reference!r} refers to no artifact")
    return match[1]
