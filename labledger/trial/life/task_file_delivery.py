"""Put the files of a task where its agent or its grader finds them.

Each tar is unpacked once into the run folder. The agent's files are mounted from there, in trials
of their variants only. The grader's are linked beside its phase script, wherever that is, so that
they are sealed as the script is; `files.sh` copies them to their paths just before the command.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from labledger.errors import LedgerError
from labledger.experiment.task_row import TaskFiles
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import sync_folder, sync_tree
from labledger.files.workspace_seed import TarSeed
from labledger.records import JsonObject
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.trial_kind import EvidenceIncomplete

COPY_SCRIPT = "files.sh"
"""The script beside `grader.sh` that `trial.sh` runs before it, as the container's user."""

_COPY_FAILED = 125
"""The grader's exit status if its files could not be copied."""
_FILES = "files"
_UNPACKED = "unpacked"
_COPIES = "copies"
_READABLE = 0o755


def agent_mounts(spec: AttemptSpec) -> list[JsonObject]:
    """Return the read-only mounts of the task's files for the agent of the trial's variant."""
    return [
        contract.mount(_unpacked(spec, files), files.path, read_only=True)
        for files in _agent_files(spec)
        if not files.writable
    ]


def writable_copies(spec: AttemptSpec) -> dict[str, str]:
    """Return the agent's own copies of files: names in the trial folder, and their paths."""
    return {
        f"{_COPIES}/{index}": files.path
        for index, files in enumerate(_agent_files(spec))
        if files.writable
    }


def unpack_agent_files(spec: AttemptSpec, folder: Path) -> None:
    """Unpack what an agent's container mounts; its own copies into `folder`, a trial folder.

    Raises `LedgerError` if a tar is gone.
    """
    for index, files in enumerate(_agent_files(spec)):
        source = _unpack(spec, files)
        if files.writable:
            shutil.copytree(source, folder / _COPIES / str(index), symlinks=True)


def _agent_files(spec: AttemptSpec) -> list[TaskFiles]:
    files = spec.task.files or () if spec.runs_agent else ()
    return [each for each in files if each.is_for_agent_of(spec.slot.variant_id)]


def place_grader_files(spec: AttemptSpec, folder: Path) -> None:
    """Put the task's files for its grader, and the script that copies them, into `folder`.

    `folder` has the grader's phase script. Raises `LedgerError` if a tar is gone, in a regrading
    `EvidenceIncomplete`.
    """
    graders = [files for files in spec.task.files or () if files.recipient == "grader"]
    if not graders:
        return
    (folder / _FILES).mkdir()
    (folder / _FILES).chmod(_READABLE)
    for index, files in enumerate(graders):
        source = _unpack(spec, files)
        shutil.copytree(
            source, folder / _FILES / str(index), symlinks=True, copy_function=link_or_copy
        )
    script = folder / COPY_SCRIPT
    script.write_text(_copy_script(graders), "utf-8")
    script.chmod(0o644)


def find_changes(
    run_folder: Path, store: ArtifactStore, tars: Sequence[str] | None = None
) -> Iterator[str]:
    """Yield how unpacked files of tasks differ from their tars, each as a sentence.

    `tars` are digests; None compares whatever was unpacked into the run folder.
    """
    unpacked = run_folder / _UNPACKED
    if tars is None:
        tars = sorted(path.name for path in unpacked.glob("[!.]*"))
    for sha256 in tars:
        folder = unpacked / sha256
        if not os.path.lexists(folder):
            continue
        try:
            change = TarSeed(store, sha256).find_change(folder)
        except FileNotFoundError as error:
            change = f"cannot be compared with its tar, which is gone: {error.filename}"
        except LedgerError as error:
            change = f"cannot be compared with its tar: {error.message}"
        if change is not None:
            yield f"{folder} {change}"


def link_or_copy(source: str, target: str) -> str:
    """Make `target` another name of a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _copy_script(graders: list[TaskFiles]) -> str:
    """Return the script that replaces what is at each path, links included, by a fresh copy."""
    lines = ["umask 022"]
    for index, files in enumerate(graders):
        path, parent = shlex.quote(files.path), shlex.quote(posixpath.dirname(files.path))
        lines += [
            f"rm -rf -- {path} || exit {_COPY_FAILED}",
            f"mkdir -p -- {parent} || exit {_COPY_FAILED}",
            f'cp -RP -- "${{0%/*}}/{_FILES}/{index}" {path} || exit {_COPY_FAILED}',
        ]
        if files.user is not None:
            lines.append(f"chown -R -- {shlex.quote(files.user)} {path} || exit {_COPY_FAILED}")
    return "\n".join(lines) + "\n"


def _unpacked(spec: AttemptSpec, files: TaskFiles) -> Path:
    return spec.plan.run_dir / _UNPACKED / files.tar


def _unpack(spec: AttemptSpec, files: TaskFiles) -> Path:
    """Unpack a tar into the run folder, unless it has been, and return the folder.

    The folder gets its name when it is complete and durable, so threads and coordinators may do
    this at the same time.
    """
    folder = _unpacked(spec, files)
    if folder.exists():
        return folder
    store = ArtifactStore(spec.plan.store_root)
    if not store.contains(files.tar):
        path = store.path(files.tar)
        message = f"files of task {spec.task.task_id} for {files.path} are gone: {path}"
        if not spec.runs_agent:
            raise EvidenceIncomplete(message)
        hint = "restore .lab/artifacts from a copy; without it, start a new run"
        raise LedgerError(message, hint=hint)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{files.tar[:16]}."))
    try:
        TarSeed(store, files.tar).fill(partial)
        partial.chmod(_READABLE)
        sync_tree(partial)
        partial.rename(folder)
    except (OSError, LedgerError):
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.exists():  # Another thread may have been first.
            raise
    sync_folder(folder.parent)
    return folder
