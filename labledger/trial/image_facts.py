"""What a trial needs to know of its image: its WORKDIR, its USER and its HEALTHCHECK.

Read from the engine just before an attempt runs (`container_start.with_image_facts`). A trial waits
for a health check as the first part of its setup, in its container: nobody else is needed for it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Self

from labledger import resources
from labledger.experiment import name_references
from labledger.experiment.plan_sections import PhasePlan
from labledger.records import JsonObject

_POLL_S = 1.0
"""How often a health check is tried before the engine would have counted a failure."""
_MARGIN_S = 60


@dataclass(frozen=True, slots=True)
class HealthWait:
    """Waits until an image's HEALTHCHECK succeeds, or fails as often as the engine would let it."""

    command: str
    """For a shell."""
    interval_s: float
    timeout_s: float
    grace_s: float
    """Failures that begin in this time do not count: the engine counts none before it."""
    retries: int

    @classmethod
    def of_config(cls, config: JsonObject) -> Self | None:
        """Return what an image's configuration says; None without a health check."""
        check = config.get("Healthcheck") or {}
        words = list(map(str, check.get("Test") or ()))
        if words[:1] == ["CMD-SHELL"]:
            words = [*(config.get("Shell") or ("/bin/sh", "-c")), *words[1:]]
        elif words[:1] == ["CMD"]:
            words = words[1:]
        else:
            return None
        interval_s = _seconds(check.get("Interval"), 30)
        folder = shlex.quote(str(config.get("WorkingDir") or "/"))
        return cls(
            f"cd {folder} && {shlex.join(words)}",
            interval_s,
            _seconds(check.get("Timeout"), 30),
            max(interval_s, _seconds(check.get("StartPeriod"), 0)),
            int(check.get("Retries") or 3),
        )

    def before(self, setup: PhasePlan | None) -> PhasePlan:
        """Return the setup phase that waits first and then runs `setup`, if there is one."""
        own = setup or PhasePlan((), {}, 0)
        numbers = (self.interval_s, self.timeout_s, self.grace_s * 100, _POLL_S, self.retries)
        script = resources.health_check_script().read_text("utf-8")
        words = ("sh", "-c", script, "healthcheck.sh", self.command, *(f"{n:g}" for n in numbers))
        tries_s = self.retries * (self.interval_s + self.timeout_s)
        limit_s = self.grace_s + self.timeout_s + tries_s + _MARGIN_S
        command = (*map(name_references.escape, words), *own.command)
        return PhasePlan(command, own.env, own.timeout_s + limit_s)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image's configuration says."""

    folder: str = "/"
    """Its WORKDIR."""
    user: str = ""
    """Its USER; empty for root."""
    health: HealthWait | None = None

    @classmethod
    def of_config(cls, config: JsonObject) -> Self:
        return cls(
            str(config.get("WorkingDir") or "/"),
            str(config.get("User") or ""),
            HealthWait.of_config(config),
        )


def _seconds(nanoseconds: int | None, default: float) -> float:
    return nanoseconds / 1e9 if nanoseconds else default
