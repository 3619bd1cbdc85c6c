"""Check that `trial.sh` can run agents and graders as the users that the experiment names.

Each user is tried by `trial.sh` itself, in a short container of the image. `preflight` is the
caller.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from labledger import resources
from labledger.errors import EngineUnavailable, Exit, LabLedgerError
from labledger.experiment.consistency_checks import USER_OF_IMAGE, user_of_phase
from labledger.experiment.settings.trial_settings import TrialSettings
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_probes import ImageProbes


class _PhaseUser(NamedTuple):
    """A user that a phase runs as in containers of an image."""

    phase: str
    """`agent`, `grader` or, with the image's entrypoint, `setup`."""
    own: str | None
    """As the phase names it; None for the image's."""
    user: str
    container_user: str | None


def _users(merged: TrialSettings) -> dict[str, str | None]:
    """Return the user that each phase of a container names."""
    runtime = merged.runtime
    users = {"agent": runtime.agent_user, "grader": merged.grading.user}
    users = {phase: user for phase, user in users.items() if phase in merged.phases}
    if "setup" in merged.phases or "image" in {runtime.entrypoint, runtime.healthcheck}:
        users["setup"] = None
    return users


def _first_user(merged: TrialSettings) -> str | None:
    """Return the user that a container starts as; None for that of its image."""
    user = merged.runtime.user
    return "root" if user == USER_OF_IMAGE else user


def check_users(
    probes: ImageProbes, ref: str, image: str, settings: Iterable[TrialSettings]
) -> Iterator[CheckResult]:
    """Check each user that agents and graders run as in containers of the image."""
    sets_up: dict[_PhaseUser, bool] = {}
    for merged in settings:
        container = merged.runtime.user
        of_image = probes.engine.image_user(image) if container == USER_OF_IMAGE else None
        for phase, own in _users(merged).items():
            user = user_of_phase(own, container, of_image)
            if user is not None:
                key = _PhaseUser(phase, own, user, _first_user(merged))
                sets_up[key] = sets_up.get(key, False) or "setup" in merged.phases
    for phase_user, has_setup in sets_up.items():
        yield _check_user(probes, ref, image, phase_user, sets_up=has_setup)


def _check_user(
    probes: ImageProbes, ref: str, image: str, phase_user: _PhaseUser, *, sets_up: bool
) -> CheckResult:
    phase, _, user, container_user = phase_user
    trial_script = resources.trial_script().read_text("utf-8")
    checked = "grader" if phase == "grader" else "agent"
    script = f"set -- check-{checked}-user {shlex.quote(user)}\n{trial_script}"
    try:
        status, output = probes.run_probe(image, script, container_user)
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        status, output = -1, error.message
    if status == 0 and not output:
        return CheckResult(f"{phase} user", f"{ref} can run the {phase} as {user}")
    hint = (
        "check that the setup command installs util-linux and adds the user"
        if sets_up
        else "install util-linux and add the user in the image"
    )
    return CheckResult(
        f"{phase} user",
        f"{ref} cannot run the {phase} as {user}: {output.strip()}",
        ok=False,
        hint=f"{hint}; the container must start as root: leave `runtime.user` out",
        # A setup command may create the user.
        warning=sets_up,
        exit_code=Exit.INVALID,
        concerns=lambda merged: (
            merged.runtime.image == ref
            and phase_user.container_user == _first_user(merged)
            and phase_user.own == _users(merged).get(phase, "")
        ),
    )
