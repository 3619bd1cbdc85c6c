"""Create, start, kill and remove a trial's container, with retries of engine errors.

`EngineServerError` is retried with an exponential backoff with jitter. After an error of a start,
the state is inspected before the retry, so that no error starts a container twice; the intended
second start of a two-part trial is in `two_part_trials`. Used by `worker`, `adoption` and
`two_part_trials`; preflight uses `retry_engine_errors`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from labledger import clock
from labledger.docker.engine import ContainerState, Engine
from labledger.docker.engine_errors import ContainerFailed, EngineServerError
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.container_config import container_config
from labledger.trial.life.context import TrialContext

_MAX_RECORDING_DELAY_S = 1.0
"""Seconds from the start of a container to the start time that the engine records, at most."""

BACKOFF_S = (0.2, 0.4, 0.8, 1.6)
"""Seconds to wait before each retry."""

T = TypeVar("T")


def create_container(spec: AttemptSpec, context: TrialContext) -> tuple[str, float]:
    """Create a trial's container. Return its id and the monotonic time before its creation.

    Raises `ContainerNameTaken` if another container has its name.
    """
    created = time.monotonic()
    config = container_config(spec)

    def create() -> str:
        with context.limiter.engine_calls:
            return context.engine.create(spec.container_name, config)

    return retry_engine_errors(create), created


def start_container(context: TrialContext, container: str, created: float) -> None:
    """Start a trial's container once. Do not retry if it has started in spite of an error.

    `container` is its id, `created` the monotonic time of its creation.
    """
    engine, limiter = context.engine, context.limiter

    def start() -> None:
        with limiter.engine_calls:
            engine.start(container)

    def start_unless_started() -> None:
        state = engine.inspect(container)
        if state is None or not state.has_started:
            start()

    retry_engine_errors(start, start_unless_started)
    limiter.last_start_created = max(limiter.last_start_created, created)


def monotonic_start(state: ContainerState) -> float:
    """Return when a container was last started, as a monotonic time.

    Rather too early than too late, because the engine records a start only after it has happened.
    Wrong if the clock was set meanwhile.
    """
    age = clock.parse(clock.utc_now()) - clock.parse(state.started_at)
    return time.monotonic() - age.total_seconds() - _MAX_RECORDING_DELAY_S


def kill_overdue(engine: Engine, container: str) -> None:
    """Kill a container that runs after its deadline. Do not raise if the engine refuses."""
    try:
        engine.kill(container)
    except ContainerFailed:
        return  # The result records the missed deadline; removing the container raises the error.


def remove_container(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Remove a container of a trial.

    Full disks are recorded first, because removing it frees disk space.
    """
    context.full_disks.check(spec.plan.disks)
    context.engine.remove(container)


def retry_engine_errors(action: Callable[[], T], retry: Callable[[], T] | None = None) -> T:
    """Call `action`; after each `EngineServerError` wait and call `retry`, by default `action`.

    The error of the last call is raised.
    """
    for delay_s in BACKOFF_S:
        try:
            return action()
        except EngineServerError:
            time.sleep(delay_s * random.uniform(0.75, 1.25))  # noqa: S311
            action = retry or action
    return action()
