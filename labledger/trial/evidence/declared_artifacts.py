"""Take the declared artifacts out of an agent's stopped container, and keep them durably.

They are packed into one tar in the artifact store before the agent's container may go: it is what a
separate grader gets, the evidence of what was graded, and what a regrading restores. Files that
hold a secret are never stored; then the complete tar stays in the trial folder for the grader, and
a regrading cannot restore it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from labledger import fault_points
from labledger.engine.container_files import ContainerFiles
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.engine.engine_facts import ContainerState
from labledger.experiment.grading import DeclaredArtifact
from labledger.files import artifact_tars, tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.artifact_tars import ArtifactPacker, ArtifactsRefused, PackedArtifact, Readable
from labledger.files.durable_files import replace_file
from labledger.files.tars import END
from labledger.records import JsonObject
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence import tampering
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.output_folders import outputs_of_container

_MAX_LINKS = 5
"""How many symbolic links from the path of an artifact are followed."""

_BAD_PATHS = ("too many links", "too many levels", "not a directory", "file name too long")
"""What the engine says of a path at which the agent made it impossible that anything is."""


@dataclass(frozen=True, slots=True)
class TakenArtifacts:
    """The artifacts of a trial as they were taken. Field names are those of `first_part.json`."""

    packed: tuple[JsonObject, ...]
    """What is known of each, in the order in which they are declared."""
    sha256: str | None = None
    """Of the stored tar; None if nothing was taken."""
    size: int = 0
    """Of the stored tar, in bytes."""
    hooks: tuple[str, ...] = ()
    """The first files that interpreters or test tools load without being asked to."""
    with_secrets: tuple[str, ...] = ()
    """Names of files that hold secrets. They are in the tar in the trial folder only."""
    refused: str | None = None
    """Why the trial cannot be graded, if so."""

    @classmethod
    def from_json(cls, fields: JsonObject) -> Self:
        lists = {name: tuple(fields[name]) for name in ("packed", "hooks", "with_secrets")}
        return cls(**fields | lists)

    def tar(self, spec: AttemptSpec) -> Path | None:
        """Return the file with the complete tar, None if nothing was taken."""
        if self.sha256 is None:
            return None
        if self.with_secrets:
            return _complete_tar(spec)
        return ArtifactStore(spec.plan.store_root).path(self.sha256)

    def folders(self) -> tuple[str, ...]:
        """Return the folders that come to the grader's container, without those in another one.

        What its image has there does not remain. A mounted workspace begins empty anyway.
        """
        folders = [str(facts["to"]) for facts in self.packed if facts["kind"] == "folder"]
        return tuple(to for to in outermost(folders) if not to.startswith(f"{contract.ROOT}/"))

    def problem(self) -> str | None:
        """Return what is missing in the stored tar or was not there, or None."""
        problems = [
            f"{facts['path']} does not exist"
            for facts in self.packed
            if facts["kind"] == "missing" and not facts.get("optional")
        ]
        for facts in self.packed:
            if total := facts.get("left_out_total"):
                name, why = next(iter(facts["left_out"].items()))
                problems.append(f"{facts['path']}: {total:,} left out, the first {name} ({why})")
        if self.with_secrets:
            count, first = len(self.with_secrets), self.with_secrets[0]
            problems.append(f"{count:,} files hold secrets, the first of them {first}")
        return "; ".join(problems) or None


def outermost(folders: Iterable[str]) -> list[str]:
    """Return the folders that are in none of the others, sorted."""
    tops: list[str] = []
    for folder in sorted(each.rstrip("/") for each in folders):
        if not any(folder == top or folder.startswith(f"{top}/") for top in tops):
            tops.append(folder)
    return tops


def _complete_tar(spec: AttemptSpec) -> Path:
    return spec.folder / "artifacts.tar"


def take_artifacts(
    engine: Engine, spec: AttemptSpec, state: ContainerState, redactor: Redactor
) -> TakenArtifacts:
    """Take the declared artifacts of a stopped container. They are durable when this returns.

    `state` is the container's. Raises `OSError`, `NoSuchContainer`, `ContainerFailed` and
    `EngineUnavailable`; the call can be repeated.
    """
    declared = spec.settings.grading.artifacts or ()
    if not declared:
        return TakenArtifacts(())
    files = ContainerFiles(engine, state.container_id)
    taking = _Taking(files, spec, _folders_here(spec, state))
    store = ArtifactStore(spec.plan.store_root)
    try:
        if not spec.plan.environment:
            sha256, size = store.put_stream(taking.tar(declared))
            return taking.taken(sha256, size)
        path = _complete_tar(spec)
        with replace_file(path) as file:
            file.writelines(taking.tar(declared))
    except ArtifactsRefused as error:
        return TakenArtifacts(taking.facts(), refused=redactor.redact_message(error.message))
    with_secrets = _names_with_secrets(path, redactor)
    with path.open("rb") as file:
        sha256, size = store.put_stream(artifact_tars.without(file, with_secrets))
    if not with_secrets:
        path.unlink()
    return taking.taken(sha256, size, with_secrets)


def _names_with_secrets(path: Path, redactor: Redactor) -> tuple[str, ...]:
    with path.open("rb") as file:
        return tuple(
            name
            for name, target, content in artifact_tars.files(file)
            if redactor.contains_secret(
                chain([f"{name}\n{target}\n".encode("utf-8", "surrogateescape")], content)
            )
        )


def _folders_here(spec: AttemptSpec, state: ContainerState) -> dict[str, Path]:
    """Return the trial's own folders on this host by their paths in the agent's container.

    Not one in which the container has something else mounted: it is not in the host's folder.
    """
    folders = {each.path: spec.folder / each.name for each in outputs_of_container(spec)}
    if spec.has_mounted_workspace:
        folders[contract.WORKSPACE] = spec.folder / "workspace"
    return {
        path: folder
        for path, folder in folders.items()
        if not any(mounted.startswith(f"{path}/") for mounted in state.mounts)
    }


class _Taking:
    """The artifacts of one container while they are packed."""

    def __init__(
        self, files: ContainerFiles, spec: AttemptSpec, folders: Mapping[str, Path]
    ) -> None:
        """`folders` are those of the container that this host has too, by path."""
        self._files, self._spec, self._folders = files, spec, folders
        self._packer = ArtifactPacker(tampering.is_autoloaded_file)
        self._packed: list[tuple[PackedArtifact, bool]] = []
        """Each with whether it is optional."""

    def tar(self, declared: tuple[DeclaredArtifact, ...]) -> Iterator[bytes]:
        """Yield the tar of all artifacts in pieces. Raises `ArtifactsRefused`."""
        for artifact in declared:
            packed = PackedArtifact(artifact.path, artifact.to or artifact.path)
            self._packed.append((packed, bool(artifact.optional)))
            for piece in self._pack(artifact, packed):
                yield piece
                fault_points.fault_point("inside_artifacts", self._spec.slot.schedule_idx)
        yield END

    def _pack(self, artifact: DeclaredArtifact, packed: PackedArtifact) -> Iterator[bytes]:
        """Yield an artifact's members. If its path is a symbolic link, yield what that leads to."""
        for _ in range(_MAX_LINKS):
            before = packed.link
            path = before or artifact.path
            with ExitStack() as stack:
                try:
                    # The engine starts a program for each tar, which takes longer than a few files.
                    stream = self._tar_here(path) or stack.enter_context(self._files.tar_of(path))
                except ContainerFailed as error:
                    if not any(each in error.message.lower() for each in _BAD_PATHS):
                        raise
                    stream = None
                if stream is None:
                    return
                yield from self._packer.pack(stream, packed, artifact.exclude or ())
            if packed.link == before:
                return
        packed.leave_out(artifact.path, "a chain of too many links")

    def _tar_here(self, path: str) -> Readable | None:
        folder = self._folders.get(path.rstrip("/"))
        return None if folder is None else tars.small_tar(folder, posixpath.basename(path))

    def facts(self) -> tuple[JsonObject, ...]:
        return tuple(
            packed.as_json() | ({"optional": True} if optional else {})
            for packed, optional in self._packed
        )

    def taken(self, sha256: str, size: int, with_secrets: tuple[str, ...] = ()) -> TakenArtifacts:
        return TakenArtifacts(self.facts(), sha256, size, tuple(self._packer.notable), with_secrets)
