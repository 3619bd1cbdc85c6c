"""What a `task.toml` of the schemas 1.0 to 1.4 says, and which image its verifier runs in.

Every key is known or refused, with the file and the key, by the schema `harbor_task_v1`. Deprecated
keys (`version`, `allow_internet`, `memory`, `storage`) are read as Harbor reads them. Whether
labledger can honour what the file asks for is decided by `unsupported`, not here. Names are those
of Harbor's schema, with `_s` for seconds. A field that is None was not set: then Harbor's default
or the task's environment decides. The image is chosen by Harbor's precedence.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import ClassVar

from labledger.benchmarks.harbor.task_files import TaskFiles
from labledger.engine.allowed_hosts import AllowedHosts, BadEntry
from labledger.experiment.authored_fields import FieldPath, user_name
from labledger.records import JsonObject
from labledger.records.json_codec import Section, normalize_number
from labledger.records.json_schemas import read_toml, refuse_problems


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
class HealthCheck(Section):
    """A shell command that must succeed before the agent starts, as Docker's HEALTHCHECK."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3

    _KEYS: ClassVar = {
        f"{name}_s": f"{name}_sec"
        for name in ("interval", "timeout", "start_period", "start_interval")
    }


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


SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")

_SIZE = re.compile(r"\s*([0-9.]+)\s*([KMG])\s*", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


def read_task_toml(path: Path) -> TaskConfig:
    """Return what a file says. Raises `InvalidInput` with every problem."""
    values = read_toml(path, "harbor_task_v1")
    reader = _Reader([])
    config = reader.task(values)
    refuse_problems(path, reader.problems)
    return config


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads tables that fit the schema, and collects what in them cannot be meant."""

    problems: list[tuple[FieldPath, str]]

    def task(self, top: JsonObject) -> TaskConfig:
        schema = top.get("schema_version") or top.get("version") or SCHEMAS[-1]
        if schema not in SCHEMAS:
            message = f"found {schema!r}; expected {', '.join(SCHEMAS)}"
            self.problems.append((("schema_version",), message))
        agent: JsonObject = top.get("agent", {})
        return TaskConfig(
            schema_version=str(schema),
            name=top.get("task", {}).get("name"),
            verifier=self._verifier(top.get("verifier", {})),
            agent=Agent(
                timeout_s=_number(agent, "timeout_sec"),
                user=user_name(agent.get("user")),
                network=self._network(agent, ("agent",)),
            ),
            environment=self._environment(top.get("environment", {}), ("environment",)),
            solution_env=top.get("solution", {}).get("env", {}),
            artifacts=tuple(
                self._artifact({"source": entry} if isinstance(entry, str) else entry, number)
                for number, entry in enumerate(top.get("artifacts", ()))
            ),
            steps=len(top.get("steps", ())),
        )

    def _verifier(self, table: JsonObject) -> Verifier:
        path, mode, environment = ("verifier",), table.get("environment_mode"), None
        if "environment" in table:
            environment = self._environment(table["environment"], (*path, "environment"))
            if mode == VerifierMode.SHARED:
                message = (
                    "found shared, but there is a [verifier.environment], which needs separate"
                )
                self.problems.append(((*path, "environment_mode"), message))
        default = VerifierMode.SHARED if environment is None else VerifierMode.SEPARATE
        return Verifier(
            timeout_s=_seconds(table, "timeout_sec", 600),
            env=table.get("env", {}),
            user=user_name(table.get("user")),
            mode=VerifierMode(mode or default),
            environment=environment,
            collect=tuple(
                Collect(
                    command=item["command"],
                    service=item.get("service") or "main",
                    timeout_s=_seconds(item, "timeout_sec", 60) or 60,
                    user=user_name(item.get("user")),
                )
                for item in table.get("collect", ())
            ),
            network=self._network(table, path),
        )

    def _environment(self, table: JsonObject, path: FieldPath) -> Environment:
        check: JsonObject | None = table.get("healthcheck")
        gpus = table.get("gpus")
        default = (
            NetworkMode.PUBLIC if table.get("allow_internet", True) else NetworkMode.NO_NETWORK
        )
        return Environment(
            build_timeout_s=_seconds(table, "build_timeout_sec", 600) or 600,
            docker_image=table.get("docker_image") or None,
            os=(table.get("os") or "linux").lower(),
            cpus=_number(table, "cpus"),
            memory_mb=self._megabytes(table, "memory", path),
            storage_mb=self._megabytes(table, "storage", path),
            gpus=None if gpus is None else int(gpus),
            gpu_types=tuple(table.get("gpu_types", ())),
            tpu="tpu" in table,
            mcp_servers=tuple(str(server.get("name")) for server in table.get("mcp_servers", ())),
            env=table.get("env", {}),
            skills_dir=table.get("skills_dir"),
            healthcheck=None if check is None else HealthCheck.from_json(check),
            workdir=table.get("workdir"),
            network=self._network(table, path) or NetworkPolicy(default),
        )

    def _megabytes(self, table: JsonObject, name: str, path: FieldPath) -> int | None:
        """Return `memory_mb` or `storage_mb`, or what its deprecated form with a unit says."""
        size, old = table.get(f"{name}_mb"), table.get(name)
        match = _SIZE.fullmatch(old) if old is not None else None
        if match is None:
            return None if size is None else int(size)
        old_size = int(float(match[1]) * _MIB[match[2].upper()])
        if size not in (None, old_size):
            self.problems.append(((*path, name), f"found {old}, but {name}_mb is {size}"))
        return old_size

    def _network(self, table: JsonObject, path: FieldPath) -> NetworkPolicy | None:
        """Return the policy that a table sets, None if it sets none."""
        mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
        path = (*path, "allowed_hosts")
        if hosts is not None and mode != NetworkMode.ALLOWLIST:
            self.problems.append((path, 'is only for network_mode = "allowlist"'))
        if mode is None:
            return None
        allowed = []
        for host in hosts or ():
            normalized = _allowed_host(host)
            if normalized is None:
                expected = (
                    "a host name, *.name, an IP address or a CIDR range, without port and path"
                )
                self.problems.append((path, f"found {host!r}; expected {expected}"))
            else:
                allowed.append(normalized)
        return NetworkPolicy(NetworkMode(mode), tuple(dict.fromkeys(allowed)))

    def _artifact(self, table: JsonObject, number: int) -> Artifact:
        destination = table.get("destination") or None
        if destination is not None:
            path, parts = ("artifacts", number, "destination"), PurePosixPath(destination).parts
            if destination.startswith("/") or "\\" in destination or ".." in parts or not parts:
                expected = "expected a relative path with / and without .."
                self.problems.append((path, f"found {destination!r}; {expected}"))
            elif destination.rstrip("/") == "manifest.json":
                self.problems.append((path, "manifest.json is reserved"))
        exclude = tuple(table.get("exclude", ()))
        return Artifact(table["source"], destination, exclude, table.get("service"))


def _number(table: JsonObject, name: str) -> float | None:
    value = table.get(name)
    return None if value is None else normalize_number(value)


def _seconds(table: JsonObject, name: str, default: float) -> float:
    return normalize_number(table.get(name, default))


def _allowed_host(host: str) -> str | None:
    """Return an entry in its normal form, None if it is not valid."""
    host = host.strip().lower().rstrip(".")
    if "%" in host:
        return None
    try:
        AllowedHosts.parse([host])
    except BadEntry:
        return None
    try:
        return str(ipaddress.ip_network(host) if "/" in host else ipaddress.ip_address(host))
    except ValueError:
        return host
