"""A workspace that is a folder of the image: fill it before the start, and find it after the end.

A new container gets the files of its task, or those of the stored trial that a regrading restores.
A stopped one is read for evidence; a container of the image that never runs shows the originals. A
container is filled before it is started, so an interruption is repeated with a new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from labledger.engine.container_files import ContainerFiles
from labledger.engine.engine_errors import ContainerFailed
from labledger.experiment.consistency_checks import is_root
from labledger.experiment.settings.grading import GradingMode
from labledger.files import artifact_tars
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import Labels
from labledger.trial.evidence.container_changes.collection import StoppedContainer
from labledger.trial.image_facts import ImageFacts
from labledger.trial.life.container_start import find_container
from labledger.trial.life.start_limiter import TrialContext


def with_image_facts(spec: AttemptSpec, context: TrialContext) -> AttemptSpec:
    """Return the attempt with the facts of its image.

    Raises `ContainerFailed` if the image is gone and settings depend on it, and
    `EngineUnavailable`.
    """
    runtime = spec.settings.runtime
    config = context.engine.image_config(spec.image_id)
    if config is None:
        # The attempt's container may exist although its image is gone.
        if "image" not in {runtime.workspace, runtime.user, runtime.healthcheck}:
            return spec
        raise ContainerFailed(f"the image {spec.image_ref} ({spec.image_id}) is gone")
    facts = {spec.image_id: ImageFacts.of_config(config)}
    return replace(spec, plan=replace(spec.plan, image_facts=facts))


def fill(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Put the files of the trial into its new container, which has the id `container`.

    A separate grader that is not root can change all artifacts.

    Raises `ContainerFailed`, `EngineUnavailable`.
    """
    if (tar := spec.kind.container_files(spec)) is not None:
        is_separate = spec.grading_mode is GradingMode.SEPARATE and not spec.runs_agent
        if is_separate and not is_root(_grader_user(spec, context)):
            tar = artifact_tars.open_modes(tar)
        ContainerFiles(context.engine, container).put(tar)


def _grader_user(spec: AttemptSpec, context: TrialContext) -> str:
    own = spec.settings.grading.user
    if spec.settings.runtime.user is not None:
        return spec.user_of_phase(own) or "root"
    return own or context.engine.image_user(spec.image_id) or "root"


def stopped_container(spec: AttemptSpec, context: TrialContext) -> StoppedContainer | None:
    """Return the container whose changes are evidence, None if there is none.

    Raises `EngineUnavailable`.
    """
    if spec.has_mounted_workspace or not spec.runs_agent:
        return None
    state = find_container(context.engine, spec)
    if state is None:
        return None

    @contextmanager
    def helper() -> Iterator[ContainerFiles]:
        name = f"{spec.container_name}-image-{secrets.token_hex(4)}"
        labels = spec.labels() | {Labels.HELPER: "image"}
        config = {
            "Image": spec.image_id,
            "Entrypoint": ["true"],
            "Labels": labels,
            "NetworkDisabled": True,
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        }
        try:
            yield ContainerFiles(context.engine, context.engine.create(name, config))
        finally:
            context.engine.remove(name)

    return StoppedContainer(ContainerFiles(context.engine, state.container_id), helper)
