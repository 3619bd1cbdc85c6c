"""Runs one attempt at a slot in its container and hands back a validated result."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

from labledger import clock, faults
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.records import TrialResult
from labledger.trial import contract, inputs, parts, trust
from labledger.trial.collect import collect, infra_error
from labledger.trial.container import (
    ContainerFailed,
    ContainerState,
    Engine,
    NameTaken,
    NoSuchContainer,
    thread_engine,
)
from labledger.trial.contract import ExitStatus, Sealing, TrialSpec
from labledger.trial.ended import Ended
from labledger.trial.gate import Abandoned, NotStarted, thread_gate
from labledger.trial.isolation import container_config, sweep_config


class Uncollected(LabLedgerError):
    """A trial ended and could not be read on this host; its container and folder are kept."""


def run_trial(spec: TrialSpec) -> TrialResult:
    """Run one attempt, or adopt its container where one exists, and collect what it produced.

    Leaves the container and the trial folder in place: the coordinator discards them when the
    result is durable. Raises `NotStarted` or `Abandoned` where the run is stopping, and
    `EngineUnavailable` or `Uncollected` where nothing can be said of the trial yet; other trouble
    is the result's status.
    """
    begun = clock.utc_now()
    try:
        engine = thread_engine()
        ended = _adopt(engine, spec) or _run_once(engine, spec)
        return _collected(engine, spec, ended)
    except (NotStarted, Abandoned, EngineUnavailable):
        raise
    except ContainerFailed as error:
        return infra_error(spec, begun, "container_failed", error.message)
    except OSError as error:
        return infra_error(spec, begun, "host_error", f"{error.strerror}: {error.filename}")


def _collected(engine: Engine, spec: TrialSpec, ended: Ended) -> TrialResult:
    """The result of an ended trial. What this host cannot do is no fault of a trial that ran."""
    faults.reached("after_exit", spec.slot.schedule_idx)
    try:
        if os.geteuid() != 0 and _is_closed(spec.folder):
            # `trial.sh` was ended before it could open its files, or it did not own them all.
            _open_by_container(engine, spec)
        return collect(spec, ended, trust.facts(engine, spec, ended))
    except (OSError, ContainerFailed) as error:
        raise _uncollected(spec, error) from error


def _uncollected(spec: TrialSpec, error: OSError | ContainerFailed) -> Uncollected:
    trouble = (
        f"{error.strerror} ({error.filename or spec.folder})"
        if isinstance(error, OSError)
        else error.message
    )
    return Uncollected(
        f"slot {spec.slot.schedule_idx} has ended and could not be collected: {trouble}",
        hint="mend that and resume: its container is kept, and it is not run again",
    )


def _is_closed(folder: Path) -> bool:
    """True where something in a folder is closed to the user of this process."""
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


def discard_trial(spec: TrialSpec) -> None:
    """Remove the container and the folder of an attempt whose result is durable."""
    faults.reached("before_remove", spec.slot.schedule_idx)
    thread_engine().remove(spec.container)
    faults.reached("after_remove", spec.slot.schedule_idx)
    remove_folder(spec)


def remove_folder(spec: TrialSpec) -> None:
    """Delete the trial folder, with a container's help where its files are not ours to delete."""
    _delete(spec.folder)
    if spec.folder.exists():
        _open_by_container(thread_engine(), spec)
        _delete(spec.folder)
        if spec.folder.exists():
            raise OSError(errno.ENOTEMPTY, "could not be deleted", str(spec.folder))


def _delete(folder: Path) -> None:
    """Delete what can be deleted of a folder."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        # A folder in a folder in a folder: `rm` keeps no stack of calls.
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def _adopt(engine: Engine, spec: TrialSpec) -> Ended | None:
    """Wait for a container that an earlier coordinator started; None where there is none."""
    state = engine.inspect(spec.container) if spec.may_exist else None
    if state is None:
        return None
    if not state.has_started or not (spec.folder / "out").is_dir():
        # It never ran, or what it produced was deleted: the slot is run again.
        engine.remove(spec.container)
        return None
    if not state.has_ended:
        with thread_gate().place():
            thread_gate().wait(engine, spec)
            state = engine.inspect(spec.container) or state
            if state.has_ended:
                return _gone_on(engine, spec, state)
        engine.kill(spec.container)
        state = engine.inspect(spec.container) or state
        return Ended.of(state, None, ExitStatus.KNOWN)
    if parts.is_outstanding(spec, state):
        with thread_gate().passage(spec.slot.schedule_idx):
            return _gone_on(engine, spec, state)
    return _gone_on(engine, spec, state)


def _gone_on(engine: Engine, spec: TrialSpec, state: ContainerState) -> Ended:
    """How a trial ended whose container has stopped; graded, where that was outstanding."""
    try:
        return parts.go_on(engine, spec, state)
    except NoSuchContainer:
        raise
    except (OSError, ContainerFailed) as error:
        raise _uncollected(spec, error) from error


def _run_once(engine: Engine, spec: TrialSpec) -> Ended:
    """Run a new container, in the place of one of its name that never ran, if there is one.

    An engine may still have been creating it when the coordinator that asked for it died.
    """
    try:
        return _run_new(engine, spec)
    except NameTaken:
        state = engine.inspect(spec.container)
        if state is not None and state.has_started:
            raise
        engine.remove(spec.container)
        return _run_new(engine, spec)


def _run_new(engine: Engine, spec: TrialSpec) -> Ended:
    gate = thread_gate()
    remove_folder(spec)
    inputs.prepare(spec)
    faults.reached("before_create", spec.slot.schedule_idx)
    engine.create(spec.container, container_config(spec))
    faults.reached("after_create", spec.slot.schedule_idx)
    has_ended = False
    try:
        with gate.passage(spec.slot.schedule_idx):
            started_at, started = clock.utc_now(), time.monotonic()
            engine.start(spec.container)
            faults.reached("agent_running", spec.slot.schedule_idx)
            exit_status = gate.wait(engine, spec)
            has_ended = exit_status is not None
            if has_ended and spec.plan.sealing is Sealing.AFTER_AGENT:
                return _gone_on(engine, spec, engine.inspect_one(spec.container))
            duration_ms = round((time.monotonic() - started) * 1000)
    except (NotStarted, ContainerFailed):
        if not has_ended:
            engine.remove(spec.container)
            remove_folder(spec)
        raise
    if exit_status is None:
        engine.kill(spec.container)
    return Ended(
        exit_status,
        started_at,
        clock.utc_now(),
        duration_ms,
        _ran_out(engine, spec, exit_status),
        forged=exit_status == ExitStatus.AGENT_ENDED,
    )


def _ran_out(engine: Engine, spec: TrialSpec, exit_status: int | None) -> bool:
    """True when the memory limit killed something; asked only where something went wrong."""
    if exit_status == ExitStatus.GRADED:
        return False
    state = engine.inspect(spec.container)
    return state is not None and state.out_of_memory


def _open_by_container(engine: Engine, spec: TrialSpec) -> None:
    """Have a container give the host's user every right on what a trial left."""
    name = f"{spec.container}-sweep"
    engine.remove(name)
    engine.create(name, sweep_config(spec))
    try:
        engine.start(name)
        engine.wait(name, contract.OUTER_MARGIN_S)
    finally:
        engine.remove(name)
