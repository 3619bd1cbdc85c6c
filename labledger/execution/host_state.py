"""The resources that a host offers and that an attempt needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from labledger.experiment.trial_settings import TrialSettings
from labledger.text.figures import format_size
from labledger.text.words import counted
from labledger.trial.container_spec import ContainerSpec

MAX_HOST_SLOTS = 10_000
"""The most slots of a host. A larger number counts as a mistake."""


_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}/[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class HostState:
    """A host of an executor, as last seen."""

    name: str
    """The host's name in the dispatch journal: this machine's node name, or `NAME/IDPREFIX`."""
    host_id: str
    """A durable id of the host; empty for this machine."""
    slots: int
    """How many trials it runs at once."""
    busy: int
    """How many of the slots are taken, by trials of any run."""
    images: frozenset[str] = frozenset()
    """The ids (`sha256:…`) of the host's images."""
    inputs: frozenset[str] = frozenset()
    """The digests of the workspaces and files on the host."""
    free_bytes: int | None = None
    """Free bytes on the disk for its trials, or None if unknown."""
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    """The resources that its engine offers to containers, or None if unknown. They are not divided
    among trials: each trial may use what it asks for."""
    ignores_storage: bool = False
    """Whether its engine accepts `runtime.resources.storage` and ignores it."""
    labledger_version: str = ""
    last_seen: str = ""
    """When it last answered, by this machine's clock (ISO 8601, UTC); empty if never."""
    problem: str | None = None
    """Why no trial is placed on it, as a sentence, or None."""

    def find_fault(self) -> str | None:
        """Return which of its facts cannot be true, or None if all can."""
        if not _HOST_NAME.fullmatch(self.name) or not self.host_id.startswith(self.name[-8:]):
            return f"that its name is {self.name[:80]!r} and its id {self.host_id[:80]!r}"
        if not 0 < self.slots <= MAX_HOST_SLOTS or self.busy < 0:
            return f"that {self.busy} of {self.slots} slots are busy"
        return None


MAX_PREPARED = 4
"""How many more containers may be prepared while others run."""


def capacity_of(width: int) -> int:
    """Return how many attempts a machine accepts that runs `width` at once."""
    return width + min(width, MAX_PREPARED)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on how many attempts of a run are placed, and where."""

    max_concurrency: int | None = None
    """How many trials run at once; None for as many as the hosts accept."""
    at_most_per_host: int | None = None
    """How many attempts a host of a cluster has at once; None for as many as it accepts."""
    is_closed: Callable[[str], bool] = lambda _: False
    """Called with a host's name. Returns whether nothing may be placed there."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The largest needs of a trial's containers, for each resource. None means no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    """The smallest number of GPUs; `all` asks for one."""
    limits_storage: bool = False

    @classmethod
    def of_trial(cls, settings: TrialSettings) -> Needs:
        """Return the needs of trials with these settings."""
        resources = [container.runtime.resources for container in settings.of_containers()]
        gpus = [1 if resource.gpus == "all" else int(resource.gpus or 0) for resource in resources]
        return cls(
            max(
                (resource.cpus for resource in resources if resource.cpus is not None), default=None
            ),
            max(
                (n for resource in resources if (n := resource.memory_bytes) is not None),
                default=None,
            ),
            max(gpus),
            any(resource.storage_bytes is not None for resource in resources),
        )

    def are_met_by(self, host: HostState) -> bool:
        """Return whether a host offers enough and enforces the limits, as far as known."""
        return (
            not (self.limits_storage and host.ignores_storage)
            and _is_enough(host.cpus, self.cpus)
            and _is_enough(host.memory_bytes, self.memory_bytes)
            and _is_enough(host.gpus, self.gpus)
        )

    def __str__(self) -> str:
        cpus = f"{self.cpus:g} CPUs" if self.cpus is not None else "no limit of CPUs"
        memory = "no limit" if self.memory_bytes is None else format_size(self.memory_bytes)
        gpus = f", {counted(self.gpus, 'GPU')}" if self.gpus else ""
        storage = ", a limit of storage" if self.limits_storage else ""
        return f"{cpus}, {memory} of memory{gpus}{storage}"


def needs_of(spec: ContainerSpec) -> Needs:
    """Return the needs of an attempt."""
    return Needs.of_trial(spec.settings)


def _is_enough(offered: float | None, needed: float | None) -> bool:
    return needed is None or offered is None or needed <= offered
