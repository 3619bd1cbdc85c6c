"""Attempt notes: durable facts about an attempt that outlive its container and its folder.

There are two: a marker that no container has been started for the attempt, and the list of
reasons why it was started again. Each is a file in the run's folder `traces`, where no container
can write.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from labledger.files.durable_files import sync_folder, write_file

FOLDER = "traces"


def mark_not_started(trial: Path) -> None:
    """Mark the attempt with folder `trial` as not started.

    The marker is removed just before its container starts, so a later coordinator knows that it
    may safely create a new one. Errors are ignored: without the marker, the attempt counts as one
    that may have run.
    """
    marker = _not_started_marker(trial)
    with suppress(OSError):
        try:
            marker.touch(exist_ok=False)
        except FileNotFoundError:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()


def clear_not_started(trial: Path) -> None:
    """Remove the marker, durably: from now on a container may run for the attempt.

    After a power cut it would else be back, beside an agent that has run.
    """
    marker = _not_started_marker(trial)
    try:
        marker.unlink()
    except FileNotFoundError:
        return
    sync_folder(marker.parent)


def is_marked_not_started(trial: Path) -> bool:
    return _not_started_marker(trial).exists()


def add_restart_reason(trial: Path, reason: str) -> None:
    """Record durably why an attempt is started again."""
    reasons = [*restart_reasons(trial), reason]
    write_file(_reasons_file(trial), json.dumps(reasons).encode())


def restart_reasons(trial: Path) -> list[str]:
    """Return why the attempt was started again, one reason for each time."""
    try:
        return [str(text) for text in json.loads(_reasons_file(trial).read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        return [f"{_reasons_file(trial).name}, which holds the reasons, cannot be read"]


def record_cancellation(trial: Path, why: str) -> None:
    """Record why an attempt's container is about to be removed, and mark it as not started."""
    add_restart_reason(trial, why)
    mark_not_started(trial)


def remove_notes(trial: Path) -> None:
    """Remove the notes of an attempt whose result is durable."""
    for path in (_not_started_marker(trial), _reasons_file(trial)):
        path.unlink(missing_ok=True)


def folders_with_notes(run_dir: Path) -> list[Path]:
    """Return the trial folder, existing or not, of every attempt of a run that has notes."""
    return sorted({run_dir / "trials" / path.stem for path in (run_dir / FOLDER).glob("*-*.*")})


def _not_started_marker(trial: Path) -> Path:
    return _note_path(trial, "unstarted")


def _reasons_file(trial: Path) -> Path:
    return _note_path(trial, "notes")


def _note_path(trial: Path, kind: str) -> Path:
    return trial.parents[1] / f"{FOLDER}/{trial.name}.{kind}"
