"""Commands that look after the ledger and its machine: verify, db, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labledger.cli.options import arguments, shell_completion
from labledger.cli.output.console import out, out_json, print_checks, say
from labledger.errors import Exit

db = typer.Typer(
    help="Upgrade, inspect and back up the ledger.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    app.command()(verify)
    app.command()(doctor)
    app.command()(clean)
    db.command()(upgrade)
    db.command()(current)
    db.command()(backup)
    app.add_typer(db, name="db")


def verify(
    run_id: Annotated[
        str | None,
        typer.Argument(help="One run; without it, all.", autocompletion=shell_completion.run_ids),
    ] = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Find committed rows that were changed.

    Every row is checked against the chain of digests, the files that a run was started with
    against theirs, and every mirror against the ledger.
    """
    from labledger.maintenance.verify_lab import verify_lab
    from labledger.storage.lab_folder import LabFolder

    report = verify_lab(LabFolder.find(lab_dir), run_id)
    if json:
        out_json(report.as_json())
    else:
        for finding in report.findings:
            out(str(finding))
        out(report.line())
    if report.findings:
        raise typer.Exit(int(Exit.INCOMPLETE))


def doctor(lab_dir: arguments.LabDir = None, json: arguments.Json = False) -> None:
    """Check the machine, and suggest a fix for each problem.

    Checks Docker, SQLite, the disk and the ledger.
    """
    from labledger.maintenance.doctor import diagnose
    from labledger.storage.lab_folder import LabFolder

    checks = diagnose(LabFolder.find(lab_dir))
    if json:
        out_json([check.as_json() for check in checks])
    else:
        print_checks(checks)
    if any(not check.ok and not check.warning for check in checks):
        raise typer.Exit(int(Exit.INCOMPLETE))


def clean(
    run: Annotated[str | None, typer.Option(help="Only containers of this run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed.")] = False,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="Also those whose trials resume would continue."),
    ] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Remove containers that nothing needs.

    Removes only containers of this ledger that belong to no live run and hold no trial that
    `labledger resume` would continue.
    """
    from labledger.maintenance.container_cleanup import clean as clean_lab
    from labledger.storage.lab_folder import LabFolder

    found = clean_lab(LabFolder.find(lab_dir), run, dry_run=dry_run, unfinished=unfinished)
    for container in found:
        done = "kept" if not container.remove else "would remove" if dry_run else "removed"
        out(f"{done} {container.name}: {container.why}")
    if not found:
        out("no container of this ledger is left")


def upgrade(lab_dir: arguments.LabDir = None) -> None:
    """Bring the ledger up to date, after backing it up."""
    from labledger.ledger.database import migrations
    from labledger.storage.lab_folder import LabFolder

    lab = LabFolder.find(lab_dir)
    migrations.check_exists(lab.ledger)
    done = migrations.upgrade(lab.ledger)
    if done.backup is None:
        out(f"{done.path} is at revision {done.after} already")
    else:
        out(f"{done.path}: revision {done.before} → {done.after}; backup: {done.backup}")


def current(lab_dir: arguments.LabDir = None) -> None:
    """Print the ledger's revision and the one this labledger needs."""
    from labledger.ledger.database import migrations
    from labledger.storage.lab_folder import LabFolder

    lab = LabFolder.find(lab_dir)
    out(f"{lab.ledger}: revision {migrations.current(lab.ledger)}; needed: {migrations.HEAD}")
    migrations.check_current(lab.ledger)


def backup(
    target: Annotated[Path | None, typer.Argument(help="The copy's path.")] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Copy the ledger, also while runs are writing, and check the copy."""
    from labledger import clock
    from labledger.ledger.database import migrations
    from labledger.storage.lab_folder import LabFolder

    lab = LabFolder.find(lab_dir)
    stamp = clock.utc_now()[:19].replace(":", "").replace("-", "")
    out(str(migrations.backup(lab.ledger, target or lab.root / f"ledger-{stamp}.sqlite")))
    say(f"large artifacts are not in it; they lie in {lab.artifacts}")
