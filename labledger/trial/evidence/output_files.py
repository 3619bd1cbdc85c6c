"""Store what a phase left in its output folders as one tar, with what had to be left out said.

The smallest files are stored first, up to a cap, so that one huge log does not hide the results.
Files with secrets are left out whole, as those of a workspace are. Used by `artifacts`; a regrading
restores the agent's tar, and only if nothing was left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from labledger.storage.tar_writer import END
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.output_folders import outputs_of
from labledger.workspace import listing, tar_files
from labledger.workspace.listing import Entry
from labledger.workspace.untrusted_files import UnsafeFile, UntrustedFile


@dataclass(slots=True)
class OutputFiles:
    """The files of a phase's output folders by their names in the tar."""

    entries: dict[str, Entry] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    """Where each of them is on the host."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a file or folder is not in the tar."""

    @classmethod
    def of_phase(cls, spec: AttemptSpec, phase: str, redactor: Redactor) -> OutputFiles:
        """List the output folders of a phase and choose what can be stored."""
        files = cls()
        folder = spec.grader_folder if phase == "grader" else spec.folder
        for output in outputs_of(spec, phase) if folder.is_dir() else ():
            files._list(folder / output.name, output.name_in_tar)
        files._leave_out_secrets(redactor)
        files._leave_out_largest()
        return files

    def chunks(self) -> Iterator[bytes]:
        """Yield the tar in pieces. Raises `UnsafeFile` or `OSError`."""
        return tar_files.tar_of_paths(self.entries, self.paths)

    @property
    def size(self) -> int:
        """Of the tar, in bytes."""
        return tar_files.size_of(self.entries)

    @property
    def problem(self) -> str | None:
        """What was left out, in a sentence; None if nothing was."""
        if not self.left_out:
            return None
        name, why = next(iter(sorted(self.left_out.items())))
        count = len(self.left_out)
        return f"{count:,} left out, the first of them {name}: {why}"

    def _list(self, folder: Path, name_in_tar: Callable[[str], str]) -> None:
        listed = listing.list_folder(folder)
        if listed.truncated:
            self.left_out[name_in_tar("…")] = "there are too many files to list them all"
        for relative in listed.left_out:
            self.left_out[name_in_tar(relative)] = "a folder whose files are not stored"
        empty = {relative: Entry("folder", 0) for relative in listed.empty or ()}
        for relative, entry in (listed.entries | empty).items():
            name = name_in_tar(relative)
            if "\ufffd" in relative:
                self.left_out[name] = "its name is not UTF-8"
            elif entry.kind == "other":
                self.left_out[name] = "not a regular file"
            elif entry.kind == "file" and entry.sha256 is None:
                self.left_out[name] = "too large, or has several names"
            else:
                self.entries[name], self.paths[name] = entry, folder / relative

    def _leave_out_secrets(self, redactor: Redactor) -> None:
        for name, entry in list(self.entries.items()):
            try:
                holds_secret = redactor.contains_secret(
                    chain([name.encode(), b"\n"], self._content(name, entry))
                )
            except (UnsafeFile, OSError):
                self._leave_out(name, "could not be read")
                continue
            if holds_secret:
                self._leave_out(name, "holds a secret")

    def _content(self, name: str, entry: Entry) -> Iterable[bytes]:
        path = self.paths[name]
        match entry.kind:
            case "file":
                return UntrustedFile(path.parent, path.name).chunks(entry.size)
            case "link":
                return [os.fsencode(os.readlink(path))]  # noqa: PTH115
            case _:
                return ()

    def _leave_out_largest(self) -> None:
        size = len(END)
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].size, item[0])):
            own_size = tar_files.size_of({name: entry}) - len(END)
            if size + own_size > tar_files.CAP:
                self._leave_out(name, f"more than {tar_files.CAP:,} bytes with the smaller ones")
            else:
                size += own_size

    def _leave_out(self, name: str, why: str) -> None:
        del self.entries[name], self.paths[name]
        self.left_out[name] = why
