"""Commands that keep a lab folder tidy and annotate runs: archive, delete, gc, note and tag.

Each calls one function of the library and prints its result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labledger import Exit
from labledger.cli.options import arguments
from labledger.cli.output.console import confirm, out, out_json, say
from labledger.text import counted, counted_of, format_size


def register(app: typer.Typer) -> None:
    app.command()(archive)
    app.command()(delete)
    app.command()(gc)


def archive(
    run_id: arguments.RunId,
    file: Annotated[Path, typer.Argument(help="The file to write, such as RUN_ID.tar.gz.")],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Write a run with its regradings and artifacts to one file.

    The runs are verified first. `labledger import` takes the file back, verified again.
    """
    from labledger import archive_run

    archived = archive_run(run_id, file, lab_dir=lab_dir)
    if json:
        out_json(archived.as_json())
        return
    for run in archived.runs:
        out(f"archived {run.run_id}: {counted(run.committed, 'slot')} committed")
    if archived.uncommitted_results:
        results = counted(archived.uncommitted_results, "finished result")
        out(f"{results} not committed: not in the archive; `labledger resume` commits them")
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

    A tombstone with the last digest of each stays in the ledger. The artifacts stay until
    `labledger gc` removes them.
    """
    from labledger import delete_run

    runs = delete_run(run_id, because, lab_dir=lab_dir, dry_run=True)
    if not dry_run:
        for run in runs:
            say(f"{run.run_id}: {counted_of(run.committed, run.total, 'slot')} committed")
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
        out(f"{verb} {run.run_id}: {counted(run.committed, 'commit')}, the last {run.chain_head}")
    if not dry_run:
        say("`labledger gc` removes the artifacts that nothing names any more")
    if any(run.committed < run.total for run in runs):
        say("`labledger clean` removes containers of deleted runs, if there are any")


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be removed.")
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Remove artifacts that nothing names.

    Also removes what ended processes left, and returns the ledger's unused space to the disk. Does
    nothing while a run is in progress.
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


def register_notes_and_tags(app: typer.Typer) -> None:
    app.command()(note)
    # A word such as -draft or -high is a tag to remove, and its letters are no options.
    settings = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
    app.command(context_settings=settings)(tag)


def note(
    run_id: arguments.RunId,
    text: Annotated[str, typer.Argument(help="What is to be remembered of the run.")],
    lab_dir: arguments.LabDir = None,
) -> None:
    """Write a note on a run. `labledger status` shows its notes, the view `notes` all of them."""
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
    """Add tags to a run (+NAME) and remove others (-NAME), and print those that it has."""
    from labledger import InvalidInput, Problem, change_tags

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
