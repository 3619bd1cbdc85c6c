"""Translated experiments on disk: for a moment, to be checked, or in the lab folder, to be run.

In the lab folder each has a folder of its own below `benchmarks`, named by its digest. It is
written whole under another name and then renamed, so that a folder with this name is complete.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labledger.benchmarks.translate import EXPERIMENT_FILE, TranslatedExperiment
from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.files.durable_files import make_folder, sync_folder, sync_tree
from labledger.files.file_contents import content_key, write_content
from labledger.files.own_folders import scratch_folder

_DIGITS = 16


@contextmanager
def temporary_copy(experiment: TranslatedExperiment) -> Iterator[Path]:
    """Yield the path of the `experiment.yaml` in a folder that exists while the block runs.

    An error that leaves the block names the benchmark in place of the folder.
    """
    with scratch_folder("experiment") as folder:
        _write_files(experiment, folder)
        try:
            yield folder / EXPERIMENT_FILE
        except LabLedgerError as error:
            error.args = (without_folder(error.message, folder, experiment.name),)
            raise


def without_folder(message: str, folder: Path, name: str) -> str:
    """Return a message about a translated benchmark that names no file of a temporary copy."""
    return message.replace(f"{folder}/", f"{name}: ")


def store_experiment(experiment: TranslatedExperiment, folder: Path) -> Path:
    """Return the path of the `experiment.yaml` in `folder`/NAME-DIGEST, written if it is missing.

    Raises `InvalidInput` if somebody has changed a file there, and `LabLedgerError` if the folder
    cannot be written.
    """
    target = folder / f"{experiment.name}-{experiment.digest[:_DIGITS]}"
    try:
        if not target.is_dir():
            _publish(experiment, folder, target)
        _require_same(experiment, target)
    except OSError as error:
        raise LabLedgerError(f"could not write {target}: {error.strerror}") from error
    return target / EXPERIMENT_FILE


def _publish(experiment: TranslatedExperiment, folder: Path, target: Path) -> None:
    make_folder(folder)
    unfinished = folder / f".{target.name}.{secrets.token_hex(8)}"
    try:
        unfinished.mkdir()
        _write_files(experiment, unfinished)
        sync_tree(unfinished)
        try:
            unfinished.rename(target)
        except OSError:
            # Another process has published the same experiment meanwhile.
            if not target.is_dir():
                raise
        sync_folder(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _require_same(experiment: TranslatedExperiment, target: Path) -> None:
    changed = [
        Problem(str(target / name), "differs from what the benchmark is translated to")
        for name, content in experiment.files.items()
        if not (target / name).is_file() or content_key(target / name) != content_key(content)
    ]
    if changed:
        hint = f"`labledger init --from` makes a copy to edit; remove {target} to have it anew"
        raise InvalidInput(f"{target} has been changed", changed, hint=hint)


def _write_files(experiment: TranslatedExperiment, folder: Path) -> None:
    for name, content in experiment.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_content(path, content)
