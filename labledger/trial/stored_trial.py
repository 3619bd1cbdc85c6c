"""A stored trial that is graded again: its records, its artifacts, and those that its grader gets.

They may come from an imported ledger and are not trusted: contents are checked against their
digests, and names in a tar must be at paths that the grader declares. `EvidenceIncomplete` is
raised if something is missing.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from labledger.errors import ArtifactChanged, LabLedgerError
from labledger.files import artifact_tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.artifact_tars import ArtifactsRefused
from labledger.files.untrusted_files import MIB
from labledger.records import JsonObject
from labledger.records.attempt_result import REFERENCE, Artifact, Metric, Phase, digest_of
from labledger.records.canonical_json import sha256_hex
from labledger.records.identity import TrialIds
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.declared_artifacts import outermost


class EvidenceIncomplete(LabLedgerError):
    """The evidence of an earlier container that a trial needs is missing or not exact."""


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial of another run, as stored, that a regrading grades again."""

    ids: TrialIds
    """Of the trial in the run that is regraded."""
    record: JsonObject
    """Its `trial_record_v1`."""
    evidence: JsonObject
    """The `evidence_record_v1` of its last attempt."""
    contents: Mapping[str, bytes]
    """Its artifacts that are stored in the ledger, by SHA-256 (hex). Others are in the store."""
    counted: tuple[Metric, ...] | None = None
    """The metrics that the gateway counted; None if its agent had no models."""

    @property
    def phases(self) -> dict[str, Phase]:
        """Its phases that ran."""
        recorded = self.record["phases"]
        return {
            name: Phase(phase["exit_status"], phase["duration_ms"], phase["timed_out"])
            for name in contract.PHASE_NAMES
            if (phase := recorded.get(name)) is not None
        }

    @property
    def phases_before_grading(self) -> dict[str, Phase]:
        return {name: phase for name, phase in self.phases.items() if name != "grader"}

    @property
    def redactions(self) -> int:
        """How many secrets were redacted from its outputs."""
        count = self.evidence.get("ext", {}).get("redacted")
        return count if isinstance(count, int) else 0

    def extension(self, key: str) -> JsonObject:
        """Return the object under a key of `ext` in its evidence, {} if there is none."""
        value = self.evidence.get("ext", {}).get(key)
        return value if isinstance(value, dict) else {}


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


_EVIDENCE = "artifacts"


def require_artifacts(spec: AttemptSpec, stored: StoredArtifacts) -> None:
    """Raise `EvidenceIncomplete` if the artifacts of a stored trial cannot be restored exactly."""
    declared = spec.settings.grading.artifacts or ()
    facts = stored.trial.evidence.get("ext", {}).get(_EVIDENCE)
    if not declared and facts is None:
        return
    if facts is None or _EVIDENCE not in stored.references:
        raise EvidenceIncomplete("no artifacts were taken from its agent's container")
    if stored.trial.extension("artifacts_with_secrets"):
        raise EvidenceIncomplete(f"its artifacts were not stored: {stored.problem(_EVIDENCE)}")
    hasher = hashlib.sha256()
    for chunk in artifact_chunks(stored) or ():
        hasher.update(chunk)
    if hasher.hexdigest() != digest_of(stored.references[_EVIDENCE]):
        raise EvidenceIncomplete("artifacts: its artifact is not what was stored")
    tops = [(artifact.to or artifact.path).strip("/") for artifact in declared]
    try:
        with stored.opened(_EVIDENCE) as file:
            for name in () if file is None else artifact_tars.safe_names(file):
                if not any(name == top or name.startswith(f"{top}/") for top in tops):
                    raise EvidenceIncomplete(f"the grader declares no artifact for {name!r}")
    except ArtifactsRefused as error:
        raise EvidenceIncomplete(f"its artifacts cannot be read: {error.message}") from None


def artifact_chunks(stored: StoredArtifacts) -> Iterator[bytes] | None:
    """Return the stored tar in pieces, None if there is none."""
    if _EVIDENCE not in stored.references:
        return None

    def chunks() -> Iterator[bytes]:
        with stored.opened(_EVIDENCE) as file:
            while file is not None and (chunk := file.read(MIB)):
                yield chunk

    return chunks()


def artifact_folders(stored: StoredArtifacts) -> tuple[str, ...]:
    """Return the folders of the grader's container that come from artifacts."""
    facts = stored.trial.evidence.get("ext", {}).get(_EVIDENCE) or ()
    folders = [str(each["to"]) for each in facts if each["kind"] == "folder"]
    return tuple(to for to in outermost(folders) if not to.startswith(f"{contract.ROOT}/"))
