"""Commands that maintain a lab folder.

They are verify, import, archive, delete, gc, clean, doctor, db, note and tag. Each calls one
function of the library and prints its result. Findings, failed checks and an outdated ledger are
exit code 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import confirm, out, out_json, print_checks, say
from labledger.cli.help_pages import CommandLine
from labledger.errors import Exit, InvalidInput, Problem
from labledger.text.figures import format_size
from labledger.text.words import counted, counted_of

if TYPE_CHECKING:
    from labledger.results import ImportedRun

db = CommandLine(name="db", help="Upgrade, inspect and back up the ledger.", no_args_is_help=True)


def verify(
    run_id: Annotated[
        str | None,
        typer.Argument(
            help="The run to verify; by default all runs.", autocompletion=arguments.complete_run_id
        ),
    ] = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Find saved rows that were changed.

    Checks every row against the chain of digests, the files with which a run was started against
    their digests, and every mirror against the ledger.
    """
    report = labledger.verify(run_id, lab_dir=lab_dir)
    if json:
        out_json(report.as_json())
    else:
        for finding in report.findings:
            out(finding)
        out(report.line())
    if report.findings:
        raise typer.Exit(int(Exit.INCOMPLETE))


def import_runs(
    source: Annotated[
        Path,
        typer.Argument(
            help="An archive, a ledger file, a lab folder, or a run's folder.", readable=False
        ),
    ],
    run: Annotated[
        list[str] | None, typer.Option(help="Only this run of the source; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Verify and compare; write nothing.")
    ] = False,
    without_artifacts: Annotated[
        bool,
        typer.Option(
            "--without-artifacts",
            help="Import mirrors even if logs and other artifacts of their records are missing.",
        ),
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Import runs of another ledger into this one.

    The source is verified first and never changed. If a run's folder has no ledger beside it, its
    mirrors are imported. A run that is already in this ledger gets only the trials that it lacks. A
    different run with the same id is refused.
    """
    imported = labledger.import_runs(
        source, run or (), lab_dir=lab_dir, dry_run=dry_run, without_artifacts=without_artifacts
    )
    if json:
        out_json([run.as_json() for run in imported])
        return
    for imported_run in imported:
        out(_import_line(imported_run, dry_run=dry_run))
    if not imported:
        out(f"{source} contains no run")


def _import_line(imported: ImportedRun, *, dry_run: bool) -> str:
    """Return how a run of the source was imported, as a line for a person."""
    progress = f"{counted_of(imported.committed, imported.total, 'trial')} saved"
    local = imported.committed_locally
    match imported.relation.value:
        case "new":
            line = f"{'would import' if dry_run else 'imported'} {imported.run_id}: {progress}"
        case "grown":
            verb = "would extend" if dry_run else "extended"
            line = f"{verb} {imported.run_id} from {local} to {progress}"
        case _:
            surplus = f", {local} in this ledger" if local > imported.committed else ""
            return f"{imported.run_id} is already in this ledger: {progress}{surplus}"
    if imported.uncommitted_results:
        line += (
            f"; {counted(imported.uncommitted_results, 'finished trial')} not saved in the source: "
            "resume the run there, and import it again"
        )
    if imported.missing_artifacts:
        references = counted(imported.missing_artifacts, "reference")
        line += f"; {references} to artifacts that the source does not have"
    return line


def doctor(lab_dir: arguments.LabDir = None, json: arguments.Json = False) -> None:
    """Check the machine, and suggest a fix for each problem.

    Checks Docker, SQLite, the disk and the ledger.
    """
    checks = labledger.doctor(lab_dir=lab_dir)
    if json:
        out_json([check.as_json() for check in checks])
    else:
        print_checks(checks)
    if any(check.has_failed for check in checks):
        raise typer.Exit(int(Exit.INCOMPLETE))


def clean(
    run: Annotated[str | None, typer.Option(help="Only containers of this run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished",
            help="Also remove containers of trials that `labledger resume` would continue.",
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|FILE",
            help="Clean up the hosts of this cluster instead of this machine, including lost hosts "
            "that are back.",
        ),
    ] = None,
    insecure: arguments.Insecure = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Remove containers that are no longer needed.

    Removes only containers of this ledger. Containers of a live run stay, and so do containers with
    a trial that `labledger resume` would continue. Also removes probes left by checks that were
    killed.
    """
    if on is not None:
        for sentence in labledger.clean_hosts(
            on,
            run,
            dry_run=dry_run,
            unfinished=unfinished,
            insecure=insecure,
            lab_dir=lab_dir,
        ):
            out(sentence)
        return
    decisions = labledger.clean(run, lab_dir=lab_dir, dry_run=dry_run, unfinished=unfinished)
    for container in decisions:
        action = "kept" if not container.remove else "would remove" if dry_run else "removed"
        out(f"{action} {container.name}: {container.why}")
    if not decisions:
        of = "this ledger" if run is None else f"run {run}"
        out(f"no container of {of} is left on this machine's engine")


@db.command()
def upgrade(lab_dir: arguments.LabDir = None) -> None:
    """Back up the ledger, and upgrade it to the revision that this version of labledger needs."""
    upgraded = labledger.upgrade_ledger(lab_dir=lab_dir)
    if upgraded.before is None:
        out(f"{upgraded.path}: created at revision {upgraded.after}")
    elif upgraded.backup is None:
        out(f"{upgraded.path} is already at revision {upgraded.after}")
    else:
        revisions = f"revision {upgraded.before} → {upgraded.after}"
        out(f"{upgraded.path}: {revisions}; backup: {upgraded.backup}")


@db.command()
def current(lab_dir: arguments.LabDir = None) -> None:
    """Print the ledger's revision and the one that this version of labledger needs."""
    ledger = labledger.ledger_revision(lab_dir=lab_dir)
    out(f"{ledger.path}: revision {ledger.revision}; needed: {ledger.needed}")
    ledger.require_current()


@db.command()
def backup(
    target: Annotated[Path | None, typer.Argument(help="The copy's path.")] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Copy the ledger, also while runs are writing, and check the copy."""
    copy = labledger.back_up_ledger(target, lab_dir=lab_dir)
    out(str(copy.path))
    say(f"the copy does not include large artifacts; they are in {copy.artifacts}")
    say("`labledger backup FILE.tar.gz` backs up the whole lab")


def archive(
    run_id: arguments.RunId,
    file: Annotated[Path, typer.Argument(help="The file to write, such as RUN_ID.tar.gz.")],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Write a run with its regradings and artifacts to one file.

    The runs are verified first. `labledger import` imports the file, and verifies it again.
    """
    from labledger import archive_run

    archived = archive_run(run_id, file, lab_dir=lab_dir)
    if json:
        out_json(archived.as_json())
        return
    for run in archived.runs:
        out(f"archived {run.run_id}: {counted(run.committed, 'trial')} saved")
    if archived.uncommitted_results:
        trials = counted(archived.uncommitted_results, "finished trial")
        out(f"{trials} not saved, and not in the archive; `labledger resume` saves them")
    artifacts = counted(archived.artifacts, "large artifact")
    out(f"{archived.path}: {format_size(archived.size)}, {artifacts}")


def delete(
    run_id: arguments.RunId,
    because: Annotated[str, typer.Option(help="Why; this text stays in the ledger.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Delete a run with its regradings, after asking.

    The ledger keeps a tombstone of each, with its last digest. The artifacts stay until
    `labledger gc` removes them.
    """
    from labledger import delete_run

    runs = delete_run(run_id, because, lab_dir=lab_dir, dry_run=True)
    if not dry_run:
        for run in runs:
            say(f"{run.run_id}: {counted_of(run.committed, run.total, 'trial')} saved")
        say(f"`labledger archive {run_id} FILE` would keep a copy that can be imported")
        if not confirm(f"delete {counted(len(runs), 'run')} for ever?", yes=yes):
            say("nothing was deleted")
            raise typer.Exit(int(Exit.INCOMPLETE))
        runs = delete_run(run_id, because, lab_dir=lab_dir)
    if json:
        out_json([run.as_json() for run in runs])
        return
    verb = "would delete" if dry_run else "deleted"
    for run in runs:
        trials = counted(run.committed, "saved trial")
        out(f"{verb} {run.run_id}: {trials}, last digest {run.chain_head}")
    if not dry_run:
        say("`labledger gc` removes the artifacts that nothing refers to")
    if any(run.committed < run.total for run in runs):
        say("`labledger clean` removes containers of deleted runs, if there are any")


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be removed.")
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Remove artifacts that nothing refers to.

    Also removes files left by killed processes, and returns the ledger's unused space to the disk.
    Does nothing while a run is in progress.
    """
    from labledger import collect_garbage

    collected = collect_garbage(lab_dir=lab_dir, dry_run=dry_run)
    if json:
        out_json(collected.as_json())
        return
    verb = "would remove" if dry_run else "removed"
    for count, size, noun in (
        (collected.artifacts, collected.artifact_bytes, "artifact"),
        (collected.rows, collected.row_bytes, "content"),
        (collected.leftovers, collected.leftover_bytes, "leftover"),
    ):
        place = " of the ledger" if noun == "content" else ""
        if count:
            out(f"{verb} {counted(count, noun)}{place}: {format_size(size)}")
    if collected.ledger_bytes:
        out(f"the ledger's file is {format_size(collected.ledger_bytes)} smaller")
    removed = collected.artifacts or collected.rows or collected.leftovers
    if not (removed or collected.ledger_bytes):
        out("nothing to remove: everything is named")
    elif not dry_run:
        out(f"freed {format_size(collected.freed_bytes)} on the disk")


def note(
    run_id: arguments.RunId,
    text: Annotated[str, typer.Argument(help="The text of the note.")],
    lab_dir: arguments.LabDir = None,
) -> None:
    """Add a note to a run. `labledger status` shows them, and the view `notes` has all of them."""
    from labledger import add_note

    add_note(run_id, text, lab_dir=lab_dir)
    say(f"noted; `labledger status {run_id}` shows the notes of the run")


def tag(
    run_id: arguments.RunId,
    tags: Annotated[
        list[str] | None, typer.Argument(help="+NAME adds a tag, -NAME removes one.")
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Add tags to a run (+NAME), remove tags (-NAME), and print the tags that it has."""
    from labledger import change_tags

    words = tags or []
    unclear = [
        Problem("tag", f"found {word!r}; expected +{word} to add it or -{word} to remove it")
        for word in words
        if word[:1] not in {"+", "-"}
    ]
    if unclear:
        raise InvalidInput("the tags", unclear)
    added = [word[1:] for word in words if word[0] == "+"]
    removed = [word[1:] for word in words if word[0] == "-"]
    for name in change_tags(run_id, added, removed, lab_dir=lab_dir):
        out(name)
