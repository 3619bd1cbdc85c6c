"""Commands that look after the ledger and its machine: verify, db, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labledger.api import Exit
from labledger.cli.options import arguments, shell_completion
from labledger.cli.output.console import out, out_json, print_checks, say

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
    from labledger import api

    report = api.verify(run_id, lab_dir=lab_dir)
    if json:
        out_json(report.as_json())
    else:
        for finding in report.findings:
            out(finding)
        out(report.line())
    if report.findings:
        raise typer.Exit(int(Exit.INCOMPLETE))


def doctor(lab_dir: arguments.LabDir = None, json: arguments.Json = False) -> None:
    """Check the machine, and suggest a fix for each problem.

    Checks Docker, SQLite, the disk and the ledger.
    """
    from labledger import api

    checks = api.doctor(lab_dir=lab_dir)
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
    from labledger import api

    decisions = api.clean(run, lab_dir=lab_dir, dry_run=dry_run, unfinished=unfinished)
    for container in decisions:
        done = "kept" if not container.remove else "would remove" if dry_run else "removed"
        out(f"{done} {container.name}: {container.why}")
    if not decisions:
        out("no container of this ledger is left")


def upgrade(lab_dir: arguments.LabDir = None) -> None:
    """Bring the ledger up to date, after backing it up."""
    from labledger import api

    upgraded = api.upgrade_ledger(lab_dir=lab_dir)
    if upgraded.backup is None:
        out(f"{upgraded.path} is at revision {upgraded.after} already")
    else:
        revisions = f"revision {upgraded.before} → {upgraded.after}"
        out(f"{upgraded.path}: {revisions}; backup: {upgraded.backup}")


def current(lab_dir: arguments.LabDir = None) -> None:
    """Print the ledger's revision and the one this labledger needs."""
    from labledger import api

    ledger = api.ledger_revision(lab_dir=lab_dir)
    out(f"{ledger.path}: revision {ledger.revision}; needed: {ledger.needed}")
    ledger.require_current()


def backup(
    target: Annotated[Path | None, typer.Argument(help="The copy's path.")] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Copy the ledger, also while runs are writing, and check the copy."""
    from labledger import api

    copy = api.back_up_ledger(target, lab_dir=lab_dir)
    out(str(copy.path))
    say(f"large artifacts are not in it; they are in {copy.artifacts}")
