"""What is known of an attempt besides its container and its folder, and outlives both.

That nothing has run for it yet, and why it was begun anew. Each is a file of its own in the run
folder, where no container can write.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from labledger.store import write_atomically
from labledger.trial.contract import TrialSpec

FOLDER = "traces"

Listener = Callable[[TrialSpec, str], None]
"""Called in a trial's thread with each note, as soon as it is durable."""

_thread = threading.local()


def report_restarts_to(listener: Listener) -> None:
    """Make the notes of this thread's trials known at once; their evidence has them in any case."""
    _thread.listener = listener


def mark_not_started(trial: Path) -> None:
    """Say of the attempt with folder `trial` that no container has run for it, until it starts.

    Where that cannot be written, a later coordinator takes the attempt for one that may have run.
    """
    marker = _unstarted(trial)
    with suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def clear_not_started(trial: Path) -> None:
    """Say that a container may run for the attempt from now on."""
    _unstarted(trial).unlink(missing_ok=True)


def is_marked_not_started(trial: Path) -> bool:
    return _unstarted(trial).exists()


def add_restart_reason(spec: TrialSpec, text: str) -> None:
    """Keep, durably, why an attempt is begun anew, and tell whoever listens."""
    _add(spec.folder, text)
    listener: Listener | None = getattr(_thread, "listener", None)
    if listener is not None:
        listener(spec, text)


def restart_reasons(trial: Path) -> list[str]:
    """Why the attempt was begun anew, once for each time."""
    try:
        return [str(text) for text in json.loads(_notes(trial).read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        return [f"{_notes(trial).name} said why, and cannot be read any more"]


def record_cancellation(trial: Path, why: str) -> None:
    """Have an attempt begun anew whose container is about to be removed on purpose."""
    _add(trial, why)
    mark_not_started(trial)


def remove_notes(trial: Path) -> None:
    """Remove all traces of an attempt whose result is durable."""
    for path in (_unstarted(trial), _notes(trial)):
        path.unlink(missing_ok=True)


def attempts(run_dir: Path) -> list[Path]:
    """The trial folder, there or not, of every attempt of a run that has left traces."""
    return sorted({run_dir / "trials" / path.stem for path in (run_dir / FOLDER).glob("*-*.*")})


def _add(trial: Path, text: str) -> None:
    write_atomically(_notes(trial), json.dumps([*restart_reasons(trial), text]).encode())


def _unstarted(trial: Path) -> Path:
    return _of(trial, "unstarted")


def _notes(trial: Path) -> Path:
    return _of(trial, "notes")


def _of(trial: Path, kind: str) -> Path:
    return trial.parent.parent / FOLDER / f"{trial.name}.{kind}"
