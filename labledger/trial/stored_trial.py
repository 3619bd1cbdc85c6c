"""A stored trial that is graded again: its records, its artifacts, and its grader's inputs.

They are untrusted and may come from an imported ledger. Contents are checked against their digests,
names in a tar against the grader's declared paths, and a snapshot against the list of changes.
Either everything is restored or `EvidenceIncomplete` is raised.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

from labledger.errors import ArtifactChanged, LabLedgerError
from labledger.files import artifact_tars, patches
from labledger.files.artifact_store import ArtifactStore
from labledger.files.artifact_tars import ArtifactsRefused
from labledger.files.tars import content_of, each_member, open_stream
from labledger.files.untrusted_files import MIB, parents
from labledger.files.workspace_listing import MalformedListing
from labledger.records import JsonObject
from labledger.records.attempt_result import REFERENCE, Artifact, MetricValue, Phase
from labledger.records.canonical_json import sha256_hex
from labledger.records.identity import TrialIds
from labledger.trial import contract
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.evidence import engine_archives
from labledger.trial.evidence.change_collection import CHANGES, SNAPSHOT
from labledger.trial.evidence.container_changes import (
    Change,
    ChangeList,
    Exclusions,
    is_exact,
)
from labledger.trial.evidence.declared_artifacts import TakenArtifacts

ARTIFACTS = "artifacts"
"""The tar of declared artifacts in the evidence, and their facts in its `ext`."""
_REDACTION_MARK = re.compile(rb"\[redacted:\w+\]")
_MAX_READ_BYTES = 64 * MIB
"""Artifacts of a trial that are read as a whole are at most this large."""
_MAX_NAMED = 5
"""How many paths a message names."""
_MAX_NAME_CHARACTERS = 120
_MAX_WORDS = 64 * 1024
"""How many bytes of paths one command of the script has. An engine's kernel allows 128 KiB."""


