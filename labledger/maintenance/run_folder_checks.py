"""Check what lies in the run folders and is no copy of rows of the ledger.

That is: the staged programs of a run, which its next trials would use, and folders of runs that the
ledger does not have. Programs that lie on the hosts of a cluster are checked there, before their
next use. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from labledger.errors import LabLedgerError
from labledger.experiment.plan import ExperimentPlan
from labledger.export import run_folder
from labledger.ledger.reader import LedgerReader
from labledger.ledger.verification.slot_checks import UNREADABLE
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder
from labledger.trial.life.input_files import staged_programs, task_files


def find_changed_programs(lab: LabFolder, reader: LedgerReader, run_id: str) -> Iterator[str]:
    """Yield how the staged programs of a run differ from what it was started with."""
    folder = lab.run_folder(run_id)
    deps = folder / "deps"
    try:
        if deps.is_dir():
            plan = ExperimentPlan.of_document(reader.run(run_id).resolved)
            yield from staged_programs.find_changes(plan.files, deps, sealed=plan.is_sealed)
        yield from task_files.find_changes(folder, ArtifactStore(lab.artifacts))
    except (LabLedgerError, OSError, *UNREADABLE) as error:
        yield f"{folder}: its staged programs cannot be compared: {error}"


def run_folders(lab: LabFolder) -> list[str]:
    """Return the names of the run folders."""
    folders = lab.root.joinpath("runs").glob("[!.]*")
    return sorted(path.name for path in folders if path.is_dir())


def find_unknown_runs(
    lab: LabFolder, folders: Collection[str], known: Collection[str]
) -> Iterator[str]:
    """Yield the run folders of runs that the ledger does not have.

    `known` are the ids of its runs, and of deleted ones, read after `folders`.
    """
    for name in sorted(set(folders) - set(known)):
        folder = lab.run_folder(name)
        if (folder / run_folder.CHAIN_PATH).is_file():
            hint = f"`labledger import {folder}` adds it"
        else:
            hint = "restore the ledger from a copy that has it, with its -wal file if there is one"
        yield f"{folder}: the ledger does not have this run, of which a folder is there; {hint}"
