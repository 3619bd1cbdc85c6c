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
from dataclasses import dataclass
from typing import Self

from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.phase_notes import phase_fields

LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Folders from which an interpreter loads code."""
_FOLDERS = frozenset({"bin", "sbin"}) | LIBRARY_FOLDERS
"""Folders whose direct children are programs and libraries."""


@dataclass(frozen=True, slots=True)
class AgentPhase:
    """When an agent ran, in seconds since the epoch, rounded so that no other phase is in it."""

    begin: float
    end: float
    """When the grader began; infinite if it did not."""
    after_setup: bool
    """Whether a setup command ran before it."""

    @classmethod
    def of(cls, spec: AttemptSpec) -> Self | None:
        """Return it on the machine on which the trial ran, once `trial.sh` has ended it.

        None if no agent ran.
        """
        fields = phase_fields(spec.folder)
        if "agent" not in fields:
            return None
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        after_setup = "setup" in fields
        # Times are in whole hundredths of a second, rounded down. Those of files may be as much
        # too early, because the kernel takes them from a clock that advances with its timer.
        begin = booted + (fields["agent"][1] + after_setup) / 100
        end = booted + (fields["grader"][1] - 1) / 100 if "grader" in fields else math.inf
        return cls(begin, end, after_setup)


def changed_programs(
    paths: Iterable[str], upper: str, lower: Sequence[str], agent: AgentPhase
) -> list[str]:
    """Return those of the changed `paths` that are programs or libraries of the image, sorted.

    `upper` is the folder with a container's changes, `lower` are the layers of its image, the
    newest first. What may have changed before or after the agent's phase is not returned.
    """
    return sorted(
        path
        for path in paths
        if _is_program(path) and _changed_by(agent, f"{upper}{path}") and _is_in(lower, path)
    )


def _is_program(path: str) -> bool:
    """Return True for a program or library, and for a whole folder of them."""
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] in _FOLDERS or name in _FOLDERS


def _changed_by(agent: AgentPhase, path: str) -> bool:
    """Return True if what is at a path of the container's changes dates from the agent's phase."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISDIR(status.st_mode):
        return False  # A folder changes with its content; only the deletion of a whole one counts.
    # Newer kernels give all deleted files one inode, which has the time of the last deletion.
    if _is_whiteout(status) and status.st_nlink > 1 and agent.after_setup:
        return False
    return agent.begin <= status.st_ctime < agent.end


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


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
        return not _is_whiteout(status)
    return False
