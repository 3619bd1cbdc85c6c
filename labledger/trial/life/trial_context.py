"""The collaborators of an attempt, for the thread that works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labledger.engine.engine import Engine
from labledger.gateway.client import GatewayClient
from labledger.trial import attempt_notes
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.free_disk_space import FullDisks
from labledger.trial.life.program_watch import ProgramWatch
from labledger.trial.life.start_limiter import StartLimiter


@dataclass(frozen=True, slots=True)
class TrialContext:
    """The collaborators of an attempt, for the thread that works on it."""

    engine: Engine
    """No other thread may use it meanwhile."""
    limiter: StartLimiter
    """Shared by all attempts of the executor."""
    full_disks: FullDisks
    """Shared by everything in this process that works on the run."""
    report_restart: Callable[[ContainerSpec, str], None]
    """Called with each restart reason, as soon as it is durable. Thread-safe."""
    gateway: GatewayClient | None = None
    """The gateway of this host; None if no agent has models."""
    programs: ProgramWatch | None = None
    """Watches the files that trials of the run share; None for no watch."""

    def record_restart(self, spec: ContainerSpec, reason: str) -> None:
        """Record durably why an attempt is started again, and report it."""
        attempt_notes.add_restart_reason(spec.folder, reason)
        self.report_restart(spec, reason)
