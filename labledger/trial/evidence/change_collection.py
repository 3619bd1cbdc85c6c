"""Collect the changes of a trial in its container: the list, the patch and the snapshot.

Everything is redacted, or left out of the snapshot and named in the problems of the evidence. The
patch compares with the task's files in the workspace, or else with the image. The container must
have stopped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, cast

from labledger.engine.container_files import ContainerFiles
from labledger.engine.engine_errors import ContainerFailed
from labledger.files import patches
from labledger.files.untrusted_files import MIB
from labledger.files.workspace_listing import Entry
from labledger.records import JsonObject, canonical_json
from labledger.records.canonical_json import sha256_hex
from labledger.trial.evidence import tampering
from labledger.trial.evidence.container_changes import (
    Change,
    ChangeList,
    ChangesReader,
    Exclusions,
)
from labledger.trial.evidence.engine_archives import (
    ArchiveReader,
    HelperContainer,
    SnapshotWriter,
)
from labledger.trial.evidence.evidence_collection import EvidenceCollector
from labledger.trial.evidence.overlay_changes import OverlayReader, OverlayUnusable

_MAX_ORIGINALS = 64 * MIB
"""How many bytes of the image's files are held in memory. Further files are not compared."""
_FILES_OF_GVISOR = ".gvisor.filestore"
"""The file in which gVisor keeps a container's changes, unless a setting shows them to the
engine."""

CHANGES, SNAPSHOT, PATCH = "workspace_changes", "workspace_snapshot", "workspace_patch"


@dataclass(frozen=True, slots=True)
class StoppedContainer:
    """A container whose changes are evidence."""

    files: ContainerFiles
    helper: HelperContainer
    """Makes a container of the same image that never runs."""

    def readers(self, attributes: JsonObject, workspace: str) -> Iterator[ChangesReader]:
        """Yield the reader to use, and then the reader to use if it raises `OverlayUnusable`."""
        exclusions = Exclusions.of(_mounts(attributes))
        overlay = OverlayReader.of(attributes, exclusions, workspace)
        if overlay is not None:
            yield overlay
        yield ArchiveReader(self.files, self.helper, exclusions, workspace)


def collect_changes(evidence: EvidenceCollector, container: StoppedContainer | None) -> list[str]:
    """Add the changes of the trial in its container.

    Return the first changed or new files in the workspace that interpreters or test tools load
    automatically. Raises `OSError` for failures of this host, and `EngineUnavailable`.
    """
    if container is None:
        evidence.add_problem(CHANGES, "its container is gone")
        return []
    try:
        attributes = container.files.attributes()
        for reader in container.readers(attributes, evidence.outputs.workspace.strip("/")):
            with suppress(OverlayUnusable):
                return _Collection(evidence, reader).collect(_volumes(attributes))
    except ContainerFailed as error:
        evidence.add_problem(CHANGES, error.message)
    return []


def _mounts(attributes: JsonObject) -> list[str]:
    mounts = [str(mount["Destination"]) for mount in attributes.get("Mounts") or ()]
    return [*mounts, *(attributes["HostConfig"].get("Tmpfs") or {})]


def _volumes(attributes: JsonObject) -> list[str]:
    mounts = attributes.get("Mounts") or ()
    return [str(mount["Destination"]) for mount in mounts if mount.get("Type") == "volume"]


