"""Mount a sealed grader's files so that the agent cannot read them.

Either they are mounted from the start, in a folder that only root can enter (`unreadable`), or they
are added to the stopped container between its two parts (`after_agent`). Used by
`container_config` and `two_part_trials`.
"""

from __future__ import annotations

import shutil

from labledger.experiment.settings.grading import Sealing
from labledger.records import JsonObject
from labledger.trial import contract
from labledger.trial.contract import AttemptSpec
from labledger.trial.life import inputs
from labledger.trial.life.task_files import link_or_copy

_READABLE_BY_ALL = 0o755


def grader_mounts(spec: AttemptSpec) -> list[JsonObject]:
    """Return the mounts of a sealed grader. The agent's user cannot enter their parent folder."""
    folder = spec.folder / "sealed"
    match spec.sealing:
        case Sealing.NONE | Sealing.SEPARATE:
            return []
        case Sealing.UNREADABLE:
            return [
                contract.mount(folder, f"{contract.SEALED}/in", read_only=True),
                contract.mount(spec.plan.sealed_dir, f"{contract.SEALED}/grader", read_only=True),
            ]
        case Sealing.AFTER_AGENT | Sealing.DELIVERED:
            return [contract.mount(folder, contract.SEALED, read_only=True)]


def sealed_tmpfs(spec: AttemptSpec) -> dict[str, str]:
    """Return the tmpfs that only root in the container can enter, as path and options."""
    is_unreadable = spec.sealing is Sealing.UNREADABLE
    return {contract.SEALED: "mode=0700,size=64k"} if is_unreadable else {}


def unseal(spec: AttemptSpec, phases: str) -> None:
    """Put the grader's files and the phases so far into a stopped container.

    `phases` is in the format of `trial.sh`. Can be repeated after an interruption at any point.
    """
    folder = spec.folder / "sealed"
    for name in ("in", "grader"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(spec.plan.sealed_dir, folder / "grader", copy_function=link_or_copy)
    (folder / "in").mkdir()
    (folder / "in").chmod(_READABLE_BY_ALL)
    inputs.write_phase_script(spec, "grader", folder / "in")
    inputs.write_readable_file(spec.folder / "in" / contract.PHASES_FILE, phases)
