"""Stage the programs that all trials of a run share, and check them before they are used again.

`stage_dependencies` copies the staged files of every phase into the run folder once; `trial.sh`
lies beside them. Containers mount these files for reading only, so that a difference from the
frozen digests was made from outside. Look for one before the files are used by another process.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from labledger import resources
from labledger.errors import LedgerError
from labledger.experiment.staged_files import StagedFile
from labledger.files.artifact_store import ArtifactStore
from labledger.files.durable_files import new_file, publish, sync_folder, sync_tree
from labledger.records import canonical_json
from labledger.trial import contract
from labledger.trial.life import task_file_delivery

_SEALED = "sealed"
"""The folder beside the staged files with those of a sealed grader."""

_TRIAL_SCRIPT = re.compile(r"trial-([0-9a-f]{16})\.sh")


def trial_script_name() -> str:
    """Return the name of `trial.sh` among a run's staged files, which depends on its content.

    If another version of labledger continues a run, the run folder holds the scripts of both.
    """
    return f"trial-{canonical_json.sha256_hex(resources.trial_script().read_bytes())[:16]}.sh"


def share_trial_script(deps: Path, incoming: Path) -> None:
    """Copy `trial.sh` to the folder that all containers of a run mount, unless it has been copied.

    The copy gets its name when it is complete and durable. Any user of a container can read it.
    Raises `LedgerError` if a copy that exists was changed.
    """
    script = deps / trial_script_name()
    if script.exists():
        _require_unchanged(deps.parent, _script_changes(script))
        return
    with new_file(incoming, f"{script.name}.") as file:
        file.write(resources.trial_script().read_bytes())
        os.fchmod(file.fileno(), 0o644)
        publish(file, script)


def stage_dependencies(
    files: Mapping[str, Sequence[StagedFile]], store: ArtifactStore, deps: Path, *, sealed: bool
) -> None:
    """Copy the staged files of every phase to `deps`/<phase>/, once for the whole run.

    `files` are by phase. If the grader is `sealed`, its files go to the folder `sealed` beside
    `deps`, and `deps`/grader becomes a link to the path that they get in a container. Raises
    `LedgerError` if a file is missing from the artifact store or was changed there, or if the
    folders exist and differ from `files`.
    """
    if deps.exists():
        _require_unchanged(deps.parent, find_changes(files, deps, sealed=sealed))
        return
    incoming = _new_folder(deps.with_name(".deps"))
    if sealed:
        sealed_folder = _new_folder(deps.with_name(_SEALED))
        _copy_staged_files(files["grader"], store, sealed_folder)
        _open_folders(sealed_folder)
        sync_tree(sealed_folder)
        (incoming / "grader").symlink_to(f"{contract.SEALED}/grader")
    for phase, staged in files.items():
        if not (sealed and phase == "grader"):
            _copy_staged_files(staged, store, incoming / phase)
    _open_folders(incoming)
    # An existing folder of this name counts as complete, also after a power cut.
    sync_tree(incoming)
    incoming.rename(deps)
    sync_folder(deps.parent)


def _new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _copy_staged_files(files: Sequence[StagedFile], store: ArtifactStore, folder: Path) -> None:
    for file in files:
        target = folder / file.name
        try:
            source = store.checked(file.sha256)
        except FileNotFoundError as error:
            raise LedgerError(
                f"could not stage {file.name} for the trials: its artifact {error.filename} is "
                "gone",
                hint="restore .lab/artifacts from a copy; without it, start a new run",
            ) from None
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if file.executable else 0o644)


def _open_folders(top: Path) -> None:
    """Let any user of a container read the folders from `top` down."""
    for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def require_unchanged_files_of_tasks(
    run_folder: Path, store: ArtifactStore, tars: Sequence[str] | None = None
) -> None:
    """Compare what was unpacked of the files of tasks, of all or of these tars, with the tars.

    Raises `LedgerError` if one differs.
    """
    _require_unchanged(run_folder, task_file_delivery.find_changes(run_folder, store, tars))


def _require_unchanged(run_folder: Path, changes: Iterator[str]) -> None:
    """Raise `LedgerError` for the first of `changes`."""
    if (change := next(changes, None)) is not None:
        raise LedgerError(
            f"what the trials of this run get is not what it was started with: {change}; "
            "no further trial was started",
            hint="trials that ran since may have used it, so find out who changed it; to go on "
            f"with what the run was started with, wait until none of its containers runs, delete "
            f"deps, sealed and unpacked in {run_folder}, and resume",
        )


def find_changes(
    files: Mapping[str, Sequence[StagedFile]], deps: Path, *, sealed: bool
) -> Iterator[str]:
    """Yield how the staged programs of a run differ from `files`, each as a sentence.

    Files that are no part of `files` count as differences. The folder `deps` must exist.
    """
    tops = [deps]
    expected: dict[Path, StagedFile] = {}
    for phase, staged in files.items():
        top = deps / phase
        if sealed and phase == "grader":
            tops.append(top := deps.with_name(_SEALED))
        expected |= {top / file.name: file for file in staged}
    for path in (path for top in tops for path in _files_below(top)):
        file = expected.pop(path, None)
        if file is not None:
            yield from _file_changes(path, file)
        elif sealed and path == deps / "grader":
            if not path.is_symlink() or path.readlink() != Path(contract.SEALED, "grader"):
                yield f"{path} was changed"
        elif path.parent == deps and _TRIAL_SCRIPT.fullmatch(path.name):
            yield from _script_changes(path)
        else:
            yield f"{path} was added"
    yield from (f"{path} is missing" for path in expected)


def _files_below(top: Path) -> Iterator[Path]:
    """Yield everything below a folder but the folders, without following links."""
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*names, *links]))


def _file_changes(path: Path, file: StagedFile) -> Iterator[str]:
    if _digest(path) != file.sha256:
        yield f"{path} was changed"
    elif file.executable and not path.stat().st_mode & 0o100:
        yield f"{path} is no longer executable"


def _script_changes(path: Path) -> Iterator[str]:
    """Compare a copy of `trial.sh` with the digest in its name."""
    match = _TRIAL_SCRIPT.fullmatch(path.name)
    if match is None or not (_digest(path) or "").startswith(match[1]):
        yield f"{path} was changed"


def _digest(path: Path) -> str | None:
    """Return the SHA-256 (hex) of a regular file, None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