@dataclass(frozen=True, slots=True)
class _Collection:
    evidence: EvidenceCollector
    reader: ChangesReader

    def collect(self, volumes: list[str]) -> list[str]:
        """Add list, patch and snapshot. If the reader raises an error, nothing is added."""
        outputs = self.evidence.outputs
        with tempfile.TemporaryFile(dir=outputs.folder) as file:
            snapshot = SnapshotWriter(cast("BinaryIO", file), self.evidence.redactor)
            for change, content in self.reader.changes():
                snapshot.add(change, content)
            changes = ChangeList(
                outputs.workspace, snapshot.changes, volumes, self.reader.truncated
            )
            patch = self._patch(snapshot)
            self.evidence.add_redacted(CHANGES, canonical_json.dump_bytes(changes.as_json()))
            if patch:
                self.evidence.add_redacted(PATCH, patch)
            if snapshot.size:
                reference = self.evidence.add_pieces(snapshot.chunks(), snapshot.size)
                self.evidence.references[SNAPSHOT] = reference
        self._add_problems(snapshot, changes)
        return self._autoloaded(snapshot)

    def _patch(self, snapshot: SnapshotWriter) -> bytes:
        """Return the patch of texts from the task's files or the image, the workspace first."""
        texts = {p: c for p, c in snapshot.changes.items() if c.kind == "file" or c.kind is None}
        before: dict[str, Entry] = {}
        contents: dict[str, bytes] = {}
        bytes_left = _MAX_ORIGINALS
        compared = [p for p, c in texts.items() if c.change != "added"]
        for change, content in self.reader.originals(compared, patches.MAX_PATCHED):
            before[change.path] = _entry(change)
            if change.kind == "file" and change.size <= min(bytes_left, patches.MAX_PATCHED):
                contents[change.path] = content
                bytes_left -= len(content)
        for path, content in self._seeded().items():
            entry = Entry("file", len(content), sha256_hex(content))
            if path in texts or path not in snapshot.changes:
                before[path], contents[path] = entry, content
        after = {p: _entry(c) for p, c in texts.items() if c.kind == "file"}
        names = sorted(texts.keys() | before.keys(), key=self._order)
        patch = patches.patch_of(
            names,
            before,
            after,
            contents.get,
            lambda path: snapshot.content(path, patches.MAX_PATCHED),
        )
        return patch.content

    def _seeded(self) -> dict[str, bytes]:
        """Return the texts that the task put into the workspace, by path."""
        top = self.evidence.outputs.workspace.strip("/")
        texts = patches.seeded_texts(self.evidence.outputs.seed).items()
        return {f"{top}/{name}".lstrip("/"): content for name, content in texts}

    def _order(self, path: str) -> tuple[bool, str]:
        return (not self._is_in_workspace(path), path)

    def _is_in_workspace(self, path: str) -> bool:
        top = self.evidence.outputs.workspace.strip("/")
        return not top or path.startswith(f"{top}/")

    def _add_problems(self, snapshot: SnapshotWriter, changes: ChangeList) -> None:
        problems = [
            f"{skipped.count:,} changes {reason}, the first of them {skipped.first}"
            for reason, skipped in snapshot.left_out.items()
        ]
        if changes.truncated:
            problems.append("there were more changes than are listed, or some could not be read")
        if changes.volumes:
            problems.append(
                f"it does not include the image's volumes: {', '.join(changes.volumes)}"
            )
        if any(path.startswith(_FILES_OF_GVISOR) for path in changes.changes):
            problems.append("the OCI runtime does not show the engine what a container changes")
        if problems:
            self.evidence.add_problem(SNAPSHOT, "left out: " + "; ".join(problems))

    def _autoloaded(self, snapshot: SnapshotWriter) -> list[str]:
        top = self.evidence.outputs.workspace.strip("/")
        seeded = {path: sha256_hex(content) for path, content in self._seeded().items()}
        autoloaded = (
            path.removeprefix(f"{top}/")
            for path, change in sorted(snapshot.changes.items())
            if change.change != "deleted"
            and change.kind != "folder"
            and self._is_in_workspace(path)
            and tampering.is_autoloaded_file(path)
            and (change.sha256 is None or change.sha256 != seeded.get(path))
        )
        return list(islice(autoloaded, tampering.MAX_PATHS))


def _entry(change: Change) -> Entry:
    is_program = change.kind == "file" and bool(change.mode & 0o100)
    return Entry(change.kind or "other", change.size, change.sha256, is_program)
