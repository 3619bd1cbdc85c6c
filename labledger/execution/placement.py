"""Choose the host of an attempt: a pure function of what the hosts were last seen to have.

A host is considered if it has no problem and offers in all what the attempt's containers ask for.
Of those with a free slot, or else of all, one that has the image is taken, because an image may
take long to arrive; of these the one with the largest share of free slots, and of equal ones, one
that has the workspace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from labledger.execution.executor import HostState
from labledger.experiment.trial_settings import TrialSettings
from labledger.text import counted, format_size
from labledger.trial.attempt_spec import AttemptSpec


@dataclass(frozen=True, slots=True)
class Needs:
    """What the containers of a trial ask of a host, of each the most; None for no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    """At least so many: `all` asks for one."""
    limits_storage: bool = False

    @classmethod
    def of_trial(cls, settings: TrialSettings, *, is_sealed: bool) -> Needs:
        """Return what the trials with some settings ask for."""
        containers = settings.of_containers(is_sealed=is_sealed)
        resources = [container.runtime.resources for container in containers]
        gpus = [1 if each.gpus == "all" else int(each.gpus or 0) for each in resources]
        return cls(
            max((each.cpus for each in resources if each.cpus is not None), default=None),
            max((n for each in resources if (n := each.memory_bytes) is not None), default=None),
            max(gpus),
            any(each.storage_bytes is not None for each in resources),
        )

    def are_met_by(self, host: HostState) -> bool:
        """Return whether a host offers so much in all and keeps the limits, as far as is known."""
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


def needs_of(spec: AttemptSpec) -> Needs:
    """Return what an attempt asks of its host."""
    return Needs.of_trial(spec.settings, is_sealed=spec.plan.is_sealed)


def choose_host(
    spec: AttemptSpec,
    hosts: Iterable[HostState],
    taken: Mapping[str, int],
    inputs: Collection[str],
) -> str | None:
    """Return the name of the host for an attempt, None if none of `hosts` can run it.

    `taken` are the attempts of this run that each host has, by its name; `inputs` are the digests
    of what the attempt reads. Only hosts with room for another attempt may be given.
    """
    needs = needs_of(spec)
    candidates = (host for host in hosts if host.problem is None and needs.are_met_by(host))
    image = spec.image_id

    def preference(host: HostState) -> tuple[bool, bool, float, int, str]:
        # Trials of other runs take slots too, and are not among `taken`.
        used = max(taken.get(host.name, 0), host.busy)
        has_room = used < host.slots
        lacks_inputs = sum(digest not in host.inputs for digest in inputs) if inputs else 0
        share = used / host.slots if host.slots else 1.0
        return (not has_room, image not in host.images, share, lacks_inputs, host.name)

    best = min(candidates, key=preference, default=None)
    return None if best is None else best.name


def _is_enough(offered: float | None, asked: float | None) -> bool:
    return asked is None or offered is None or asked <= offered
