"""Restore what a stored trial had changed in its container, in a new container of the same image.

The list of changes and the snapshot are as untrusted as any output: paths are checked, and each
member of the snapshot is compared with the list before a container gets it. Deletions become a
script that runs before the grader. Either everything is restored or `EvidenceIncomplete` is raised.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from labledger.files import patches
from labledger.files.tars import content_of, each_member, open_stream
from labledger.files.untrusted_files import MIB
from labledger.files.workspace_listing import MalformedListing
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence import engine_archives
from labledger.trial.evidence.change_collection import CHANGES, SNAPSHOT
from labledger.trial.evidence.container_changes import (
    Change,
    ChangeList,
    Exclusions,
    is_exact,
    parents_of,
)
from labledger.trial.stored_trial import EvidenceIncomplete, StoredArtifacts, StoredTrial

_MAX_NAMED = 5
"""How many paths a message names."""
_MAX_NAME_CHARACTERS = 120
_MAX_WORDS = 64 * 1024
"""How many bytes of paths one command of the script has; an engine's kernel allows 128 KiB."""

_TOO_MANY = "there were more changes in its container than are listed"


def prepare_restore(stored: StoredArtifacts, workspace: str) -> bytes | None:
    """Return the script that deletes what the trial deleted, None if it deleted nothing.

    Raises `EvidenceIncomplete` unless everything else is in the snapshot.
    """
    changes = _stored_changes(stored)
    problem = stored.problem(SNAPSHOT)
    recorded = f"; problem recorded with the trial: {problem}" if problem else ""
    if changes.workspace != workspace:
        raise EvidenceIncomplete(f"its workspace was {changes.workspace}, not {workspace}")
    if changes.truncated:
        raise EvidenceIncomplete(f"{_TOO_MANY}{recorded}")
    _require_restorable(stored, changes, recorded)
    if problem is not None:
        raise EvidenceIncomplete(f"its container cannot be restored{recorded}")
    _check_snapshot(stored, changes)
    return _deletions([path for path, c in changes.changes.items() if c.change == "deleted"])


def snapshot_chunks(spec: AttemptSpec, trial: StoredTrial) -> Iterator[bytes] | None:
    """Return the snapshot in pieces, after `prepare_restore` has checked it; None if it is empty.

    Raises `EvidenceIncomplete`.
    """
    stored = StoredArtifacts.of(spec, trial)
    return _chunks(stored) if SNAPSHOT in stored.references else None


def _chunks(stored: StoredArtifacts) -> Iterator[bytes]:
    with stored.opened(SNAPSHOT) as file:
        assert file is not None
        while chunk := file.read(MIB):
            yield chunk


def _stored_changes(stored: StoredArtifacts) -> ChangeList:
    content = stored.read(CHANGES)
    if content is None:
        why = stored.problem(CHANGES)
        recorded = f": {why}" if why else ""
        raise EvidenceIncomplete(f"there is no list of what it changed in its container{recorded}")
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
            for parent in parents_of(path)
        ):
            problems[path] = "no file can be at this path"
        elif not change.is_stored:
            problems[path] = f"{change.kind or 'its kind'} is not in the snapshot"
    if problems:
        names = sorted(problems)
        shown = [f"{_shortened(name)} ({problems[name]})" for name in names[:_MAX_NAMED]]
        if len(names) > _MAX_NAMED:
            shown.append(f"and {len(names) - _MAX_NAMED} more")
        raise EvidenceIncomplete(f"its container cannot be restored: {', '.join(shown)}{recorded}")


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
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if not stored.references[SNAPSHOT].endswith(f"/{digest}"):
            raise EvidenceIncomplete(f"{SNAPSHOT}: its artifact is not what was stored")
        file.seek(0)
        try:
            _compare_members(file, expected)
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise EvidenceIncomplete(f"the snapshot cannot be read: {error}") from None
    if expected:
        raise EvidenceIncomplete(f"the snapshot lacks {_shortened(min(expected))}")


def _compare_members(file: BinaryIO, expected: dict[str, Change]) -> None:
    """Remove each member from `expected`. Raises `EvidenceIncomplete` if one is another."""
    with open_stream(file) as archive:
        end = 0
        for member in each_member(archive):
            change = expected.pop(member.name, None)
            if change is None or member.offset != end:
                raise EvidenceIncomplete(f"the snapshot has {_shortened(member.name)} besides")
            size, header = change.size, engine_archives.header(change)
            end = member.offset_data + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if engine_archives.header(_as_change(member, change)) != header:
                raise EvidenceIncomplete(f"the snapshot has another {_shortened(member.name)}")
            if change.kind != "file":
                continue
            hasher = hashlib.sha256()
            for chunk in content_of(archive, member):
                hasher.update(chunk)
            if hasher.hexdigest() != change.sha256:
                raise EvidenceIncomplete(f"the snapshot has another {_shortened(member.name)}")


def _as_change(member: tarfile.TarInfo, change: Change) -> Change:
    kinds = {
        tarfile.REGTYPE: "file",
        tarfile.DIRTYPE: "folder",
        tarfile.SYMTYPE: "link",
        tarfile.FIFOTYPE: "fifo",
    }
    kind = kinds.get(member.type)
    if kind is None or member.sparse:
        raise EvidenceIncomplete(f"the snapshot has something else at {_shortened(member.name)}")
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


def _shortened(name: str) -> str:
    quoted = patches.quoted(name)
    return quoted if len(quoted) <= _MAX_NAME_CHARACTERS else f"{quoted[:_MAX_NAME_CHARACTERS]}..."
