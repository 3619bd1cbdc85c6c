"""The context of an attempt: what it gets from the process that runs it, beside its specification.

The executor makes one for each call of `run_attempt`, `remove_attempt` and `cancel_attempt`, which
pass it on. Nothing that an attempt depends on is thread-local or global to the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labledger.docker.engine import Engine
from labledger.trial import attempt_notes
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.full_disks import FullDisks
from labledger.trial.life.start_limiter import StartLimiter


@dataclass(frozen=True, slots=True)
class TrialContext:
    """The collaborators of an attempt, for the thread that works on it."""

    engine: Engine
    """Used by no other thread meanwhile."""
    limiter: StartLimiter
    """Shared by all attempts of the executor."""
    full_disks: FullDisks
    """Shared by everything in this process that works on the run."""
    report_restart: Callable[[AttemptSpec, str], None]
    """Called with each restart reason, as soon as it is durable. Thread-safe."""

    def record_restart(self, spec: AttemptSpec, reason: str) -> None:
        """Record durably why an attempt is started again, and report it."""
        attempt_notes.add_restart_reason(spec.folder, reason)
        self.report_restart(spec, reason)
