"""Maintenance of a lab folder: verify, import, clean, upgrade, back up, tidy, notes and tags.

Each function takes the lab folder as `lab_dir`; None means `LABLEDGER_DIR` or the nearest `.lab`
folder upwards. Unsafe work is refused while a run is in progress. Modules are imported when a
function is called, because most functions need no Docker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labledger import clock
from labledger.errors import InvalidInput, Problem, require_text
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.text.words import quoted

if TYPE_CHECKING:
    from labledger.checks.check_results import CheckResult
    from labledger.ledger.database.migrations import LedgerUpgrade
    from labledger.upkeep.archives import Archive
    from labledger.upkeep.container_cleanup import ContainerDecision
    from labledger.upkeep.garbage_collection import DeletedRun, GarbageCollection
    from labledger.upkeep.import_runs import ImportedRun
    from labledger.upkeep.lab_backup import BackupProgress, LabBackup
    from labledger.upkeep.lab_restore import RestoredLab
    from labledger.upkeep.verify_lab import VerificationReport


@dataclass(frozen=True, slots=True)
class LedgerRevision:
    """The revision of a ledger's tables, and the one that this version of labledger needs."""

    path: Path
    revision: str | None
    """None for a ledger whose creation was interrupted."""
    needed: str

    def require_current(self) -> None:
        """Raise `LedgerOutdated` or `LedgerTooNew` unless the ledger is current."""
        from labledger.ledger.database import migrations

        migrations.require_current(self.path)


@dataclass(frozen=True, slots=True)
class LedgerBackup:
    """A copy of a ledger."""

    path: Path
    artifacts: Path
    """The folder of large artifacts. They are not in the copy."""


def verify(run_id: str | None = None, *, lab_dir: str | Path | None = None) -> VerificationReport:
    """Check the ledger against its digests, and mirrors against the ledger. Changes nothing.

    Args:
        run_id: One run; None for all runs and their artifacts.
        lab_dir: The lab folder.

    Returns:
        How much was verified, and a message for each difference from the committed state.

    Raises:
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger has no such run.

    Example:
        >>> import labledger
        >>> labledger.verify(lab_dir=".lab").findings
        ()
    """
    from labledger.upkeep.verify_lab import verify_lab

    return verify_lab(LabFolder.find(lab_dir), run_id)


def import_runs(
    source: str | Path,
    run_ids: Sequence[str] = (),
    *,
    lab_dir: str | Path | None = None,
    dry_run: bool = False,
    without_artifacts: bool = False,
) -> list[ImportedRun]:
    """Import runs of another ledger into this one.

    The source is verified first and never changed. If one of the runs is damaged or contradicts a
    run of this ledger, nothing is written. A run that this ledger already has gets only the slots
    that it lacks.

    Args:
        source: A ledger file, a lab folder, a run's folder, or an archive.
        run_ids: The runs to import; empty for all of them.
        lab_dir: The lab folder to import into. It is created if it does not exist.
        dry_run: Verify and compare only.
        without_artifacts: Import mirrors even if artifacts that their records refer to are missing.

    Raises:
        InvalidInput: There is nothing to import at `source`.
        RunNotFound: The source holds no such run.
        LedgerError: The source is damaged, or contradicts a run of this ledger.
        LeaseHeld: A coordinator owns one of the runs.

    Example:
        >>> import labledger
        >>> [run.run_id for run in labledger.import_runs("other/.lab")]
        ['demo-20260101-120000-ab12']
    """
    from labledger.upkeep.import_runs import import_source

    return import_source(
        LabFolder.find(lab_dir),
        Path(source),
        run_ids,
        dry_run=dry_run,
        without_artifacts=without_artifacts,
    )


def clean(
    run_id: str | None = None,
    *,
    lab_dir: str | Path | None = None,
    dry_run: bool = False,
    unfinished: bool = False,
) -> list[ContainerDecision]:
    """Remove containers of this ledger whose results are stored durably, or that belong to no run.

    Without `run_id`, also removes probes of checks whose processes have certainly ended. Never
    removes other containers without this ledger's label, or containers of a run that a live
    coordinator owns.

    Args:
        run_id: Only containers of this run.
        lab_dir: The lab folder.
        dry_run: Remove nothing, only return the decisions.
        unfinished: Also remove containers that `resume` would continue. Their trials run again.

    Returns:
        A decision with its reason for every container of the ledger and every probe of a check.

    Raises:
        LedgerMissing: There is no ledger, and no check left a probe.
        RunNotFound: The ledger has no such run.
        EngineUnavailable: The Docker engine does not answer.

    Example:
        >>> import labledger
        >>> [container.name for container in labledger.clean(dry_run=True) if container.remove]
        []
    """
    from labledger.upkeep import container_cleanup

    lab = LabFolder.find(lab_dir)
    return container_cleanup.clean(lab, run_id, dry_run=dry_run, unfinished=unfinished)


