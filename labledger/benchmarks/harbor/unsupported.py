"""Find the features of a Harbor task that labledger cannot run, with what would be needed.

Such a task is refused by name before a run exists. Broken tasks, such as without a test script, are
found here, too, so that one list has all reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

from labledger.benchmarks.harbor.task_files import HarborTaskFiles
from labledger.benchmarks.harbor.task_toml import (
    MAX_TIMEOUT_S,
    Environment,
    TaskConfig,
    VerifierImage,
    VerifierMode,
    is_usable,
)
from labledger.experiment.consistency_checks import MIN_MEMORY_BYTES
from labledger.text.words import counted

COMPOSE_FILE = "docker-compose.yaml"
_MIN_MEMORY_MB = MIN_MEMORY_BYTES >> 20


def unsupported(
    config: TaskConfig, files: HarborTaskFiles, verifier_image: VerifierImage
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
    if workdir not in (None, "/") and not is_usable(workdir):
        yield f"[{section}].workdir: found {workdir!r}; needs an absolute path"
    if environment.memory_mb and environment.memory_mb < _MIN_MEMORY_MB:
        yield (
            f"[{section}].memory_mb: a Docker engine needs at least {_MIN_MEMORY_MB} MB, and about "
            "16 MB with control groups of version 2"
        )
    check = environment.healthcheck
    if check is not None and healthcheck_limit_s(environment) > MAX_TIMEOUT_S:
        yield f"[{section}.healthcheck]: may last longer than {MAX_TIMEOUT_S} seconds"


def healthcheck_limit_s(environment: Environment) -> float:
    """Return the longest duration of a health check in seconds, with a margin; 0 without one."""
    check = environment.healthcheck
    if check is None:
        return 0
    tries = check.retries * (check.timeout_s + check.interval_s)
    return check.start_period_s + check.start_interval_s + check.timeout_s + tries + 60


def _agent(config: TaskConfig, files: HarborTaskFiles) -> Iterator[str]:
    if not files.has("instruction.md") and not config.steps:
        yield "instruction.md: is missing"
    timeout_s = config.agent.timeout_s
    if timeout_s is not None and timeout_s <= 0:
        yield f"[agent].timeout_sec: found {timeout_s:g}; needs more than 0"


def _verifier(
    config: TaskConfig, files: HarborTaskFiles, verifier_image: VerifierImage
) -> Iterator[str]:
    verifier = config.verifier
    if verifier.timeout_s <= 0:
        yield f"[verifier].timeout_sec: found {verifier.timeout_s:g}; needs more than 0"
    if verifier.environment is not None:
        yield from _environment("verifier.environment", verifier.environment)
    is_linux = (verifier.environment or config.environment).os == "linux"
    has_tests = verifier_image.has_tests or config.steps or files.has("tests/test.sh")
    if is_linux and not has_tests:
        yield "tests/test.sh: is missing"
    for collect in verifier.collect:
        if collect.service != "main":
            yield f"[[verifier.collect]]: service {collect.service}; needs compose"
        if verifier.mode is VerifierMode.SHARED and collect.user != verifier.user:
            users = [user or "the image's user" for user in (collect.user, verifier.user)]
            yield f"[[verifier.collect]]: runs as {users[0]}, the tests as {users[1]}"


def _artifacts(config: TaskConfig) -> Iterator[str]:
    for artifact in config.artifacts:
        if artifact.service not in (None, "main"):
            yield f"artifacts: {artifact.source} of service {artifact.service}; needs compose"
        if not is_usable(artifact.source):
            yield f"artifacts: {artifact.source}: needs an absolute path of something in /"
