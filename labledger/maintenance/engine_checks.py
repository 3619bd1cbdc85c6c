"""Checks of what an engine can give the containers of an experiment: OCI runtime and limits.

An engine that accepts a limit may ignore it, so limits are read back in a container.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from labledger.docker.engine_facts import EngineFacts
from labledger.errors import EngineUnavailable, Exit, LabLedgerError
from labledger.experiment.plan_sections import Resources
from labledger.experiment.settings.grading import GradingMode
from labledger.experiment.settings.trial_settings import TrialSettings
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_probes import ImageProbes
from labledger.records import JsonObject
from labledger.trial.life import container_config

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

_GROUPS_HINT = (
    "use an engine whose containers have control groups with the controllers memory, pids and cpu: "
    "one that runs as root, or a rootless one where systemd delegates control groups of version 2 "
    "to its user"
)


def check_oci_runtime(info: JsonObject, name: str | None) -> list[CheckResult]:
    """Check that the engine can run containers with the OCI runtime of an experiment, if any."""
    if name is None:
        return []
    facts = EngineFacts.of(info)
    if name in facts.oci_runtimes:
        return [CheckResult("oci runtime", f"the engine runs containers with {name}")]
    if facts.product == "Podman":
        return [
            CheckResult(
                "oci runtime",
                f"runtime.oci: Podman's Docker-compatible API cannot choose an OCI runtime: it "
                f"would run containers with {facts.default_runtime}, not with {name!r}",
                ok=False,
                hint=f"set `runtime` in containers.conf and restart Podman's service, or set "
                f"`oci: {facts.default_runtime}`, or leave it out",
                exit_code=Exit.INVALID,
            )
        ]
    known = ", ".join(facts.oci_runtimes)
    return [
        CheckResult(
            "oci runtime",
            f"runtime.oci: the engine knows no OCI runtime {name!r}; it has {known}",
            ok=False,
            hint=f"install {name}, name its path under `runtimes` in the engine's daemon.json and "
            "reload the engine (SIGHUP to dockerd), or choose one that it has",
            exit_code=Exit.INVALID,
        )
    ]


def check_controllers(info: JsonObject) -> Iterator[CheckResult]:
    """Yield a failed check if the engine says that it cannot enforce some limit."""
    facts = EngineFacts.of(info)
    if facts.unenforced:
        yield _refusal(_without_controllers(facts))


def check_networks(info: JsonObject, settings: Iterable[TrialSettings]) -> Iterator[CheckResult]:
    """Yield a failed check if trials change networks before their grader, which Podman cannot."""
    if EngineFacts.of(info).product != "Podman":
        return
    if any(map(_changes_network, settings)):
        yield CheckResult(
            "networks",
            "benchmark.grader.network: Podman cannot take a container out of its network, so the "
            "grader cannot have another one than the agent",
            ok=False,
            hint="use a Docker engine, the grading mode `separate`, or one network for both",
            exit_code=Exit.INVALID,
            concerns=_changes_network,
        )


def _changes_network(trial: TrialSettings) -> bool:
    return (
        trial.agent_network != trial.grader_network
        and trial.grading.mode is not GradingMode.SEPARATE
    )


def describe_shortcomings(facts: EngineFacts) -> Iterator[CheckResult]:
    """Yield what does not work on an engine, as warnings where preflight refuses every run."""
    if facts.unenforced:
        yield CheckResult(
            "docker",
            f"{_without_controllers(facts)}: preflight refuses runs here",
            ok=False,
            hint=_GROUPS_HINT,
            warning=True,
        )
    if facts.product == "Podman":
        yield CheckResult(
            "docker",
            f"{facts} runs every container with {facts.default_runtime}: `runtime.oci` cannot name "
            "another OCI runtime; no network `allowlist`, and no network of the grader's own",
        )


def _without_controllers(facts: EngineFacts) -> str:
    return f"{facts} with cgroup v{facts.cgroup_version} cannot limit {_listed(facts.unenforced)}"


def check_limits(probes: ImageProbes, image: str, resources: Resources) -> CheckResult:
    """Check that limits are in force in a container, which is started from an image for that."""
    facts = EngineFacts.of(probes.engine_info)
    runtime = probes.oci_runtime or facts.default_runtime
    is_readable = any(name in runtime for name in _READABLE_RUNTIMES)
    # Microseconds in 100 ms; systemd rounds up to whole percents.
    quota = resources.cpus and math.ceil(resources.cpus * 100) * 1000
    asked = {"memory": resources.memory_bytes, "pids": resources.pids, "cpus": quota}
    looks = [_LOOKS[name].format(value) for name, value in asked.items() if value]
    script = _DEFINE_LOOK + "".join(looks) if is_readable else ":"
    host_config = container_config.confinement(resources)
    try:
        status, output = probes.run_probe(image, script, host_config=host_config)
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        return _refusal(
            f"the engine refused a container with limits: {error.message}",
            f"raise limits that are too low or ask for less, or {_GROUPS_HINT}",
        )
    words = output.split()
    if status or not asked.keys() >= set(words):
        return _refusal(f"the limits of a container could not be read in it: {output.strip()}")
    if unlimited := [name for name in asked if name in words]:
        return _refusal(
            f"{facts} started a container with limits, and in it those of {_listed(unlimited)} "
            "were not in force"
        )
    return CheckResult("limits", "the engine's containers keep runtime.resources")


def _refusal(found: str, hint: str = _GROUPS_HINT) -> CheckResult:
    return CheckResult(
        "limits",
        f"runtime.resources: {found}",
        ok=False,
        hint=hint,
        exit_code=Exit.INVALID,
    )


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
