"""Maintenance of a lab folder: verify, import, clean, check the machine, upgrade and back up.

Each function takes the lab folder as `lab_dir`; None means `LABLEDGER_DIR` or the nearest `.lab`
folder upwards. Modules are imported when a function is called: most need no Docker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labledger import clock
from labledger.storage.lab_folder import LabFolder

if TYPE_CHECKING:
    from labledger.ledger.database.migrations import LedgerUpgrade
    from labledger.maintenance.check_results import CheckResult
    from labledger.maintenance.container_cleanup import ContainerDecision
    from labledger.maintenance.import_runs import ImportedRun
    from labledger.maintenance.verify_lab import VerificationReport


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
        How much was verified, and a message for everything that differs from what was committed.

    Raises:
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger holds no such run.

    Example:
        >>> import labledger
        >>> labledger.verify(lab_dir=".lab").findings
        ()
    """
    from labledger.maintenance.verify_lab import verify_lab

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

    The source is verified first and never changed. Nothing is written if one of the runs is damaged
    or contradicts a run of this ledger. Of a run that this ledger already has, only the slots that
    it lacks are added.

    Args:
        source: A ledger file, a lab folder, a run's folder, or an archive.
        run_ids: The runs to import; empty for all of them.
        lab_dir: The lab folder to import into. It is created if it does not exist.
        dry_run: Verify and compare only.
        without_artifacts: Import mirrors, which hold no artifacts, although artifacts that their
            records refer to are missing.

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
    from labledger.maintenance import import_runs as imports

    return imports.import_runs(
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

    Containers without this ledger's label, and those of a run that a live coordinator owns, are
    never removed.

    Args:
        run_id: Only containers of this run.
        lab_dir: The lab folder.
        dry_run: Remove nothing, only return the decisions.
        unfinished: Also remove containers that `resume` would continue with. Their trials run
            again.

    Returns:
        Every container of the ledger, and whether and why it is removed.

    Raises:
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger holds no such run.
        EngineUnavailable: The Docker engine does not answer.

    Example:
        >>> import labledger
        >>> [each.name for each in labledger.clean(dry_run=True) if each.remove]
        []
    """
    from labledger.maintenance import container_cleanup

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
    from labledger.maintenance.doctor import diagnose

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

    path = LabFolder.find(lab_dir).ledger
    migrations.require_exists(path)
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
