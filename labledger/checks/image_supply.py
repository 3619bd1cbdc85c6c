"""Find, pull or build the images of an experiment on this machine.

An image whose content the experiment says how to build is built again only if that content has
changed: built images are labelled with its digest. Every result is a check with a hint.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labledger.checks.check_results import CheckResult, failed, runs_in
from labledger.checks.parallel_builds import (
    BuildKitUse,
    ImageTask,
    WantedImage,
    blames_registry,
    obtain_images,
)
from labledger.engine import image_builds
from labledger.engine.build_context import LABEL, BuildContext, buildkit_needs, is_local
from labledger.engine.docker_config import RegistryCredentialsFailed
from labledger.engine.engine import Engine
from labledger.engine.image_builds import EngineBuild, image_label
from labledger.errors import LabLedgerError
from labledger.execution.run_events import Listener, StopRequest, ignore_events
from labledger.experiment.plan import ImageBuild, find_build
from labledger.files.lab_folder import LabFolder
from labledger.text.figures import clock_time

_MAX_DOCKERFILE_BYTES = 1 << 20
"""How much of a Dockerfile is searched for lines that need BuildKit."""

_BUILDKIT_HINT = (
    "install the plugin buildx of the `docker` command (docker-buildx-plugin) and, for Dockerfiles "
    "of version 1.4, an engine of version 23 or later; or build the image elsewhere and load it"
)


@dataclass(frozen=True, slots=True)
class Supply:
    """The permitted ways to get an image."""

    pull: bool
    """Pull what is missing, and build what no registry offers."""
    build: bool = False
    """Build rather than pull, and also replace an image that labledger did not build."""
    on_event: Listener = ignore_events
    stop: StopRequest = field(default_factory=StopRequest)


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
            wanted.append(WantedImage(request, may_pull, buildkit_use(engine, build.source)))
    if wanted:
        for task in _obtain(lab, wanted, supply):
            build = find_build(builds, task.ref)
            assert build is not None
            checks[task.ref] = check_obtained(task, build)
    ids = {ref: engine.image_id(ref) for ref in refs if checks[ref].ok}
    of_images = [replace(checks[ref], concerns=runs_in(ref)) for ref in refs]
    return of_images, {ref: id_ for ref, id_ in ids.items() if id_ is not None}


def _check_unbuilt(engine: Engine, ref: str, *, pull: bool) -> CheckResult:
    """Check an image that the experiment does not say how to build."""
    is_here = engine.image_id(ref) is not None
    detail = f"{ref} is available locally"
    hint = f"build or import it, or check the name {ref!r}; `images` can say how to build it"
    try:
        if not is_here and pull:
            engine.pull(ref)
            is_here, detail = engine.image_id(ref) is not None, f"{ref} was pulled"
        if is_here:
            return CheckResult("image", detail)
        if engine.image_is_obtainable(ref):
            return CheckResult("image", f"{ref} is not available locally; `run` will pull it")
    except RegistryCredentialsFailed as error:
        return failed("image", error.message, hint=error.hint or hint)
    except LabLedgerError as error:
        return failed("image", error.message, hint=hint)
    detail = f"{ref} is not available locally and no registry offers it"
    return failed("image", detail, hint=hint)


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
            return CheckResult("image", f"{detail} (`build=True` does)")
        state = f"was not built from what {build.context} holds now"
    can_be_pulled = state == "is not available locally" and not (supply.build or is_local(ref))
    use = None if can_be_pulled or build.source is None else buildkit_use(engine, build.source)
    if use is not None and use.problem is not None:
        return failed("image", f"{ref} {state}, and {use.problem}", hint=_BUILDKIT_HINT)
    if not (supply.pull or supply.build):
        is_pulled = state == "is not available locally" and not is_local(ref)
        how = "pull or build it" if is_pulled else "build it"
        return CheckResult("image", f"{ref} {state}; `run` will {how}")
    if not is_ready:
        detail = f"{ref} {state}; it is built once the other checks pass"
        return CheckResult("image", detail)
    return None


def buildkit_use(engine: Engine, source: BuildContext) -> BuildKitUse | None:
    """Return how BuildKit builds an image; None if the engine's own builder can."""
    with (source.folder / source.dockerfile).open("rb") as handle:
        text = handle.read(_MAX_DOCKERFILE_BYTES).decode("utf-8", "replace")
    needs = buildkit_needs(text)
    if not needs.needs:
        return None
    client = image_builds.find_client()
    problem = None
    if client is None:
        problem = "no `docker` command here has its client"
    elif needs.is_recent:
        version = str(engine.info()["ServerVersion"])
        if not image_builds.knows_recent_dockerfiles(version):
            problem = (
                f"BuildKit of the engine {version} does not know this, and there is no # syntax="
            )
    if problem is not None:
        problem = f"its {source.dockerfile} needs BuildKit ({needs}): {problem}"
    return BuildKitUse(str(needs), client or "", problem)


def _obtain(lab: LabFolder, wanted: list[WantedImage], supply: Supply) -> list[ImageTask]:
    try:
        return obtain_images(lab, wanted, supply.on_event, supply.stop)
    except OSError as error:
        raise LabLedgerError(
            f"{lab.builds} cannot hold the logs of builds: {error.strerror}",
            hint="choose another folder with `lab_dir=`",
        ) from error


def check_obtained(task: ImageTask, build: ImageBuild) -> CheckResult:
    """Check whether an image was pulled or built.

    The hint is about the Dockerfile only if neither a registry nor the engine is at fault.
    """
    ref, took, wanted = task.ref, clock_time(task.seconds), task.wanted
    if task.error is None:
        how = "pulled" if task.was_pulled else f"built from {build.context}"
        return CheckResult("image", f"{ref} was {how} in {took}; its log is {task.log.path}")
    lines = "".join(f"\n    {line}" for line in task.log.last_lines)
    detail = (
        f"{ref} could not be built from {build.context} ({took}): {task.error}\n"
        f"  the last lines of {task.log.path}:{lines}"
    )
    source = wanted.build.source
    words = ["docker", "build", "-t", ref, "--label", f"{LABEL}={wanted.build.digest}"]
    words += ["-f", str(source.folder / source.dockerfile)]
    words += ["--target", source.target] if source.target else []
    words += [
        w for key, value in (source.args or {}).items() for w in ("--build-arg", f"{key}={value}")
    ]
    command = shlex.join([*words, str(source.folder)])
    if wanted.buildkit is not None and wanted.buildkit.problem is not None:
        hint = _BUILDKIT_HINT
    elif task.hint is not None:
        hint = task.hint
    elif blames_registry(task.error, task.log.last_lines):
        hint = (
            f"`docker login` the registry or correct its certificate, and try it: `{command}`; "
            f"{build.context}/{build.dockerfile} may be right"
        )
    elif "timeout_s" in task.error:
        hint = f"raise images.{ref}.timeout_s, or build it yourself: `{command}`"
    else:
        hint = f"correct {build.context}/{build.dockerfile}; to try it yourself: `{command}`"
    return failed("image", detail, hint=hint)
