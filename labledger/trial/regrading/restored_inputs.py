"""Restore a stored trial's outputs into a new trial folder, so that it can be graded again.

The stored files were written in a container and may come from an imported ledger, so they are as
untrusted as any output: only safe names are written, each once, and nothing through a link. Either
everything that a grader can read is restored exactly, or `EvidenceIncomplete` is raised.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

from labledger.experiment.settings.grading import GradingMode
from labledger.experiment.task_row import workspace_seed
from labledger.files import artifact_tars
from labledger.files.artifact_tars import Member
from labledger.files.relative_names import is_safe_name
from labledger.files.workspace_listing import Listing, MalformedListing
from labledger.files.workspace_seed import (
    OPEN_FILE,
    OPEN_PROGRAM,
    UnsafeSeed,
    make_folders,
)
from labledger.trial import contract, phase_notes
from labledger.trial.attempt_spec import AttemptSpec, StoredTrial
from labledger.trial.output_folders import OutputMount, outputs_of
from labledger.trial.regrading.restored_container import prepare_restore
from labledger.trial.regrading.restored_workspace import WorkspaceRestore
from labledger.trial.regrading.stored_artifacts import StoredArtifacts, require_artifacts
from labledger.trial.trial_kind import EvidenceIncomplete

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
        for member in artifact_tars.members(io.BytesIO(content)):
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


_READ_BY_GRADERS = {
    "trial_output": Path("out", contract.RESULT),
    "events": Path("state", contract.EVENTS),
}


def restore_trial_folder(spec: AttemptSpec, trial: StoredTrial, folder: Path) -> None:
    """Fill a new trial folder with the state of a stored trial.

    The workspace is restored as that trial ended, including what its own grader wrote there.
    Owners and times of files, and files outside of the workspace, are not stored and so not
    restored. Raises `EvidenceIncomplete` if the rest cannot be restored exactly.
    """
    stored = StoredArtifacts.of(spec, trial)
    phases = trial.phases_before_grading
    if "agent" not in phases:
        raise EvidenceIncomplete("it is not known how its agent ended")
    _write(folder / "in" / contract.PHASES_FILE, phase_notes.phase_notes_of(phases).encode())
    if spec.grading_mode is GradingMode.SEPARATE:
        require_artifacts(spec, stored)
        restore_outputs(spec, stored, folder)
        return
    facts = trial.extension("isolation")
    if facts.get("processes") == "kept" and facts.get("processes_left") is not False:
        raise EvidenceIncomplete(
            "its agent may have left processes running, which its grader may have needed"
            if facts.get("processes_left") is None
            else "its agent left processes running, which its grader may have needed"
        )
    for name, path in _READ_BY_GRADERS.items():
        if (content := _read_exactly(stored, name, path.name)) is not None:
            _write(folder / path, content)
    for phase in phases:
        for stream in ("stdout", "stderr"):
            if (content := stored.read(f"{phase}_{stream}")) is not None:
                _write(folder / "state" / f"{phase}.{stream}", content)
    restore_outputs(spec, stored, folder)
    if spec.has_mounted_workspace:
        _restore_workspace(spec, stored, folder / "workspace")
    elif (deletions := prepare_restore(stored, spec.workspace)) is not None:
        _write(folder / "in" / contract.RESTORE_SCRIPT, deletions)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(OPEN_FILE)


def _read_exactly(stored: StoredArtifacts, name: str, file: str) -> bytes | None:
    """Return a stored output exactly, None if there was none. Raises `EvidenceIncomplete`."""
    content = stored.read(name)
    problem = stored.problem(name)
    # A stored result with a problem is invalid but complete; stored events with one are not.
    if problem is not None and (content is None or name == "events"):
        raise EvidenceIncomplete(f"{file} was not stored exactly: {problem}")
    if content is not None and stored.holds_redacted(content):
        raise EvidenceIncomplete(f"{file} was not stored exactly: a secret was redacted")
    return content


def _restore_workspace(spec: AttemptSpec, stored: StoredArtifacts, folder: Path) -> None:
    content = stored.read("workspace_after")
    if content is None:
        raise EvidenceIncomplete("there is no list of the files in its workspace")
    try:
        expected = Listing.of(content)
    except MalformedListing as error:
        raise EvidenceIncomplete(f"the list of its files cannot be read: {error}") from None
    try:
        workspace_seed(spec.task.workspace, spec.plan.store_root).fill(folder)
    except FileNotFoundError as error:
        if Path(error.filename or folder).is_relative_to(folder):
            raise
        what = f"the workspace that its task begins with is gone: {error.filename}"
        raise EvidenceIncomplete(what) from None
    except (tarfile.TarError, UnsafeSeed) as error:
        what = f"the workspace that its task begins with cannot be read: {error}"
        raise EvidenceIncomplete(what) from None
    WorkspaceRestore(folder, expected).restore(stored)
