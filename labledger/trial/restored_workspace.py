"""From a seeded workspace to what an agent made of it, by what is stored, or not at all.

A patch, files and a list of all files are stored. They are as hostile as any output: only names of
the list that are plain and fit each other are ever written, nothing through a link, and what comes
out is compared with the list.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labledger.canonical import sha256_hex
from labledger.trial import applying, patches, workspace, workspace_tar
from labledger.trial.seeds import OPEN_FILE, OPEN_PROGRAM, is_plain, make_folders
from labledger.trial.stored import EvidenceIncomplete, Stored
from labledger.trial.workspace import CACHES, LEFT_OUT, Entry, Listing

_SHOWN = 5
"""How many files a message names."""
_SHOWN_LENGTH = 120
_BAD_NAMES = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
"""What the system says of a name that cannot be."""


@dataclass(slots=True)
class RestoredWorkspace:
    """A seeded workspace on its way to what `wanted` lists."""

    folder: Path
    wanted: Listing
    lost: dict[str, str] = field(default_factory=dict)
    """Names that cannot be restored, and why."""
    _missing: dict[str, Entry] = field(default_factory=dict)
    """What is not there yet."""
    _links: dict[str, bytes] = field(default_factory=dict)
    """What missing links point to. They are made last: nothing is written through them."""

    def restore(self, stored: Stored) -> None:
        """Raises `EvidenceIncomplete`, with the first names, where that cannot be done exactly."""
        self._refuse_what_is_not_known()
        present = workspace.list_folder(self.folder)
        if present.truncated:
            raise EvidenceIncomplete("the workspace that its task begins with has too many files")
        for name, entry in self.wanted.entries.items():
            if not entry.holds_what(present.entries.get(name)):
                self._missing[name] = entry
        self._clear(present)
        self._take_files(stored)
        self._take_texts(stored, present)
        self._raise_if_lost(stored.problem("workspace_files"))
        self._finish()
        self._compare()

    def _refuse_what_is_not_known(self) -> None:
        wanted = self.wanted
        if wanted.truncated:
            raise EvidenceIncomplete("its workspace had too many files to list them all")
        empty = set(wanted.empty or ())
        folders = {*wanted.left_out, *empty}
        for name in {*wanted.entries, *folders}:
            inside = name.split("/") if name in empty else name.split("/")[:-1]
            if not is_plain(name) or "\ufffd" in name:
                self.lost[name] = "its name was not kept as it was"
            elif not LEFT_OUT.isdisjoint(inside) or any(p in wanted.entries for p in _above(name)):
                self.lost[name] = "nothing can lie there"
        for name in wanted.left_out:
            if PurePosixPath(name).name not in CACHES:
                self.lost.setdefault(name, "a folder that was not looked into")
        for name in folders & wanted.entries.keys():
            self.lost.setdefault(name, "it cannot be a file and a folder")
        for name, entry in wanted.entries.items():
            if entry.sha256 is None:
                what = "no file" if entry.kind == "other" else "too large, or had several names"
                self.lost.setdefault(name, f"it was {what}")
        self._raise_if_lost()

    def _clear(self, present: Listing) -> None:
        """Remove what is not wanted: files and links first, then folders that nothing needs."""
        wanted = self.wanted
        for name in present.entries.keys() - wanted.entries.keys():
            (self.folder / name).unlink()
        for name in set(present.left_out) - set(wanted.left_out):
            shutil.rmtree(self.folder / name)
        empty = present.empty if wanted.empty is None else wanted.empty
        kept = {*wanted.left_out, *(empty or ())}
        kept.update(*(_above(name) for name in (*wanted.entries, *kept)))
        for name in reversed(list(_folders(self.folder))):
            if name not in kept:
                (self.folder / name).rmdir()

    def _take_files(self, stored: Stored) -> None:
        with stored.opened("workspace_files") as file:
            if file is None:
                return
            try:
                for name, target, content in workspace_tar.members(file):
                    entry = self._missing.get(name)
                    if entry is None:
                        continue
                    if target is None and entry.kind == "file":
                        self._put(name, content)
                    elif target is not None and entry.kind == "link":
                        self._keep_link(name, target)
            except (tarfile.TarError, ValueError, EOFError) as error:
                raise EvidenceIncomplete(f"the files kept of it cannot be read: {error}") from None

    def _keep_link(self, name: str, target: bytes) -> None:
        if sha256_hex(target) == self._missing[name].sha256:
            self._links[name] = target
            del self._missing[name]

    def _take_texts(self, stored: Stored, present: Listing) -> None:
        patch = stored.read("workspace_patch") or b""
        pieces = applying.pieces(patch, self._missing)
        for name, piece in pieces.items():
            with suppress(applying.Misfit):
                self._put(name, [applying.applied(piece, self._base(name, present))])
        is_cut = patches.CUT.encode() in patch
        for name, entry in self._missing.items():
            if name in pieces:
                why = "its patch does not lead to it: secrets are taken out of patches"
            else:
                why = "the patch was cut off" if is_cut else "not kept"
            self.lost.setdefault(name, f"{entry.kind} of {entry.size:,} bytes, {why}")

    def _base(self, name: str, present: Listing) -> bytes:
        """What a text was before. Raises `Misfit` for what no patch was ever made of."""
        was = present.entries.get(name)
        if was is None:
            return b""
        if was.kind != "file" or was.size > patches.MAX_PATCHED:
            raise applying.Misfit
        return (self.folder / name).read_bytes()

    def _put(self, name: str, content: Iterable[bytes]) -> None:
        """Write a missing file; where it does not come out as it was, it goes on being missing."""
        entry = self._missing[name]
        path = self.folder / name
        hasher, size = hashlib.sha256(), 0
        with self._made(name), path.open("xb") as handle:
            for chunk in content:
                size += len(chunk)
                if size > entry.size:
                    break
                hasher.update(chunk)
                handle.write(chunk)
        if hasher.hexdigest() == entry.sha256:
            del self._missing[name]

    @contextmanager
    def _made(self, name: str) -> Iterator[None]:
        """Make room for a new file or link. A name that cannot be is lost."""
        try:
            make_folders(self.folder, Path(name).parent)
            (self.folder / name).unlink(missing_ok=True)
            yield
        except OSError as error:
            if error.errno not in _BAD_NAMES:
                raise
            self.lost[name] = f"there can be no such file ({error.strerror})"

    def _finish(self) -> None:
        for name, target in self._links.items():
            with self._made(name):
                (self.folder / name).symlink_to(os.fsdecode(target))
        for name, entry in self.wanted.entries.items():
            if entry.kind == "file":
                (self.folder / name).chmod(OPEN_PROGRAM if entry.executable else OPEN_FILE)
        for name in (*self.wanted.left_out, *(self.wanted.empty or ())):
            make_folders(self.folder, Path(name))

    def _compare(self) -> None:
        wanted, found = self.wanted, workspace.list_folder(self.folder)
        for name in wanted.entries.keys() | found.entries.keys():
            if wanted.entries.get(name) != found.entries.get(name):
                self.lost[name] = "it did not come out as it was"
        for ours, theirs in ((found.left_out, wanted.left_out), (found.empty, wanted.empty)):
            if theirs is not None:
                for name in set(ours or ()) ^ set(theirs):
                    self.lost[name] = "a folder that did not come out as it was"
        self._raise_if_lost()

    def _raise_if_lost(self, problem: str | None = None) -> None:
        if not self.lost:
            return
        names = sorted(self.lost)
        shown = [f"{_brief(name)} ({self.lost[name]})" for name in names[:_SHOWN]]
        if len(names) > _SHOWN:
            shown.append(f"and {len(names) - _SHOWN} more")
        told = f"; as was noted then: {problem}" if problem else ""
        raise EvidenceIncomplete(f"its workspace cannot be restored: {', '.join(shown)}{told}")


def _above(name: str) -> list[str]:
    """The folders that a name lies in."""
    steps = name.split("/")
    return ["/".join(steps[:i]) for i in range(1, len(steps))]


def _folders(top: Path) -> Iterator[str]:
    """Each folder of a workspace that a listing looks into, those above before those below."""
    for current, folders, _ in os.walk(top):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in folders:
            path = Path(current, name)
            if not path.is_symlink():
                yield path.relative_to(top).as_posix()


def _brief(name: str) -> str:
    quoted = patches.quoted(name)
    return quoted if len(quoted) <= _SHOWN_LENGTH else f"{quoted[:_SHOWN_LENGTH]}..."
