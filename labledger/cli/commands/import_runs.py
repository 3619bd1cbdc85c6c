"""`labledger import`: runs of another ledger into this one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.output.console import out, out_json
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from labledger.api import ImportedRun


def register(app: typer.Typer) -> None:
    app.command("import")(import_command)


def import_command(
    source: Annotated[
        Path, typer.Argument(help="A ledger file, a lab folder, or a run's folder.", readable=False)
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
            "--without-artifacts", help="Of mirrors, import the records without logs and files."
        ),
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Import runs of another ledger into this one.

    The source is verified first and never changed. From a run's folder without its ledger, the
    mirrors are read. A run that is here already stays as it is; if the source has more slots of
    it, the rest is imported. A different run of the same name is refused.
    """
    from labledger.api import import_runs

    imported = import_runs(
        source, run or (), lab_dir=lab_dir, dry_run=dry_run, without_artifacts=without_artifacts
    )
    if json:
        out_json([each.as_json() for each in imported])
        return
    for each in imported:
        out(_line(each, dry_run=dry_run))
    if not imported:
        out(f"{source} holds no run")


def _line(done: ImportedRun, *, dry_run: bool) -> str:
    whole = f"{done.committed} of {done.total} slots committed"
    match done.standing.value:
        case "new":
            text = f"{'would import' if dry_run else 'imported'} {done.run_id}: {whole}"
        case "grown":
            word = "would bring" if dry_run else "brought"
            text = f"{word} {done.run_id} from {done.here} to {whole}"
        case _:
            further = f", {done.here} here" if done.here > done.committed else ""
            return f"{done.run_id} is here already, the same: {whole}{further}"
    if done.left_staged:
        text += (
            f"; {counted(done.left_staged, 'finished result')} not committed there: "
            "go on with the run there, and import it again"
        )
    if done.missing_artifacts:
        text += f"; {counted(done.missing_artifacts, 'reference')} to artifacts that were not there"
    return text
