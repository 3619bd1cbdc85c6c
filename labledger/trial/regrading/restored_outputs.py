"""Restore the output folders that an agent left, exactly or not at all.

The stored tar may come from an imported ledger: only safe names in these folders are written, each
once, and nothing through a link. Used by `restored_inputs`.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.output_folders import OutputMount, outputs_of
from labledger.trial.regrading.stored_artifacts import StoredArtifacts
from labledger.trial.trial_kind import EvidenceIncomplete
from labledger.workspace import tar_files
from labledger.workspace.seed import OPEN_FILE, OPEN_PROGRAM, is_safe_name, make_folders
from labledger.workspace.tar_files import Member

_EVIDENCE = "agent_outputs"
_NAME_ERRORS = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})
"""The system's errors for names that conflict or cannot exist."""


def restore_outputs(spec: AttemptSpec, stored: StoredArtifacts, folder: Path) -> None:
    """Fill the output folders of the agent in a new trial folder.

    Raises `EvidenceIncomplete` if something was left out when they were stored.
    """
    outputs = outputs_of(spec, "agent")
    if not outputs:
        return
    if problem := stored.problem(_EVIDENCE):
        raise EvidenceIncomplete(f"its output folders were not stored exactly: {problem}")
    content = stored.read(_EVIDENCE)
    if content is None:
        raise EvidenceIncomplete("its output folders were not stored")
    links: dict[Path, bytes] = {}
    try:
        for member in tar_files.members(io.BytesIO(content)):
            output = _folder_of(member, outputs)
            relative = Path(member.name).relative_to(output.path.strip("/"))
            _restore(folder / output.name, relative, member, links)
        # Links are made last, so that nothing is written through them.
        for path, target in links.items():
            path.symlink_to(os.fsdecode(target))
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        raise EvidenceIncomplete(f"its output folders cannot be restored: {error}") from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise EvidenceIncomplete(f"its output folders cannot be restored: {error}") from None


def _folder_of(member: Member, outputs: list[OutputMount]) -> OutputMount:
    for output in outputs:
        if is_safe_name(member.name) and member.name.startswith(output.name_in_tar("")):
            return output
    raise EvidenceIncomplete(f"{member.name!r} is in no output folder")


def _restore(folder: Path, relative: Path, member: Member, links: dict[Path, bytes]) -> None:
    path = folder / relative
    if member.kind == "folder":
        make_folders(folder, relative)
        return
    make_folders(folder, relative.parent)
    if member.kind == "link":
        links[path] = member.target
        return
    with path.open("xb") as handle:
        handle.writelines(member.content)
    path.chmod(OPEN_PROGRAM if member.executable else OPEN_FILE)
