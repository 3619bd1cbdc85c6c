"""What a Harbor task may ask for that labledger cannot honour, each with what would be needed.

A task with any of this is refused by name before a run exists. What is merely broken in a task,
such as a missing test script, is found here too, so that one list shows all that keeps a task from
running.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from labledger.benchmarks.harbor.task_files import TaskFiles
from labledger.benchmarks.harbor.task_toml import (
    Artifact,
    Environment,
    TaskConfig,
    VerifierImage,
    VerifierMode,
)
from labledger.experiment.authored_fields import unusable
from labledger.text import counted

COMPOSE_FILE = "docker-compose.yaml"
MAX_TIMEOUT_S = 2_592_000
"""The longest time limit of an experiment, in seconds."""

_MIN_MEMORY_MB = 6


def unsupported(
    config: TaskConfig, files: TaskFiles, verifier_image: VerifierImage
) -> Iterator[str]:
    """Yield every reason why a task cannot be run."""
    if config.steps:
        yield (
            f"[[steps]]: has {counted(config.steps, 'step')}; needs several agents' and graders' "
            "phases in one trial"
        )
    yield from _environment("environment", config.environment)
    yield from _agent(config, files)
    yield from _verifier(config, files, verifier_image)
    yield from _artifacts(config)
    separate = config.verifier.mode is VerifierMode.SEPARATE
    for name in ("environment", "tests") if separate else ("environment",):
        if files.has(f"{name}/{COMPOSE_FILE}"):
            yield f"{name}/{COMPOSE_FILE}: needs several containers in one trial (compose)"
    if config.environment.docker_image is None and not (
        files.has("environment/Dockerfile") or files.has(f"environment/{COMPOSE_FILE}")
    ):
        yield "[environment]: has no docker_image, and there is no environment/Dockerfile"
    if files.has("trajectory.json"):
        yield "trajectory.json: needs agents that continue a recorded conversation"


def _environment(section: str, environment: Environment) -> Iterator[str]:
    if environment.os != "linux":
        yield f"[{section}].os: is {environment.os}; needs {environment.os} containers"
    if environment.tpu:
        yield f"[{section}].tpu: needs TPUs, which a Docker engine does not have"
    if environment.gpus and environment.gpu_types:
        types = ", ".join(environment.gpu_types)
        yield f"[{section}].gpu_types: asks for {types}; needs a choice of GPUs by their type"
    if environment.mcp_servers:
        names = ", ".join(environment.mcp_servers)
        yield f"[{section}].mcp_servers: {names}; needs MCP servers beside the agent"
    if environment.skills_dir is not None:
        yield f"[{section}].skills_dir: needs agents whose skills labledger can install"
    workdir = environment.workdir
    if workdir is not None and not _is_usable(workdir):
        yield f"[{section}].workdir: found {workdir!r}; needs an absolute path of a folder in /"
    if environment.memory_mb and environment.memory_mb < _MIN_MEMORY_MB:
        yield (
            f"[{section}].memory_mb: a Docker engine needs at least {_MIN_MEMORY_MB} MB, and about "
            "16 MB with control groups of version 2"
        )
    check = environment.healthcheck
    if check is not None and healthcheck_limit_s(environment) > MAX_TIMEOUT_S:
        yield f"[{section}.healthcheck]: may last longer than {MAX_TIMEOUT_S} seconds"


def healthcheck_limit_s(environment: Environment) -> float:
    """Return the seconds that a health check can last at most, with a margin; 0 without one."""
    check = environment.healthcheck
    if check is None:
        return 0
    tries = check.retries * (check.timeout_s + check.interval_s)
    return check.start_period_s + check.start_interval_s + check.timeout_s + tries + 60


def _agent(config: TaskConfig, files: TaskFiles) -> Iterator[str]:
    if not files.has("instruction.md") and not config.steps:
        yield "instruction.md: is missing"
    timeout_s = config.agent.timeout_s
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        yield f"[agent].timeout_sec: found {timeout_s:g}; needs 0 to {MAX_TIMEOUT_S}"


def _verifier(config: TaskConfig, files: TaskFiles, verifier_image: VerifierImage) -> Iterator[str]:
    verifier = config.verifier
    if not 0 < verifier.timeout_s <= MAX_TIMEOUT_S:
        yield f"[verifier].timeout_sec: found {verifier.timeout_s:g}; needs 0 to {MAX_TIMEOUT_S}"
    if verifier.environment is not None:
        yield from _environment("verifier.environment", verifier.environment)
        if verifier.environment.healthcheck is not None:
            yield "[verifier.environment.healthcheck]: needs a set-up before the verifier"
    if not (verifier_image.has_tests or config.steps or files.has("tests/test.sh")):
        yield "tests/test.sh: is missing"
    for collect in verifier.collect:
        if collect.service != "main":
            yield f"[[verifier.collect]]: service {collect.service}; needs compose"
    if verifier.collect and verifier.mode is VerifierMode.SHARED:
        yield "[[verifier.collect]]: needs a separate verifier; a shared one can run it in test.sh"


def _artifacts(config: TaskConfig) -> Iterator[str]:
    published = Artifact("/logs/artifacts")
    declared = {artifact.source.rstrip("/") for artifact in config.artifacts}
    kept = [] if published.source in declared else [published]
    for artifact in config.artifacts:
        if artifact.service not in (None, "main"):
            yield f"artifacts: {artifact.source} of service {artifact.service}; needs compose"
        if not _is_usable(artifact.source):
            yield f"artifacts: {artifact.source}: needs an absolute path of something in /"
        if any(_covers(earlier, artifact) for earlier in kept):
            continue
        clash = next((a for a in kept if _overlap(a, artifact)), None)
        if clash is not None:
            yield (
                f"artifacts: {clash.source} and {artifact.source} have overlapping places on the "
                "host, and Harbor would leave out the second"
            )
        kept.append(artifact)


def _is_usable(path: str) -> bool:
    """Return whether a path can be the folder or an artifact of a trial."""
    return path.startswith("/") and unusable(str(PurePosixPath(path))) is None


def _overlap(first: Artifact, second: Artifact) -> bool:
    """Return whether Harbor stores two artifacts in places that overlap."""
    a, b = (_stored_at(artifact) for artifact in (first, second))
    return a.is_relative_to(b) or b.is_relative_to(a)


def _covers(first: Artifact, second: Artifact) -> bool:
    """Return whether an earlier artifact holds a later one, in the same place."""
    outer, inner = PurePosixPath(first.source), PurePosixPath(second.source)
    if not inner.is_relative_to(outer):
        return False
    if outer == inner and _stored_at(first) == _stored_at(second):
        return first.exclude == second.exclude
    moved = _stored_at(first) / inner.relative_to(outer)
    return not first.exclude and _stored_at(second) == moved


def _stored_at(artifact: Artifact) -> PurePosixPath:
    return PurePosixPath((artifact.destination or artifact.source).lstrip("/") or ".")
