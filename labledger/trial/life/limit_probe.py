"""Try in a container which limits of a trial are in force: an engine may accept and ignore one.

The container is started with the limits of trials, and a script in it reads those that its control
group has. Nothing is tried with an OCI runtime whose containers do not see their control group.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.experiment.plan_sections import Resources
from labledger.records import JsonObject
from labledger.trial.life import container_config

RunProbe = Callable[[str, JsonObject], tuple[int, str]]
"""Runs a shell script in a container with a `HostConfig`. Returns exit status and output."""

_READABLE_RUNTIMES = ("runc", "crun")
"""OCI runtimes whose containers see their own control group; others have kernels of their own."""

_DEFINE_LOOK = """\
groups=/sys/fs/cgroup own=$groups
[ ! -e $groups/cgroup.controllers ] || while IFS=: read -r number _ path; do
    [ "$number" != 0 ] || own=$groups${path%/}
done </proc/self/cgroup
look() {
    value=''
    if [ -e $groups/cgroup.controllers ]; then
        value=max
        [ ! -r "$own/$4" ] || read -r value _ <"$own/$4"
    elif [ -d "$groups/${3%/*}" ]; then
        value=max
        [ ! -r "$groups/$3" ] || read -r value _ <"$groups/$3"
    fi
    case $value in '') return ;; max | -1) ;; *) [ "$value" -gt "$2" ] || return 0 ;; esac
    echo "$1"
}
"""
"""Defines `look NAME ASKED V1_FILE V2_FILE`, which prints the name of a limit that is absent or
higher than asked. systemd gives a container without a limit of processes one of its own."""
_LOOKS = {
    "memory": "look memory {} memory/memory.limit_in_bytes memory.max\n",
    "pids": "look pids {} pids/pids.max pids.max\n",
    "cpus": "look cpus {} cpu/cpu.cfs_quota_us cpu.max\n",
}

GROUPS_HINT = (
    "use an engine whose containers have control groups with the controllers memory, pids and cpu: "
    "one that runs as root, or a rootless one where systemd delegates control groups of version 2 "
    "to its user"
)

RAISE_LIMITS = f"raise limits that are too low or ask for less, or {GROUPS_HINT}"


class LimitsRefused(LabLedgerError):
    """The engine started no container with limits, or they could not be read in it."""


def limits_of(resources: Resources) -> dict[str, int]:
    """Return the limits that a container is to have, as its control group shows them, by name."""
    # Microseconds in 100 ms; systemd rounds up to whole percents.
    quota = resources.cpus and math.ceil(resources.cpus * 100) * 1000
    asked = {"memory": resources.memory_bytes, "pids": resources.pids, "cpus": quota}
    return {name: value for name, value in asked.items() if value}


def find_ignored_limits(run_probe: RunProbe, runtime: str, resources: Resources) -> tuple[str, ...]:
    """Return the names of the limits that are absent in a container, or higher than asked.

    `runtime` is the OCI runtime that runs the container. `LimitsRefused` if the limits
    could not be tried, and `EngineUnavailable`.
    """
    limits = limits_of(resources)
    looks = "".join(_LOOKS[name].format(value) for name, value in limits.items())
    is_readable = any(name in runtime for name in _READABLE_RUNTIMES)
    script = _DEFINE_LOOK + looks if is_readable else ":"
    try:
        status, output = run_probe(script, container_config.confinement(resources))
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        raise LimitsRefused(
            f"the engine refused a container with limits: {error.message}",
            hint=RAISE_LIMITS,
        ) from error
    words = output.split()
    if status or not limits.keys() >= set(words):
        raise LimitsRefused(
            f"the limits of a container could not be read in it: {output.strip()}",
            hint=GROUPS_HINT,
        )
    return tuple(name for name in limits if name in words)