def doctor(*, lab_dir: str | Path | None = None) -> list[CheckResult]:
    """Check Docker, SQLite, the disk and the ledger. Changes nothing and raises nothing.

    Args:
        lab_dir: The lab folder.

    Returns:
        The result of every check; a failed one has a `hint`, the suggested fix.

    Example:
        >>> import labledger
        >>> [c.detail for c in labledger.doctor() if not c.ok]
        []
    """
    from labledger.checks.doctor import diagnose

    return diagnose(LabFolder.find(lab_dir))


def upgrade_ledger(*, lab_dir: str | Path | None = None) -> LedgerUpgrade:
    """Upgrade the ledger to the revision that this version of labledger needs, after a backup.

    Args:
        lab_dir: The lab folder.

    Returns:
        The revisions before and after, and the backup, which is None if the ledger was current.

    Raises:
        LedgerMissing: There is no ledger.
        LedgerTooNew: A newer labledger wrote it.
        LedgerError: A run is in progress. Nothing was changed.

    Example:
        >>> import labledger
        >>> labledger.upgrade_ledger(lab_dir=".lab").after
        '0012'
    """
    from labledger.ledger.database import migrations
    from labledger.ledger.database.sqlite import require_ledger_file

    path = LabFolder.find(lab_dir).ledger
    require_ledger_file(path)
    return migrations.upgrade(path)


def ledger_revision(*, lab_dir: str | Path | None = None) -> LedgerRevision:
    """Return the ledger's revision and the one that this version of labledger needs.

    Args:
        lab_dir: The lab folder.

    Raises:
        LedgerMissing: There is no ledger.
        NotALedger: The file is not a ledger of labledger.

    Example:
        >>> import labledger
        >>> ledger = labledger.ledger_revision(lab_dir=".lab")
        >>> ledger.revision == ledger.needed
        True
    """
    from labledger.ledger.database import migrations

    path = LabFolder.find(lab_dir).ledger
    return LedgerRevision(path, migrations.read_revision(path), migrations.HEAD)


def back_up_ledger(
    target: str | Path | None = None, *, lab_dir: str | Path | None = None
) -> LedgerBackup:
    """Copy the ledger, also while runs are writing, and check the copy.

    Args:
        target: A file that does not exist; None for one in the lab folder, named after the time.
        lab_dir: The lab folder.

    Raises:
        LedgerMissing: There is no ledger.
        LedgerError: The copy could not be written, or is damaged. No file is left.

    Example:
        >>> import labledger
        >>> labledger.back_up_ledger("ledger-copy.sqlite").path
        PosixPath('ledger-copy.sqlite')
    """
    from labledger.ledger.database import migrations

    lab = LabFolder.find(lab_dir)
    timestamp = clock.utc_now()[:19].replace(":", "").replace("-", "")
    path = Path(target) if target is not None else lab.root / f"ledger-{timestamp}.sqlite"
    return LedgerBackup(migrations.backup(lab.ledger, path), lab.artifacts)


def back_up_lab(
    target: str | Path,
    *,
    lab_dir: str | Path | None = None,
    on_progress: Callable[[BackupProgress], object] = lambda _: None,
) -> LabBackup:
    """Back up the whole lab, also while runs are writing.

    The backup holds one snapshot of the ledger, the artifacts, uncommitted results, the requests to
    models of attempts in progress, and the settings.

    Args:
        target: A file that does not exist, such as ``lab.tar.gz``. Or a folder: each backup is a
            new file in it, and copies only artifacts that the folder lacks.
        lab_dir: The lab folder.
        on_progress: Called after each artifact.

    Returns:
        A summary of the backup, with the artifacts that the lab itself lacks.

    Raises:
        LedgerMissing: There is no ledger.
        InvalidInput: The file exists, or is in the lab folder.
        LedgerError: An artifact was changed in the store, or the backup cannot be written. No file
            is left.

    Example:
        >>> import labledger
        >>> labledger.back_up_lab("backups/lab.tar.gz").artifacts
        2
    """
    from labledger.upkeep import lab_backup

    return lab_backup.back_up_lab(LabFolder.find(lab_dir), Path(target), on_progress)


def restore_lab(
    backup: str | Path,
    target: str | Path,
    *,
    on_progress: Callable[[BackupProgress], object] = lambda _: None,
) -> RestoredLab:
    """Restore a backup of a lab as a new lab folder.

    The new lab gets its own id and never touches containers of the original lab, which may keep
    running. An attempt that was in progress ends in the new lab as an `infra_error`
    (`left_in_original`).

    Args:
        backup: A file that `back_up_lab` wrote, or a folder of backups for the newest of them.
        target: The lab folder, which must not exist, such as ``restored/.lab``.
        on_progress: Called after each artifact.

    Returns:
        The runs, and how many artifacts a folder of backups lacks.

    Raises:
        InvalidInput: The target exists, or there is no backup.
        LedgerError: The backup is damaged, or the disk has too little space. No folder is left.

    Example:
        >>> import labledger
        >>> labledger.restore_lab("backups/lab.tar.gz", "restored/.lab").missing_artifacts
        0
    """
    from labledger.upkeep import lab_restore

    return lab_restore.restore_lab(Path(backup), Path(target), on_progress)


