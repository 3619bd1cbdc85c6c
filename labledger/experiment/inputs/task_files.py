"""Files of a single task: for its grader, or for its agent in certain variants.

They are packed like workspaces, and a task's row names the tar. The grader's arrive with its other
files and are copied to their `path` just before its command; the agent's are mounted there. Used by
`dataset`, which reads tasks, and by `life.input_files.task_files`, which puts the files in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from labledger.experiment.inputs.container_paths import overlap, unusable
from labledger.experiment.inputs.field_problems import FieldPath, FieldProblem, relative_name
from labledger.experiment.inputs.workspace_tars import WorkspaceSource, WorkspaceTar
from labledger.experiment.settings.runtime_values import user_name
from labledger.experiment.stored_sections import Section
from labledger.records import JsonObject


class FilesPlace(NamedTuple):
    """Where files of a task are put."""

    recipient: str
    path: str
    sets_owner: bool


@dataclass(frozen=True, slots=True)
class TaskFiles(Section):
    """A folder of files of a task, and where a container has it."""

    path: str
    """The folder's absolute path in the container."""
    tar: str
    """SHA-256 (hex) of the tar in the artifact store."""
    size: int
    """Of the tar, in bytes."""
    recipient: str
    """`agent` or `grader`."""
    variants: tuple[str, ...] | None = None
    """The variants whose agent gets the files; None for all."""
    user: str | None = None
    """The owner of the grader's copy; None for the container's user."""
    writable: bool | None = None
    """True if each agent gets a copy of the files that it can change; None to mount the files
    themselves."""

    _KEYS: ClassVar = {"recipient": "for"}
    _OPTIONAL = frozenset({"variants", "user", "writable"})

    @classmethod
    def of_authored(
        cls, authored: JsonObject, folder: Path, packed: Mapping[WorkspaceSource, WorkspaceTar]
    ) -> Self:
        """Return the files of a valid authored entry, whose path starts from `folder`.

        Raises `KeyError` for files that are not among `packed`.
        """
        tar = packed[files_source(authored, folder)]
        variants = authored.get("variants")
        return cls(
            authored["path"],
            tar.sha256,
            tar.size,
            authored["for"],
            None if variants is None else tuple(variants),
            user_name(authored.get("user")),
            authored.get("writable") or None,
        )

    @property
    def place(self) -> FilesPlace:
        return FilesPlace(self.recipient, self.path, self.user is not None)

    @property
    def is_for_certain_agents(self) -> bool:
        """Whether only the agents of certain variants get the files."""
        return self.recipient == "agent" and self.variants is not None

    def is_for_agent_of(self, variant_id: str) -> bool:
        """Return whether the agent of a variant gets the files."""
        return self.recipient == "agent" and (self.variants is None or variant_id in self.variants)


def files_source(entry: JsonObject, folder: Path) -> WorkspaceSource:
    """Return what an authored entry of `files` is packed from. Raises `UnusablePath`."""
    key = "tar" if "tar" in entry else "directory"
    return WorkspaceSource(folder / relative_name(entry[key]), key == "tar")


def file_problems(row: JsonObject, variants: Collection[str]) -> Iterator[FieldProblem]:
    """Yield the problems of a row's `files` that its schema cannot detect.

    `variants` are the ids of all variants of the experiment.
    """
    earlier: list[JsonObject] = []
    for index, entry in enumerate(row.get("files", ())):
        path: FieldPath = ("files", index)
        if ("directory" in entry) == ("tar" in entry):
            yield FieldProblem(path, "expected exactly one of directory and tar")
        if problem := unusable(entry["path"]):
            yield FieldProblem((*path, "path"), problem)
        for at, other in enumerate(earlier):
            if _have_one_reader(entry, other) and overlap(other["path"], entry["path"]):
                message = f"{entry['path']} overlaps with {other['path']} of entry {at}"
                yield FieldProblem((*path, "path"), message)
        earlier.append(entry)
        if entry["for"] == "grader" and "variants" in entry:
            yield FieldProblem((*path, "variants"), "the grader is the same for every variant")
        if entry["for"] == "grader" and "writable" in entry:
            yield FieldProblem((*path, "writable"), "the grader always gets a copy of its own")
        if entry["for"] == "agent" and "user" in entry:
            message = "the agent's files are mounted and keep their owner"
            yield FieldProblem((*path, "user"), message)
        for at, name in enumerate(entry.get("variants", ())):
            if name not in variants:
                hint = f"variants: {', '.join(sorted(variants))}"
                yield FieldProblem((*path, "variants", at), f"there is no variant {name!r}", hint)


def _have_one_reader(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two entries can be in the same container."""
    if one["for"] != other["for"]:
        return False
    variants, others = one.get("variants"), other.get("variants")
    return variants is None or others is None or not set(variants).isdisjoint(others)
