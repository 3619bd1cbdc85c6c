"""What a `task.toml` says, as frozen types, and which image a verifier runs in.

Names are those of Harbor's schema, with `_s` for seconds. A field that is None was not set: then
Harbor's default or the task's environment decides. The image is chosen by Harbor's precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from labledger.benchmarks.harbor.task_files import TaskFiles


class NetworkMode(StrEnum):
    """What a phase may reach."""

    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


class VerifierMode(StrEnum):
    """Where the verifier runs: in the agent's container or in one of its own."""

    SHARED = "shared"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A network mode and, for `allowlist`, the hosts that can be reached."""

    mode: NetworkMode = NetworkMode.PUBLIC
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A shell command that must succeed before the agent starts, as Docker's HEALTHCHECK."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Environment:
    """A container: `[environment]`, or `[verifier.environment]` of a separate verifier."""

    build_timeout_s: float = 600
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] = ()
    tpu: bool = False
    mcp_servers: tuple[str, ...] = ()
    """The names of the servers."""
    env: Mapping[str, str] = field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthCheck | None = None
    workdir: str | None = None
    network: NetworkPolicy = NetworkPolicy()


@dataclass(frozen=True, slots=True)
class Agent:
    """`[agent]`."""

    timeout_s: float | None = None
    user: str | None = None
    network: NetworkPolicy | None = None
    """None: that of the environment."""


@dataclass(frozen=True, slots=True)
class Collect:
    """`[[verifier.collect]]`: a command after the agent, before artifacts are taken."""

    command: str
    service: str = "main"
    timeout_s: float = 60
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Verifier:
    """`[verifier]`."""

    timeout_s: float = 600
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    mode: VerifierMode = VerifierMode.SHARED
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()
    network: NetworkPolicy | None = None
    """None: that of the environment in which it runs."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A path that is taken from the agent's container."""

    source: str
    destination: str | None = None
    """Where Harbor stores it on the host; a separate verifier gets it at `source`."""
    exclude: tuple[str, ...] = ()
    service: str | None = None


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """A whole `task.toml`."""

    schema_version: str = "1.4"
    name: str | None = None
    """`org/name`, if the file has a section `[task]`."""
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution_env: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    steps: int = 0
    """How many `[[steps]]` there are."""


@dataclass(frozen=True, slots=True)
class VerifierImage:
    """The image of a verifier."""

    docker_image: str | None
    """The name of a published image; None if the agent's image is used, or one is built."""
    built_from: str | None
    """The folder of the task that it is built from; None if it is not built."""
    has_tests: bool
    """Whether the image holds the tests itself."""


def verifier_image(config: TaskConfig, files: TaskFiles) -> VerifierImage:
    """Return the image of a task's verifier."""
    verifier = config.verifier
    if verifier.mode is VerifierMode.SHARED:
        return VerifierImage(None, None, has_tests=False)
    if verifier.environment is not None and verifier.environment.docker_image is not None:
        built_from = "tests" if files.has("tests/Dockerfile") else None
        return VerifierImage(verifier.environment.docker_image, built_from, has_tests=True)
    if files.has("tests/Dockerfile") or files.has("tests/docker-compose.yaml"):
        return VerifierImage(None, "tests", has_tests=True)
    return VerifierImage(None, None, has_tests=False)
