"""Find the programs and libraries of an image that an agent removed or replaced.

Unlike other suspected tampering, this says that something a grader may need is gone: a shell, an
interpreter, a test tool. So it decides whether a trial that could not be graded counts
(`ledger/database/pass_rate.sql`). Adding programs, as package managers do, is no such change. What
setup or the grader changed is told apart by the time of the change, which the host's kernel sets
and no container can. `tampering` calls this module, where the host can read the engine's layers.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterable, Sequence

from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.phase_notes import phase_fields

LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Folders from which an interpreter loads code."""
_FOLDERS = frozenset({"bin", "sbin"}) | LIBRARY_FOLDERS
"""Folders whose direct children are programs and libraries."""


def agent_window(spec: AttemptSpec) -> tuple[float, float] | None:
    """Return when the agent began and when the grader did, in seconds since the epoch.

    Without a grader phase, the end is infinite. None if no agent ran. Call it on the machine on
    which the trial ran, once `trial.sh` has ended it.
    """
    fields = phase_fields(spec.folder)
    if "agent" not in fields:
        return None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    begin = booted + fields["agent"][1] / 100
    # Times are in whole hundredths of a second, rounded down.
    end = booted + fields["grader"][1] / 100 + 0.01 if "grader" in fields else math.inf
    return begin, end


def changed_programs(
    paths: Iterable[str], upper: str, lower: Sequence[str], window: tuple[float, float]
) -> list[str]:
    """Return those of the changed `paths` that are programs or libraries of the image, sorted.

    `upper` is the folder with a container's changes, `lower` are the layers of its image, the
    newest first. Only what changed for the last time in the `window` is returned.
    """
    return sorted(
        path
        for path in paths
        if _is_program(path) and _changed_in(f"{upper}{path}", window) and _is_in(lower, path)
    )


def _is_program(path: str) -> bool:
    """Return True for a program or library, and for a whole folder of them."""
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] in _FOLDERS or name in _FOLDERS


def _changed_in(path: str, window: tuple[float, float]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    # A folder changes with its content; only the deletion of a whole one counts.
    return not stat.S_ISDIR(status.st_mode) and window[0] <= status.st_ctime < window[1]


def _is_in(layers: Sequence[str], path: str) -> bool:
    """Return True if an image, given by its layers, has something at `path`."""
    for layer in layers:
        folder = os.path.dirname(f"{layer}{path}")  # noqa: PTH120
        if os.path.realpath(folder) != os.path.normpath(folder):
            continue  # A link of the image, which could lead out of it.
        try:
            status = os.lstat(f"{layer}{path}")
        except OSError:
            continue
        return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)
    return False