def archive_run(run_id: str, path: str | Path, *, lab_dir: str | Path | None = None) -> Archive:
    """Write a run to one compressed file, with its regradings, digest chains and artifacts.

    The runs are verified first. `import_runs` accepts the file as a source.

    Args:
        run_id: The run; its regradings go with it.
        path: The file, which must not exist, such as ``demo.tar.gz``.
        lab_dir: The lab folder.

    Returns:
        A summary of the archive. It does not contain finished results that are not committed.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: The file exists, or the run is a regrading.
        LeaseHeld: A coordinator owns one of the runs.
        LedgerError: The runs do not verify, or the file cannot be written. There is no file then.

    Example:
        >>> import labledger
        >>> labledger.archive_run("demo", "demo.tar.gz").runs[0].committed
        14
    """
    from labledger.upkeep import archives

    return archives.archive_run(LabFolder.find(lab_dir), run_id, Path(path))


def delete_run(
    run_id: str, because: str, *, lab_dir: str | Path | None = None, dry_run: bool = False
) -> list[DeletedRun]:
    """Delete a run with its regradings and its folder, without asking.

    The ledger keeps a tombstone of each, with the reason and the last digest of its chain; the view
    `deleted_runs` lists them. No other run can get the id, but the same run can be imported again.
    The artifacts stay until `collect_garbage` removes them.

    Args:
        run_id: The run; its regradings go with it.
        because: Why, in at most 10,000 characters.
        lab_dir: The lab folder.
        dry_run: Delete nothing, only return what would be deleted.

    Returns:
        The run and its regradings.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: The reason is empty or too long, or the run is a regrading.
        LeaseHeld: A coordinator owns one of the runs. Nothing was deleted.

    Example:
        >>> import labledger
        >>> [run.run_id for run in labledger.delete_run("demo", "a first try", dry_run=True)]
        ['demo']
    """
    from labledger.upkeep import garbage_collection

    return garbage_collection.delete_run(LabFolder.find(lab_dir), run_id, because, dry_run=dry_run)


def collect_garbage(
    *, lab_dir: str | Path | None = None, dry_run: bool = False
) -> GarbageCollection:
    """Remove artifacts that nothing in the ledger refers to, and files left by killed processes.

    Never removes anything that a stored trial, a resumable run or a regrading needs.

    Args:
        lab_dir: The lab folder.
        dry_run: Remove nothing, only count.

    Returns:
        The numbers and sizes of the removed items.

    Raises:
        LedgerMissing: There is no ledger.
        LeaseHeld: A run is in progress, or another process uses the artifacts. Nothing was removed.

    Example:
        >>> import labledger
        >>> labledger.collect_garbage(dry_run=True).artifacts
        0
    """
    from labledger.upkeep import garbage_collection

    return garbage_collection.collect_garbage(LabFolder.find(lab_dir), dry_run=dry_run)


_TAG = re.compile(r"[^\s,+-][^\s,]{0,63}")
_MAX_NOTE = 10_000


def add_note(run_id: str, note: str, *, lab_dir: str | Path | None = None) -> None:
    """Add a note to a run. Notes are never changed or removed.

    Args:
        run_id: The run.
        note: The text, of at most 10,000 characters.
        lab_dir: The lab folder.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: The note is empty or too long.

    Example:
        >>> import labledger
        >>> labledger.add_note("demo", "The proxy was slow that day.")
    """
    from labledger.ledger.writer import LedgerWriter

    require_text("the note", "TEXT", note, _MAX_NOTE)
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.add_note(run_id, note)


def change_tags(
    run_id: str,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    *,
    lab_dir: str | Path | None = None,
) -> tuple[str, ...]:
    """Add tags to a run and remove others.

    Args:
        run_id: The run.
        add: Tags to add, each of at most 64 characters without spaces and commas.
        remove: Tags to remove; one that the run does not have is ignored.
        lab_dir: The lab folder.

    Returns:
        All tags of the run after the change, sorted.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: A tag is not valid, or is both added and removed.

    Example:
        >>> import labledger
        >>> labledger.change_tags("demo", add=["paper"], remove=["draft"])
        ('paper',)
    """
    from labledger.ledger.reader import LedgerReader
    from labledger.ledger.writer import LedgerWriter

    added, removed = tuple(add), tuple(remove)
    problems = [
        Problem("tag", f"found {quoted(tag)}; expected 1 to 64 characters, no spaces and commas")
        for tag in added
        if not _TAG.fullmatch(tag)
    ]
    both = sorted(set(added) & set(removed))
    problems += [Problem("tag", f"{tag!r} is both added and removed") for tag in both]
    if problems:
        raise InvalidInput("the tags", problems)
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.change_tags(run_id, added, removed)
    with LedgerReader.open(lab.ledger) as reader:
        return reader.run(run_id).tags
