"""Mount a sealed grader's files so that the agent cannot read them.

Either they are mounted from the start, in a folder that only root can enter (`unreadable`), or they
are added when the agent has ended: to the stopped container between its two parts (`after_agent`),
or to the running container, which waits for them (`delivered`). Used by `container_config`,
`two_part_trials` and `delivery`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from labledger import faults
from labledger.experiment.settings.grading import Sealing
from labledger.records import JsonObject
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.input_files import inputs
from labledger.trial.life.input_files.task_files import link_or_copy

_READABLE_BY_ALL = 0o755


def grader_mounts(spec: AttemptSpec) -> list[JsonObject]:
    """Return the mounts of a sealed grader. The agent's user cannot enter their parent folder."""
    folder = spec.folder / "sealed"
    match spec.sealing:
        case Sealing.NONE if spec.plan.is_sealed and not spec.runs_agent:
            # A separate grader's container, to which no agent comes.
            return [
                contract.mount(spec.plan.sealed_dir, f"{contract.SEALED}/grader", read_only=True)
            ]
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
    for path in folder.iterdir():
        shutil.rmtree(path)
    _fill(spec, folder)
    inputs.write_readable_file(spec.folder / "in" / contract.PHASES_FILE, phases)


def deliver(spec: AttemptSpec) -> None:
    """Put the grader's files into a running container that waits for them.

    Can be repeated after an interruption at any point. Each folder appears as a whole, and one that
    is there is left alone: the grader may use it, if another coordinator has delivered it.
    """
    new = Path(tempfile.mkdtemp(dir=spec.folder, prefix="unsealing."))
    try:
        _fill(spec, new)
        for path in sorted(new.iterdir()):
            if not (target := spec.folder / "sealed" / path.name).exists():
                path.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fill(spec: AttemptSpec, folder: Path) -> None:
    """Write into `folder` what `/agentlab/sealed` holds while the grader runs."""
    shutil.copytree(spec.plan.sealed_dir, folder / "grader", copy_function=link_or_copy)
    faults.fault_point("inside_unseal", spec.slot.schedule_idx)
    (folder / "in").mkdir()
    (folder / "in").chmod(_READABLE_BY_ALL)
    inputs.write_phase_script(spec, "grader", folder / "in")
