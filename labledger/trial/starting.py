"""Creating, starting and ending containers on an engine that may stumble over any of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from labledger.trial import disks
from labledger.trial.container import ContainerFailed, Engine, EngineServerError
from labledger.trial.contract import TrialSpec
from labledger.trial.gate import StartLimiter
from labledger.trial.isolation import container_config

BACKOFF_S = (0.2, 0.4, 0.8, 1.6)
"""How long is waited before each further try."""

T = TypeVar("T")


def create_container(engine: Engine, gate: StartLimiter, spec: TrialSpec) -> tuple[str, float]:
    """Create a trial's container: its id, and when. Raises `ContainerNameTaken` where its name is taken."""
    created = time.monotonic()
    config = container_config(spec)

    def create() -> str:
        with gate.engine_call():
            return engine.create(spec.container, config)

    return retry_engine_errors(create), created


def start_container(engine: Engine, gate: StartLimiter, container: str, created: float) -> None:
    """Start a trial's container, once: one that has started in spite of an error is left alone."""

    def start() -> None:
        with gate.engine_call():
            engine.start(container)

    def start_unless_started() -> None:
        state = engine.inspect(container)
        if state is None or not state.has_started:
            start()

    retry_engine_errors(start, start_unless_started)
    gate.last_good = max(gate.last_good, created)


def kill_overdue(engine: Engine, container: str) -> None:
    """End a container that outlived its deadline. One that cannot be ended is left behind."""
    try:
        engine.kill(container)
    except ContainerFailed:
        return  # Its result says that it outlived its deadline; its removal will tell the rest.


def remove_container(engine: Engine, spec: TrialSpec, container: str) -> None:
    """Remove a container of a trial, which makes room where the engine keeps it."""
    disks.check_disks(spec.plan.disks)
    engine.remove(container)


def retry_engine_errors(action: Callable[[], T], then: Callable[[], T] | None = None) -> T:
    """Do `action`; while the engine stumbles over it, pause and do `then` (or the same again)."""
    for pause_s in BACKOFF_S:
        try:
            return action()
        except EngineServerError:
            time.sleep(pause_s * random.uniform(0.75, 1.25))  # noqa: S311
            action = then or action
    return action()
