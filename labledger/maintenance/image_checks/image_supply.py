"""Have the images of an experiment on this machine: find them, pull them, or build them.

An image whose content the experiment says how to build is built again only if that content has
changed: built images are labelled with its digest. Every result is a check with a hint. Called by
preflight alone; `image_builds` does the work that takes long.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from labledger.docker.engine import Engine
from labledger.docker.image_builds import EngineBuild, image_label
from labledger.errors import LabLedgerError
from labledger.experiment.inputs.image_builds import ImageBuild, find_build
from labledger.images.image_names import LABEL, is_local
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_builds import ImageBuilds, ObtainedImage, WantedImage
from labledger.run_control.events import Listener, ignore_events
from labledger.run_control.stop_requests import StopRequest
from labledger.storage.lab_folder import LabFolder
from labledger.text.figures import clock_time

_NEEDS_BUILDKIT = re.compile(r"BuildKit|unknown instruction|Unknown flag", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Supply:
    """What may be done to have an image."""

    pull: bool
    """Pull what is missing, and build what no registry offers."""
    build: bool = False
    """Build rather than pull, and build also in place of an image that somebody else built."""
    on_event: Listener = ignore_events
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def may_build(self) -> bool:
        return self.pull or self.build


def supply_images(
    engine: Engine,
    lab: LabFolder,
    refs: tuple[str, ...],
    builds: Mapping[str, ImageBuild] | None,
    supply: Supply,
    *,
    is_ready: bool,
) -> tuple[list[CheckResult], dict[str, str]]:
    """Return a check for each image, and the ids of those that are here, by reference.

    Builds only if everything else is ready for a run (`is_ready`): a build can take long. Raises
    `ImageBuildsStopped` and `EngineUnavailable`.
    """
    checks: dict[str, CheckResult] = {}
    wanted: list[WantedImage] = []
    for ref in refs:
        build = find_build(builds, ref)
        check = (
            _check_unbuilt(engine, ref, pull=supply.pull)
            if build is None
            else _check_buildable(engine, ref, build, supply, is_ready=is_ready)
        )
        if check is not None:
            checks[ref] = check
        elif build is not None and build.source is not None:
            is_here = engine.image_id(ref) is not None
            may_pull = not (supply.build or is_here or is_local(ref))
            request = EngineBuild(ref, build.source, build.digest, build.timeout_s)
            wanted.append(WantedImage(request, may_pull))
    if wanted:
        for image, obtained in zip(wanted, _obtain(lab, wanted, supply), strict=True):
            build = find_build(builds, obtained.ref)
            assert build is not None
            checks[obtained.ref] = _check_obtained(image.build, build, obtained)
    ids = {ref: engine.image_id(ref) for ref in refs if checks[ref].ok}
    return [checks[ref] for ref in refs], {ref: id_ for ref, id_ in ids.items() if id_ is not None}


def _check_unbuilt(engine: Engine, ref: str, *, pull: bool) -> CheckResult:
    """Check an image that the experiment does not say how to build."""
    is_here = engine.image_id(ref) is not None
    detail = f"{ref} is available locally"
    hint = f"build or import it, or check the name {ref!r}; `images` can say how to build it"
    try:
        if not is_here and pull:
            engine.pull(ref)
            is_here, detail = engine.image_id(ref) is not None, f"{ref} was pulled"
    except LabLedgerError as error:
        return CheckResult("image", error.message, ok=False, hint=hint)
    if is_here:
        return CheckResult("image", detail)
    if engine.image_is_obtainable(ref):
        return CheckResult("image", f"{ref} is not available locally; `run` will pull it")
    detail = f"{ref} is not available locally and no registry offers it"
    return CheckResult("image", detail, ok=False, hint=hint)


def _check_buildable(
    engine: Engine, ref: str, build: ImageBuild, supply: Supply, *, is_ready: bool
) -> CheckResult | None:
    """Check an image that can be built. Return None if it must be obtained now."""
    state = "is not available locally"
    if engine.image_id(ref) is not None:
        label = image_label(engine, ref)
        if label == build.digest:
            return CheckResult("image", f"{ref} is available locally, built from {build.context}")
        if label is None and not supply.build:
            detail = f"{ref} is available locally; labledger did not build it from {build.context}"
            return CheckResult("image", f"{detail} (--build does)")
        state = f"was not built from what {build.context} holds now"
    if not supply.may_build:
        is_pulled = state == "is not available locally" and not is_local(ref)
        how = "pull or build it" if is_pulled else "build it"
        return CheckResult("image", f"{ref} {state}; `run` will {how}")
    if not is_ready:
        detail = f"{ref} {state}; it is built once the other checks pass"
        return CheckResult("image", detail)
    return None


def _obtain(lab: LabFolder, wanted: list[WantedImage], supply: Supply) -> list[ObtainedImage]:
    try:
        return ImageBuilds(lab, supply.on_event, supply.stop).obtain_all(wanted)
    except OSError as error:
        raise LabLedgerError(
            f"{lab.builds} cannot hold the logs of builds: {error.strerror}",
            hint="choose another folder with --lab-dir",
        ) from error


def _check_obtained(
    request: EngineBuild, build: ImageBuild, obtained: ObtainedImage
) -> CheckResult:
    ref, took = obtained.ref, clock_time(obtained.seconds)
    if obtained.error is None:
        how = "pulled" if obtained.was_pulled else f"built from {build.context}"
        return CheckResult("image", f"{ref} was {how} in {took}; its log is {obtained.log}")
    lines = "".join(f"\n    {line}" for line in obtained.last_lines)
    detail = (
        f"{ref} could not be built from {build.context} ({took}): {obtained.error}\n"
        f"  the last lines of {obtained.log}:{lines}"
    )
    source = request.source
    words = ["docker", "build", "-t", ref, "--label", f"{LABEL}={request.digest}"]
    words += ["-f", str(source.folder / source.dockerfile)]
    words += ["--target", source.target] if source.target else []
    words += [
        w for key, value in (source.args or {}).items() for w in ("--build-arg", f"{key}={value}")
    ]
    command = shlex.join([*words, str(source.folder)])
    if _NEEDS_BUILDKIT.search(obtained.error):
        hint = f"labledger builds without BuildKit; if the Dockerfile needs it: `{command}`"
    elif "timeout_s" in obtained.error:
        hint = f"raise images.{ref}.timeout_s, or build it yourself: `{command}`"
    else:
        hint = f"correct {build.context}/{build.dockerfile}; to try it yourself: `{command}`"
    return CheckResult("image", detail, ok=False, hint=hint)
