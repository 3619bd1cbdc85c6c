"""Commands that back up a whole lab and restore it: backup and restore.

Each calls one function of the library. The exit code is 3 if the backup or the restored lab lacks
an artifact that its ledger names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from labledger import Exit
from labledger.cli import arguments
from labledger.cli.console import out, out_json, say
from labledger.text import counted, counted_of, format_size

if TYPE_CHECKING:
    from labledger import BackupProgress, RestoredRun

_ARTIFACT_BYTES = 1 << 14
"""The time that each artifact takes in addition to its own bytes, as a number of bytes."""
_LARGE_BYTES = 64 << 20
"""Work that takes less time than this many bytes prints no progress: it takes a few seconds."""


def backup(
    target: Annotated[
        Path,
        typer.Argument(
            help="The file to write, such as lab.tar.gz; or a folder, to which only new artifacts "
            "are copied.",
        ),
    ],
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Back up the whole lab, also while runs are writing.

    A backup has the ledger, the artifacts, unfinished results and the settings. `labledger restore`
    makes a lab from it.
    """
    from labledger import back_up_lab

    made = back_up_lab(target, lab_dir=lab_dir, on_progress=_tenths("backing up"))
    if json:
        out_json(made.as_json())
    else:
        for run in made.runs:
            out(f"{run.run_id}: {counted_of(run.committed, run.total, 'slot')} committed")
        artifacts = counted(made.artifacts, "artifact")
        if made.copied < made.artifacts:
            artifacts = f"{artifacts}, {made.copied:,} of them new"
        size = format_size(made.artifact_bytes)
        out(f"{made.path}: {format_size(made.size)}; {artifacts} ({size})")
    if made.missing_total:
        shown = ", ".join(made.missing)
        number = counted(made.missing_total, "artifact")
        say(f"the lab itself lacks {number} that its ledger names, such as {shown}")
        raise typer.Exit(int(Exit.INCOMPLETE))


def restore(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="BACKUP",
            help="A file that `labledger backup` wrote; or its folder, for the newest in it.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="LAB", help="The new lab folder, such as restored/.lab."),
    ],
    json: arguments.Json = False,
) -> None:
    """Restore a backup as a new lab folder.

    The new lab takes no container of the original, which may keep running. Its settings and
    receivers take effect once you have allowed them.
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
    line = f"{run.run_id}: {counted_of(run.committed, run.total, 'slot')} committed"
    if run.left_in_original:
        slots = ", ".join(map(str, run.left_in_original[:10]))
        more = ", …" if len(run.left_in_original) > 10 else ""
        line += f"; in progress in the original, and not run again by resume: {slots}{more}"
    return line


def _tenths(verb: str) -> Callable[[BackupProgress], None]:
    """Return a function that prints each tenth of the work, if there is much work."""
    shown = 0

    def report(progress: BackupProgress) -> None:
        nonlocal shown
        done = progress.size + progress.artifacts * _ARTIFACT_BYTES
        total = progress.total_size + progress.total * _ARTIFACT_BYTES
        tenth = 10 * done // total
        if tenth > shown and total >= _LARGE_BYTES:
            shown = tenth
            size, total_size = format_size(progress.size), format_size(progress.total_size)
            artifacts = counted_of(progress.artifacts, progress.total, "artifact")
            say(f"{verb}: {size} of {total_size}, {artifacts}")

    return report
