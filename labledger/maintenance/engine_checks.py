"""Checks of what an engine can give the containers of an experiment: OCI runtime and limits.

An engine that accepts a limit may ignore it, so limits are read back in a container.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from labledger.docker.engine_facts import EngineFacts
from labledger.errors import Exit
from labledger.experiment.plan_sections import Resources
from labledger.experiment.settings.grading import GradingMode
from labledger.experiment.settings.trial_settings import TrialSettings
from labledger.maintenance.check_results import CheckResult
from labledger.maintenance.image_checks.image_probes import ImageProbes
from labledger.records import JsonObject
from labledger.trial.life.limit_probe import GROUPS_HINT, LimitsRefused, find_ignored_limits


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
    if facts.shortcoming is not None:
        yield refuse_limits(facts.shortcoming)


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
    if facts.shortcoming is not None:
        yield CheckResult(
            "docker",
            f"{facts.shortcoming}: preflight refuses runs here",
            ok=False,
            hint=GROUPS_HINT,
            warning=True,
        )
    if facts.product == "Podman":
        yield CheckResult(
            "docker",
            f"{facts} runs every container with {facts.default_runtime}: `runtime.oci` cannot name "
            "another OCI runtime; no network `allowlist`, and no network of the grader's own",
        )


def check_limits(probes: ImageProbes, image: str, resources: Resources) -> CheckResult:
    """Check that limits are in force in a container, which is started from an image for that."""
    facts = EngineFacts.of(probes.engine_info)
    runtime = probes.oci_runtime or facts.default_runtime

    def run_probe(script: str, host_config: JsonObject) -> tuple[int, str]:
        return probes.run_probe(image, script, host_config=host_config)

    try:
        ignored = find_ignored_limits(run_probe, runtime, resources)
    except LimitsRefused as error:
        return refuse_limits(error.message, error.hint)
    if ignored:
        return refuse_limits(facts.say_ignored(ignored))
    return CheckResult("limits", "the engine's containers keep runtime.resources")


def refuse_limits(found: str, hint: str | None = None) -> CheckResult:
    """Return a failed check: what was found of the limits of an engine or of a host's."""
    return CheckResult(
        "limits",
        f"runtime.resources: {found}",
        ok=False,
        hint=GROUPS_HINT if hint is None else hint,
        exit_code=Exit.INVALID,
    )
