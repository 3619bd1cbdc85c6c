"""Check that a container of an image has the shell, and the programs that its trials start.

`preflight` checks the images of an experiment, and `regrade` those of a grader's containers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator

from labledger.errors import EngineUnavailable, Exit, LabLedgerError
from labledger.experiment import name_references
from labledger.experiment.inputs.container_paths import is_inside
from labledger.experiment.plan_sections import NamedPhase
from labledger.experiment.settings.trial_settings import TrialSettings
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_probes import ImageProbes
from labledger.trial import contract
from labledger.trial.life import container_start

_NO_SHELL = re.compile(r"(?i)exec\w*\b.*\bsh\b")
"""In what runc and crun say of a program that they cannot start, such as `exec: "sh": executable
file not found in $PATH`."""
_NEEDED_TOOLS = ("cat", "chmod", "mkfifo", "rm", "sleep")
"""What `trial.sh` itself runs besides the shell."""


def check_commands(
    probes: ImageProbes,
    ref: str,
    image: str,
    phases: Iterable[NamedPhase],
    tools: Collection[str] = (),
) -> Iterator[CheckResult]:
    """Check that a container of the image has the shell and every phase's command.

    `tools` are the programs that copy files of its tasks.
    """
    commands = dict.fromkeys(tools, "a task with files for its grader") | _commands(phases)
    required = sorted({*_NEEDED_TOOLS, *commands})
    script = "; ".join(
        f"command -v {shlex.quote(c)} >/dev/null || echo {shlex.quote(c)}" for c in required
    )
    try:
        status, output = container_start.retry_engine_errors(
            lambda: probes.run_probe(image, f"{script}; true")
        )
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        yield _describe_refusal(ref, error.message, probes.oci_runtime)
        return
    absent = output.split("\n")[:-1]
    if status != 0:
        yield CheckResult(
            "image", f"{ref}: `sh` failed with status {status}: {output[:200]}", ok=False
        )
    for command in absent:
        yield CheckResult(
            "image",
            f"{ref} has no command {command!r}, which {commands.get(command, 'every trial')} needs",
            ok=False,
            hint="install it in the image, or correct the command",
            exit_code=Exit.INVALID,
        )
    if status == 0 and not absent:
        yield CheckResult(
            "image", f"{ref} has sh and {', '.join(sorted(commands)) or 'all commands'}"
        )


def _describe_refusal(ref: str, message: str, oci_runtime: str | None) -> CheckResult:
    """Return a failed check of an image of which the engine started no container."""
    if _NO_SHELL.search(message):
        detail = f"{ref} has no usable `sh`: {message}"
        hint = "use an image with a POSIX shell, such as busybox or any Debian"
    else:
        detail = f"the engine started no container of {ref}: {message}"
        hint = "try `docker run --rm --network none` with the image, and mend what it reports"
    if oci_runtime is not None:
        hint += f"; or {oci_runtime} cannot run its containers: leave `runtime.oci` out"
    return CheckResult("image", detail, ok=False, hint=hint)


def phases_of(
    settings: Iterable[tuple[str, TrialSettings]], task_folders: Collection[str]
) -> list[NamedPhase]:
    """Return the phases of trials, each command of a variant once.

    Those that start a program in one of the `task_folders` are left out.
    """
    phases: dict[tuple[str, str, str | None], NamedPhase] = {}
    for variant_id, merged in settings:
        for name, plan in merged.phases.items():
            if any(is_inside(plan.command[0], folder) for folder in task_folders):
                continue
            phase = NamedPhase(name, plan, None if name == "grader" else variant_id)
            phases.setdefault((name, plan.command[0], phase.variant_id), phase)
    return list(phases.values())


def _commands(phases: Iterable[NamedPhase]) -> dict[str, str]:
    """Return the first word of each phase's command with the phase that needs it.

    Staged files are left out: they do not come from the image. If several phases need a command,
    the phase is the grader if it is one of them, else that of the first variant.
    """
    commands: dict[str, str] = {}
    for phase in sorted(phases, key=lambda phase: phase.variant_id is not None):
        of_variant = "" if phase.variant_id is None else f" of variant {phase.variant_id}"
        word = phase.plan.command[0]
        if not any(name_references.names(word)) and not word.startswith(f"{contract.DEPS}/"):
            commands.setdefault(name_references.expand(word, {}), f"the {phase.name}{of_variant}")
    return commands