class EvidenceIncomplete(LabLedgerError):
    """The evidence of an earlier container that a trial needs is missing or not exact."""


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A stored trial of another run, which a regrading grades again."""

    ids: TrialIds
    """The identity of the trial in the original run."""
    record: JsonObject
    """Its `trial_record_v1`."""
    evidence: JsonObject
    """The `evidence_record_v1` of its last attempt."""
    contents: Mapping[str, bytes]
    """Its artifacts in the ledger, by SHA-256 (hex). Other artifacts are in the store."""
    counted: tuple[MetricValue, ...] | None = None
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
    def artifacts(self) -> TakenArtifacts | None:
        """The artifacts for a separate grader; None if it had none."""
        packed = self.evidence.get("ext", {}).get(ARTIFACTS)
        return None if packed is None else TakenArtifacts(tuple(packed))

    @property
    def redactions(self) -> int:
        """How many secrets were redacted from its outputs."""
        count = self.evidence.get("ext", {}).get("redacted")
        return count if isinstance(count, int) else 0

    def extension(self, key: str) -> JsonObject:
        """Return the object under a key of `ext` in its evidence, or {}."""
        value = self.evidence.get("ext", {}).get(key)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """The artifacts of a stored trial, by their names in its evidence."""

    trial: StoredTrial
    store: ArtifactStore

    @property
    def references(self) -> dict[str, str]:
        references: dict[str, str] = self.trial.evidence["evidence"]
        return references

    def problem(self, name: str) -> str | None:
        """Return the recorded reason why a piece of evidence is missing or incomplete, or None."""
        problem = self.trial.extension("problems").get(name)
        return None if problem is None else str(problem)

    def read(self, name: str) -> bytes | None:
        """Return the content of an artifact, or None if there is none.

        Raises `EvidenceIncomplete`.
        """
        with self.opened(name) as file:
            content = None if file is None else file.read(_MAX_READ_BYTES + 1)
        if content is None:
            return None
        if len(content) > _MAX_READ_BYTES or sha256_hex(content) != _digest(self.references[name]):
            raise EvidenceIncomplete(f"{name}: its artifact is not what was stored")
        return content

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO | None]:
        """Open an artifact as a file; provides None if there is none.

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

    def require_unchanged(self, name: str, file: BinaryIO) -> None:
        """Raise `EvidenceIncomplete` unless an open artifact is what was stored."""
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest != _digest(self.references[name]):
            raise EvidenceIncomplete(f"{name}: its artifact is not what was stored")
        file.seek(0)

    def chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of an artifact in pieces, or None if there is none.

        The first piece may raise `EvidenceIncomplete`.
        """
        return self._chunks(name) if name in self.references else None

    def _chunks(self, name: str) -> Iterator[bytes]:
        with self.opened(name) as file:
            while file is not None and (chunk := file.read(MIB)):
                yield chunk

    def artifact(self, reference: str) -> Artifact | None:
        """Return the artifact of a reference, or None if it is missing."""
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
        """Return whether a secret may have been redacted from a stored content."""
        return self.trial.redactions > 0 and _REDACTION_MARK.search(content) is not None


def _digest(reference: str) -> str:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise EvidenceIncomplete(f"{reference!r} refers to no artifact")
    return match[1]


def named(problems: Mapping[str, str]) -> str:
    """Return the first names with problems, each with its problem."""
    names = sorted(problems)
    shown = [f"{shortened(name)} ({problems[name]})" for name in names[:_MAX_NAMED]]
    if len(names) > _MAX_NAMED:
        shown.append(f"and {len(names) - _MAX_NAMED} more")
    return ", ".join(shown)


def shortened(name: str) -> str:
    """Return a name for a message: quoted, and not too long."""
    quoted = patches.quoted(name)
    return quoted if len(quoted) <= _MAX_NAME_CHARACTERS else f"{quoted[:_MAX_NAME_CHARACTERS]}..."


# -- declared artifacts


def require_artifacts(spec: ContainerSpec, stored: StoredArtifacts) -> None:
    """Raise `EvidenceIncomplete` if the artifacts of a stored trial cannot be restored exactly."""
    declared = spec.settings.grading.artifacts or ()
    if not declared and stored.trial.artifacts is None:
        return
    if stored.trial.artifacts is None or ARTIFACTS not in stored.references:
        raise EvidenceIncomplete("no artifacts were taken from its agent's container")
    if stored.trial.extension("artifacts_with_secrets"):
        raise EvidenceIncomplete(f"its artifacts were not stored: {stored.problem(ARTIFACTS)}")
    tops = [(artifact.to or artifact.path).strip("/") for artifact in declared]
    with stored.opened(ARTIFACTS) as file:
        assert file is not None
        stored.require_unchanged(ARTIFACTS, file)
        try:
            for name in artifact_tars.safe_names(file):
                if not any(name == top or name.startswith(f"{top}/") for top in tops):
                    raise EvidenceIncomplete(f"the grader declares no artifact for {name!r}")
        except ArtifactsRefused as error:
            raise EvidenceIncomplete(f"its artifacts cannot be read: {error.message}") from None


# -- changes of a container of the same image


def prepare_restore(stored: StoredArtifacts, workspace: str) -> bytes | None:
    """Return the script that deletes what the trial deleted, or None if it deleted nothing.

    Raises `EvidenceIncomplete` unless everything else is in the snapshot.
    """
    changes = _stored_changes(stored)
    problem = stored.problem(SNAPSHOT)
    recorded = f"; problem recorded with the trial: {problem}" if problem else ""
    if changes.workspace != workspace:
        raise EvidenceIncomplete(f"its workspace was {changes.workspace}, not {workspace}")
    if changes.truncated:
        many = "there were more changes in its container than are listed"
        raise EvidenceIncomplete(f"{many}{recorded}")
    _require_restorable(stored, changes, recorded)
    if problem is not None:
        raise EvidenceIncomplete(f"its container cannot be restored{recorded}")
    _check_snapshot(stored, changes)
    return _deletions([path for path, c in changes.changes.items() if c.change == "deleted"])


def _stored_changes(stored: StoredArtifacts) -> ChangeList:
    content = stored.read(CHANGES)
    if content is None:
        why = stored.problem(CHANGES)
        recorded = f": {why}" if why else ""
        raise EvidenceIncomplete(f"there is no list of the changes in its container{recorded}")
    try:
        return ChangeList.of(content)
    except MalformedListing as error:
        raise EvidenceIncomplete(f"the list of its changes cannot be read: {error}") from None


def _require_restorable(stored: StoredArtifacts, changes: ChangeList, recorded: str) -> None:
    """Raise `EvidenceIncomplete`, which names the first paths, if the list is not restorable."""
    problems: dict[str, str] = {}
    exclusions = Exclusions.of(())
    for path, change in changes.changes.items():
        if not is_exact(path):
            problems[path] = "its name was not stored exactly"
        elif exclusions.excludes(path):
            problems[path] = "it is not the trial's"
        elif stored.holds_redacted(f"{path}\n{change.target}".encode("utf-8", "replace")):
            problems[path] = "a secret was redacted in its name"
        elif any(
            (above := changes.changes.get(parent)) is not None and above.kind != "folder"
            for parent in parents(path)
        ):
            problems[path] = "no file can be at this path"
        elif not change.is_stored:
            problems[path] = f"{change.kind or 'its kind'} is not in the snapshot"
    if problems:
        raise EvidenceIncomplete(f"its container cannot be restored: {named(problems)}{recorded}")


def _check_snapshot(stored: StoredArtifacts, changes: ChangeList) -> None:
    """Raise `EvidenceIncomplete` unless the snapshot holds exactly what the list says."""
    expected = {
        path: change
        for path, change in changes.changes.items()
        if change.change != "deleted" and change.kind != "socket"
    }
    with stored.opened(SNAPSHOT) as file:
        if file is None:
            if expected:
                raise EvidenceIncomplete("there is no snapshot of what it changed")
            return
        if file.seek(0, os.SEEK_END) > engine_archives.CAP:
            raise EvidenceIncomplete("the snapshot of its changes is too large")
        file.seek(0)
        stored.require_unchanged(SNAPSHOT, file)
        try:
            _compare_members(file, expected)
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise EvidenceIncomplete(f"the snapshot cannot be read: {error}") from None
    if expected:
        raise EvidenceIncomplete(f"the snapshot lacks {shortened(min(expected))}")


def _compare_members(file: BinaryIO, expected: dict[str, Change]) -> None:
    """Remove each member from `expected`. Raises `EvidenceIncomplete` if one differs."""
    with open_stream(file) as archive:
        end = 0
        for member in each_member(archive):
            change = expected.pop(member.name, None)
            if change is None or member.offset != end:
                raise EvidenceIncomplete(f"the snapshot has an unexpected {shortened(member.name)}")
            size, header = change.size, engine_archives.header(change)
            end = member.offset_data + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if engine_archives.header(_as_change(member, change)) != header:
                raise EvidenceIncomplete(f"the snapshot has a different {shortened(member.name)}")
            if change.kind != "file":
                continue
            hasher = hashlib.sha256()
            for chunk in content_of(archive, member):
                hasher.update(chunk)
            if hasher.hexdigest() != change.sha256:
                raise EvidenceIncomplete(f"the snapshot has a different {shortened(member.name)}")


def _as_change(member: tarfile.TarInfo, change: Change) -> Change:
    kinds = (kind for kind, flag in engine_archives.TYPES.items() if flag == member.type)
    kind = next(kinds, None)
    if kind is None or member.sparse:
        raise EvidenceIncomplete(f"the snapshot has something else at {shortened(member.name)}")
    return replace(
        change,
        kind=kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime),
        size=member.size,
        target=member.linkname,
    )


def _deletions(paths: list[str]) -> bytes | None:
    """Return a shell script that deletes paths, and fails if one of them is left."""
    if not paths:
        return None
    lines: list[str] = []
    words: list[str] = []
    size = 0
    for path in sorted(paths):
        word = shlex.quote(f"/{path}")
        words.append(word)
        size += len(word.encode())
        if size > _MAX_WORDS:
            lines.append(f"rm -rf -- {' '.join(words)} || exit 1")
            words, size = [], 0
    if words:
        lines.append(f"rm -rf -- {' '.join(words)} || exit 1")
    return ("\n".join(lines) + "\n").encode()
