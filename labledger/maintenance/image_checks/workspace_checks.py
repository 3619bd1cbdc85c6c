"""Check that the folders of images that experiments name as workspaces are there.

The engine would make a folder that is missing, and every trial would work in an empty one. Called
by `preflight` for each image.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator

from labledger.errors import EngineUnavailable, Exit, LabLedgerError
from labledger.experiment.settings.trial_settings import TrialSettings
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_probes import ImageProbes


def check_workspaces(
    probes: ImageProbes, ref: str, image: str, settings: Iterable[TrialSettings]
) -> Iterator[CheckResult]:
    """Check each folder of the image that is a workspace. Raises `EngineUnavailable`.

    A missing folder is a warning if every trial in it has a setup phase, which may fill it.
    """
    has_setup: dict[str, bool] = {}
    for merged in settings:
        folder = merged.runtime.workspace
        if folder is not None and folder.startswith("/"):
            has_setup[folder] = has_setup.get(folder, True) and "setup" in merged.phases
    for folder, can_be_made in has_setup.items():
        try:
            status, output = probes.run_probe(image, f"cd {shlex.quote(folder)}")
        except EngineUnavailable:
            raise
        except LabLedgerError as error:
            status, output = -1, error.message
        if status == 0:
            yield CheckResult("workspace", f"{ref} has the folder {folder}")
            continue
        yield CheckResult(
            "workspace",
            f"runtime.workspace: {ref} has no usable folder {folder}: {output.strip()[:200]}",
            ok=False,
            hint="name a folder of the image, or `image` for its WORKDIR",
            warning=can_be_made,
            exit_code=Exit.INVALID,
            concerns=_works_in(ref, folder),
        )


def _works_in(image: str, folder: str) -> Callable[[TrialSettings], bool]:
    return lambda merged: (merged.runtime.image, merged.runtime.workspace) == (image, folder)
