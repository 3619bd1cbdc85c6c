"""Collect the result of a trial whose container has ended."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from labledger import fault_points
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import (
    ContainerFailed,
)
from labledger.files.artifact_store import ArtifactStore
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import Reason
from labledger.trial import contract
from labledger.trial.collect import collect_result, infra_error_result, redactor_for
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.contract import ExitStatus
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.gateway_calls import AttemptCalls
from labledger.trial.evidence_spec import EvidenceSpec
from labledger.trial.free_disk_space import output_unreadable_error
from labledger.trial.life import (
    container_start,
    model_access,
    separate_grader,
    trial_networks,
)
from labledger.trial.life.adoption import folder_exists
from labledger.trial.life.container_config import permission_container_config
from labledger.trial.life.helper_containers import ModelsHelper
from labledger.trial.life.trial_context import TrialContext


def collect_ended_trial(
    spec: EvidenceSpec, context: TrialContext, ended: ContainerExit
) -> AttemptResult:
    """Return the result of a trial whose container has ended.

    Raises `OutputUnreadable` or `DiskFull` for failures of this host, so that they are not recorded
    as failures of the trial.
    """
    fault_points.fault_point("after_exit", spec.schedule_idx)
    if not folder_exists(spec.container):
        message = "the trial folder, with all outputs, was deleted while the trial ran"
        return infra_error_result(spec, ended.started_at, Reason.FOLDER_DELETED, message)
    try:
        if os.geteuid() != 0 and _has_unreadable_files(spec.container.folder):
            # `trial.sh` was killed before it could make its files readable, or did not own all of
            # them.
            fix_permissions(context.engine, spec.container)
        ended = spec.container.kind.exit_of_all_phases(
            replace(ended, was_paused=_was_paused(context, ended))
        )
        if context.programs is not None:
            ended = replace(ended, touched=context.programs.find_touched(spec.container))
        isolation = spec.container.kind.isolation_facts(context.engine, spec.container, ended)
        container = container_start.stopped_container(spec.container, context)
        egress = trial_networks.reports(spec.container, context.engine)
        models = _model_use(spec.container, context)
        with context.limiter.collecting:
            return collect_result(spec, ended, isolation, container, egress, models)
    except (OSError, ContainerFailed) as error:
        # A later check could find free space, because the incomplete artifact was deleted.
        context.full_disks.record_write_error(spec.container.plan.store_root, error)
        raise output_unreadable_error(spec.container, error) from error


def _was_paused(context: TrialContext, ended: ContainerExit) -> bool:
    """Return whether a container was paused from outside.

    If no thread saw it paused, the engine's event log is read, for failed trials only.
    """
    containers = [
        container_id
        for container_id in (ended.container_id, ended.other_container_id)
        if container_id is not None
    ]
    if any(map(context.limiter.was_seen_paused, containers)):
        return True
    return ended.exit_status != ExitStatus.GRADED and any(
        map(context.engine.was_paused, containers)
    )


def _model_use(spec: ContainerSpec, context: TrialContext) -> AttemptCalls | None:
    """End the agent's access to models, and return its calls; None if it has no models."""
    if not spec.uses_models:
        return None
    helper = ModelsHelper.of(spec)
    is_lost = helper.is_lost(context.engine)
    closed = model_access.close(spec, context.gateway)
    return AttemptCalls.read(
        spec.folder,
        redactor_for(spec),
        problem=closed.problem,
        lost=closed.lost,
        helper_lost=is_lost,
        helper=helper.report(context.engine),
        record=ArtifactStore(spec.plan.store_root).path(spec.replays) if spec.replays else None,
    )


def _has_unreadable_files(folder: Path) -> bool:
    """Return whether this process's user cannot read some file or folder below `folder`."""
    pending: list[str | Path] = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as children:
                for child in children:
                    if child.is_symlink():
                        continue
                    is_folder = child.is_dir(follow_symlinks=False)
                    if is_folder:
                        pending.append(child.path)
                    if not os.access(child.path, os.R_OK | (os.X_OK if is_folder else 0)):
                        return True
        except OSError:
            return True
    return False


def fix_permissions(engine: Engine, spec: ContainerSpec) -> None:
    """Run a helper container that gives the host's user all permissions on a trial's outputs.

    A second helper does the same for the outputs of a separate grader.
    """
    if spec.has_grader_container and spec.grader_folder.is_dir():
        fix_permissions(engine, separate_grader.grader_spec(spec))
    name = f"{spec.name}-sweep-{secrets.token_hex(4)}"
    container = engine.create(name, permission_container_config(spec))
    try:
        engine.start(container)
        engine.wait(container, contract.OUTER_MARGIN_S)
    finally:
        engine.remove(container)
