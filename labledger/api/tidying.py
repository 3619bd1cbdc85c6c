"""Keep a lab folder tidy: archive runs, delete them, and remove artifacts that nothing names.

Each function takes the lab folder as `lab_dir`; None means `LABLEDGER_DIR` or the nearest `.lab`
folder upwards. Modules are imported when a function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labledger.storage.lab_folder import LabFolder

if TYPE_CHECKING:
    from labledger.maintenance.archives import Archive
    from labledger.maintenance.garbage_collection import GarbageCollection
    from labledger.maintenance.run_deletion import DeletedRun


def archive_run(run_id: str, path: str | Path, *, lab_dir: str | Path | None = None) -> Archive:
    """Write a run to one compressed file, with its regradings, digest chains and artifacts.

    The runs are verified first. `import_runs` takes the file as a source.

    Args:
        run_id: The run; its regradings go with it.
        path: The file, which must not exist, such as ``demo.tar.gz``.
        lab_dir: The lab folder.

    Returns:
        What was archived. Finished results that are not committed are not in an archive.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: The file exists, or the run is a regrading.
        LeaseHeld: A coordinator owns one of the runs.
        LedgerError: The runs do not verify, or the file cannot be written. There is no file then.

    Example:
        >>> import labledger
        >>> labledger.archive_run("demo", "demo.tar.gz").runs[0].committed
        14
    """
    from labledger.maintenance import archives

    return archives.archive_run(LabFolder.find(lab_dir), run_id, Path(path))


def delete_run(
    run_id: str, because: str, *, lab_dir: str | Path | None = None, dry_run: bool = False
) -> list[DeletedRun]:
    """Delete a run with its regradings and its folder. Nobody is asked.

    A tombstone of each stays in the ledger, with this reason and the last digest of its chain: the
    view `deleted_runs`. No other run can get its id; the same run can be imported again. Artifacts
    stay until `collect_garbage`.

    Args:
        run_id: The run; its regradings go with it.
        because: Why, in at most 10,000 characters.
        lab_dir: The lab folder.
        dry_run: Delete nothing, only return what would be deleted.

    Returns:
        The run and its regradings.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: The reason is empty or too long, or the run is a regrading.
        LeaseHeld: A coordinator owns one of the runs. Nothing was deleted.

    Example:
        >>> import labledger
        >>> [run.run_id for run in labledger.delete_run("demo", "a first try", dry_run=True)]
        ['demo']
    """
    from labledger.maintenance import run_deletion

    return run_deletion.delete_run(LabFolder.find(lab_dir), run_id, because, dry_run=dry_run)


def collect_garbage(
    *, lab_dir: str | Path | None = None, dry_run: bool = False
) -> GarbageCollection:
    """Remove artifacts that nothing in the ledger names, and what ended processes left.

    What a stored trial, a run that can be resumed or a regrading needs is never removed.

    Args:
        lab_dir: The lab folder.
        dry_run: Remove nothing, only count.

    Returns:
        What was removed, and its size.

    Raises:
        LedgerMissing: There is no ledger.
        LeaseHeld: A run is in progress, or another process uses the artifacts. Nothing was removed.

    Example:
        >>> import labledger
        >>> labledger.collect_garbage(dry_run=True).artifacts
        0
    """
    from labledger.maintenance import garbage_collection

    return garbage_collection.collect_garbage(LabFolder.find(lab_dir), dry_run=dry_run)
