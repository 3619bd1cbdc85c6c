"""Where a container has a sealed grader's files, and since when."""

from __future__ import annotations

import os
import shutil

from labledger.records import JsonObject
from labledger.trial import contract, inputs
from labledger.trial.contract import Sealing, TrialSpec

_FOR_ALL = 0o755


def grader_mounts(spec: TrialSpec) -> list[JsonObject]:
    """What is mounted of the grader. The agent's user cannot enter the folder around both."""
    folder = spec.folder / "sealed"
    match spec.plan.sealing:
        case Sealing.NONE:
            return []
        case Sealing.UNREADABLE:
            return [
                contract.mount(folder, f"{contract.SEALED}/in", read_only=True),
                contract.mount(spec.plan.sealed_dir, f"{contract.SEALED}/grader", read_only=True),
            ]
        case Sealing.AFTER_AGENT:
            return [contract.mount(folder, contract.SEALED, read_only=True)]


def sealed_tmpfs(spec: TrialSpec) -> dict[str, str]:
    """The folder that only root in the container can enter, whoever the host's user is."""
    closed = spec.plan.sealing is Sealing.UNREADABLE
    return {contract.SEALED: "mode=0700,size=64k"} if closed else {}


def unseal(spec: TrialSpec, phases: str) -> None:
    """Put the grader's files and a note of what came before into a container that has stopped.

    May be done again, wherever an earlier attempt broke off.
    """
    folder = spec.folder / "sealed"
    for name in ("in", "grader"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(spec.plan.sealed_dir, folder / "grader", copy_function=_link)
    (folder / "in").mkdir()
    (folder / "in").chmod(_FOR_ALL)
    inputs.write_phase_script(spec, "grader", folder / "in")
    inputs.write(spec.folder / "in" / contract.PHASES_FILE, phases)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        # Not every file system has links.
        shutil.copy2(source, target)
    return target
