"""Choose the host of an attempt: a pure function of what the hosts were last seen to have.

A host is considered if it has no problem and can give what the task asks for. Of these, the one
with the largest share of free slots is taken; of equal ones, one that has the image, then one that
has the workspace, so that little has to be sent. Used by executors with several hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from labledger.executors.executor import HostState
from labledger.trial.attempt_spec import AttemptSpec


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
    candidates = [host for host in hosts if host.problem is None and _can_run(spec, host)]

    def preference(host: HostState) -> tuple[bool, float, bool, int, str]:
        # Trials of other runs take slots too, and are not among `taken`.
        used = max(taken.get(host.name, 0), host.busy)
        has_room = used < host.slots
        lacks_inputs = sum(digest not in host.inputs for digest in inputs)
        share = used / host.slots if host.slots else 1.0
        return (not has_room, share, spec.image_id not in host.images, lacks_inputs, host.name)

    best = min(candidates, key=preference, default=None)
    return None if best is None else best.name


def _can_run(spec: AttemptSpec, host: HostState) -> bool:
    """Return whether a host has at least what the containers of an attempt are given."""
    resources = spec.settings.runtime.resources
    cpus, memory = resources.cpus, resources.memory_bytes
    if cpus is not None and host.cpus is not None and cpus > host.cpus:
        return False
    return memory is None or host.memory_bytes is None or memory <= host.memory_bytes
