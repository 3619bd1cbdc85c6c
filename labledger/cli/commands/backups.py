"""Commands that back up and restore a whole lab: backup and restore.

Each calls one function of the library. The exit code is 3 if the backup or the restored lab lacks
an artifact that its ledger names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli import arguments
from labledger.cli.console import out, out_json, say
from labledger.errors import Exit
from labledger.text.figures import format_size
from labledger.text.words import counted, counted_of

if TYPE_CHECKING:
    from labledger.results import BackupProgress, RestoredRun

_ARTIFACT_BYTES = 1 << 14
"""The fixed cost of copying an artifact, expressed in bytes, for the progress display."""
_LARGE_BYTES = 64 << 20
"""Smaller amounts of work take a few seconds and print no progress."""


def backup(
    target: Annotated[
        Path,
        typer.Argument(
            help="The file to write, such as lab.tar.gz; or a folder, which gets only the new "
            "artifacts each time.",
        ),
    ],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Back up the whole lab, also while runs are writing.

    A backup holds the ledger, the artifacts, results that wait to be saved, and the settings.
    `labledger restore` makes a lab from it.
    """
    from labledger import back_up_lab

    written = back_up_lab(target, lab_dir=lab_dir, on_progress=_tenths("backing up"))
    if json:
        out_json(written.as_json())
    else:
        for run in written.runs:
            out(f"{run.run_id}: {counted_of(run.committed, run.total, 'trial')} saved")
        artifacts = counted(written.artifacts, "artifact")
        if written.copied < written.artifacts:
            artifacts = f"{artifacts}, {written.copied:,} of them new"
        size = format_size(written.artifact_bytes)
        out(f"{written.path}: {format_size(written.size)}; {artifacts} ({size})")
    if written.missing_total:
        examples = ", ".join(written.missing)
        number = counted(written.missing_total, "artifact")
        say(f"the lab itself lacks {number} that its ledger names, such as {examples}")
        raise typer.Exit(int(Exit.INCOMPLETE))


def restore(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="BACKUP",
            help="A file that `labledger backup` wrote; or a folder of them, for the newest one.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="LAB", help="The new lab folder, such as restored/.lab."),
    ],
    json: arguments.Json = False,
) -> None:
    """Restore a backup as a new lab folder.

    The original lab may keep running: the new lab never touches its containers. The settings and
    receivers of the new lab take effect once you allow them.
    """
    from labledger import restore_lab

    restored = restore_lab(source, target, on_progress=_tenths("restoring"))
    if json:
        out_json(restored.as_json())
    else:
        for run in restored.runs:
            out(_restored_line(run))
        artifacts = counted(restored.artifacts, "artifact")
        backup = f"the backup of {restored.written_at} of the ledger {restored.original_id}"
        out(f"{restored.path}: {backup}; {artifacts}")
        lab = quote(str(restored.path))
        say(f"`labledger verify --lab-dir {lab}` checks it")
        say(f"`labledger allow {lab}` lets its settings and receivers act")
    if restored.missing_artifacts:
        say(f"the backup lacks {counted(restored.missing_artifacts, 'artifact')}")
        raise typer.Exit(int(Exit.INCOMPLETE))


def _restored_line(run: RestoredRun) -> str:
    line = f"{run.run_id}: {counted_of(run.committed, run.total, 'trial')} saved"
    if run.left_in_original:
        trials = ", ".join(map(str, run.left_in_original[:10]))
        more = ", …" if len(run.left_in_original) > 10 else ""
        line += f"; in progress in the original, and not run again by resume: {trials}{more}"
    return line


def _tenths(verb: str) -> Callable[[BackupProgress], None]:
    """Return a function that prints each tenth of the work, if there is much work."""
    printed_tenth = 0

    def report(progress: BackupProgress) -> None:
        nonlocal printed_tenth
        done = progress.size + progress.artifacts * _ARTIFACT_BYTES
        total = progress.total_size + progress.total * _ARTIFACT_BYTES
        tenth = 10 * done // total
        if tenth > printed_tenth and total >= _LARGE_BYTES:
            printed_tenth = tenth
            size, total_size = format_size(progress.size), format_size(progress.total_size)
            artifacts = counted_of(progress.artifacts, progress.total, "artifact")
            say(f"{verb}: {size} of {total_size}, {artifacts}")

    return report
