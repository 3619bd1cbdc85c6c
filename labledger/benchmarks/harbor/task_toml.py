"""Read a `task.toml`, and choose the image of its verifier.

The file is read as Harbor reads it. Unknown keys are reported, and deprecated keys keep their
meaning. A value that Harbor refuses is a problem, but the rest is still read. `unsupported` decides
whether labledger can run the task. Fields have Harbor's names, with `_s` for seconds.
"""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from labledger.benchmarks.harbor.accepted_tables import accept_tables
from labledger.benchmarks.harbor.declared_artifacts import HarborArtifact, split_artifacts
from labledger.benchmarks.harbor.task_files import HarborTaskFiles
from labledger.engine.allowed_hosts import AllowedHosts, BadEntry
from labledger.errors import Problem
from labledger.experiment.authored_fields import FieldPath, unusable, user_name
from labledger.records import JsonObject
from labledger.records.json_codec import Section, normalize_number
from labledger.records.json_schemas import located_problems, read_toml_document
from labledger.text.words import quoted


class NetworkMode(StrEnum):
    """The network access of a phase."""

    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


class VerifierMode(StrEnum):
    """The container of the verifier: the agent's, or a separate one."""

    SHARED = "shared"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A network mode, with the reachable hosts for `allowlist`."""

    mode: NetworkMode = NetworkMode.PUBLIC
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthCheck(Section):
    """A shell command that must succeed before the agent starts, like Docker's HEALTHCHECK."""

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
class HarborAgent:
    """The settings of the agent's phase, in the table `[agent]`."""

    timeout_s: float | None = None
    user: str | None = None
    network: NetworkPolicy | None = None
    """The network policy; None means the environment's."""


@dataclass(frozen=True, slots=True)
class Collect:
    """A command after the agent and before artifacts are taken (`[[verifier.collect]]`)."""

    command: str
    service: str = "main"
    timeout_s: float = 60
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Verifier:
    """The settings of the tests' phase, in the table `[verifier]`."""

    timeout_s: float = 600
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    mode: VerifierMode = VerifierMode.SHARED
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()
    network: NetworkPolicy | None = None
    """The network policy; None means the policy of the environment in which it runs."""


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The content of a `task.toml`."""

    schema_version: str = "1.4"
    name: str | None = None
    """`org/name`, if the file has a section `[task]`."""
    verifier: Verifier = Verifier()
    agent: HarborAgent = HarborAgent()
    environment: Environment = Environment()
    solution_env: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[HarborArtifact, ...] = ()
    steps: int = 0
    """The number of `[[steps]]`."""


@dataclass(frozen=True, slots=True)
class TaskToml:
    """The result of reading a `task.toml`."""

    config: TaskConfig
    """Its content, without values that are problems."""
    problems: tuple[Problem, ...] = ()
    """The problems that Harbor refuses, too."""
    ignored: tuple[Problem, ...] = ()
    """The keys and values that Harbor and labledger ignore."""


@dataclass(frozen=True, slots=True)
class VerifierImage:
    """The image in which a verifier runs."""

    docker_image: str | None
    """The name of a published image; None to use the agent's image or to build one."""
    built_from: str | None
    """The task's folder with the build context; None if it is not built."""
    has_tests: bool
    """Whether the image contains the tests."""


def verifier_image(config: TaskConfig, files: HarborTaskFiles) -> VerifierImage:
    """Return the image of a task's verifier, by Harbor's precedence."""
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

MAX_TIMEOUT_S = 2_592_000
"""The longest time limit of an experiment, in seconds. Longer limits have no effect."""

_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


def read_task_toml(path: Path) -> TaskToml:
    """Return the content of a file. Raises `InvalidInput` if it is not TOML."""
    tables = accept_tables(read_toml_document(path), "harbor_task_v1")
    reader = _Reader(list(tables.problems), list(tables.ignored))
    config = reader.task(tables.values)
    return TaskToml(
        config, located_problems(path, reader.problems), located_problems(path, reader.ignored)
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads tables that match the schema, and collects contradictions and ignored values."""

    problems: list[tuple[FieldPath, str]]
    ignored: list[tuple[FieldPath, str]]

    def task(self, top: JsonObject) -> TaskConfig:
        agent: JsonObject = top.get("agent", {})
        verifier = self._verifier(top.get("verifier", {}))
        return TaskConfig(
            schema_version=self._schema_version(top),
            name=top.get("task", {}).get("name"),
            verifier=verifier,
            agent=HarborAgent(
                timeout_s=_seconds(agent, "timeout_sec") if "timeout_sec" in agent else None,
                user=_user(agent),
                network=self._network(agent, ("agent",)),
            ),
            environment=self._environment(top.get("environment", {}), ("environment",)),
            solution_env=top.get("solution", {}).get("env", {}),
            artifacts=self._artifacts(top.get("artifacts", ()), verifier),
            steps=len(top.get("steps", ())),
        )

    def _schema_version(self, top: JsonObject) -> str:
        key = "schema_version" if "schema_version" in top else "version"
        version = top.get(key, SCHEMAS[-1])
        if not isinstance(version, str):
            self.problems.append(((key,), f"found {version!r}; expected text"))
        elif version not in SCHEMAS:
            known = f"labledger knows {SCHEMAS[0]} to {SCHEMAS[-1]}, and reads what it knows"
            self.ignored.append(((key,), f"is {version!r}; {known}"))
        return str(version)

    def _verifier(self, table: JsonObject) -> Verifier:
        path, mode, environment = ("verifier",), table.get("environment_mode"), None
        if "environment" in table:
            environment = self._verifier_environment(table["environment"], (*path, "environment"))
            if mode == VerifierMode.SHARED:
                message = (
                    "found shared, but there is a [verifier.environment], which needs separate"
                )
                self.problems.append(((*path, "environment_mode"), message))
        default = VerifierMode.SHARED if environment is None else VerifierMode.SEPARATE
        return Verifier(
            timeout_s=_seconds(table, "timeout_sec", 600),
            env=table.get("env", {}),
            user=_user(table),
            mode=VerifierMode(mode or default),
            environment=environment,
            collect=tuple(
                Collect(
                    command=item["command"],
                    service=item.get("service", "main").strip(),
                    timeout_s=_seconds(item, "timeout_sec", 60) or 60,
                    user=_user(item),
                )
                for item in table.get("collect", ())
            ),
            network=self._network(table, path),
        )

    def _verifier_environment(self, table: JsonObject, path: FieldPath) -> Environment:
        """Return the environment of a verifier, without settings that only affect agents."""
        self.ignored.extend(
            ((*path, name), "has no effect in a verifier's container")
            for name in ("healthcheck", "mcp_servers", "skills_dir")
            if table.get(name)
        )
        environment = self._environment(table, path)
        return replace(environment, healthcheck=None, mcp_servers=(), skills_dir=None)

    def _environment(self, table: JsonObject, path: FieldPath) -> Environment:
        check: JsonObject | None = table.get("healthcheck")
        gpus = table.get("gpus")
        # As in Harbor, both newer keys override the old one.
        is_closed = table.get("allow_internet") is False and "allowed_hosts" not in table
        default = NetworkMode.NO_NETWORK if is_closed else NetworkMode.PUBLIC
        return Environment(
            build_timeout_s=_seconds(table, "build_timeout_sec", 600) or 600,
            docker_image=table.get("docker_image") or None,
            os=table.get("os", "linux").lower(),
            # As in Compose, 0 means no limit.
            cpus=_number(table, "cpus") or None,
            memory_mb=self._megabytes(table, "memory", path),
            storage_mb=self._megabytes(table, "storage", path),
            gpus=None if gpus is None else int(gpus),
            gpu_types=tuple(table.get("gpu_types", ())),
            tpu="tpu" in table,
            mcp_servers=tuple(str(server.get("name")) for server in table.get("mcp_servers", ())),
            env=table.get("env", {}),
            skills_dir=table.get("skills_dir") or None,
            healthcheck=None if check is None else _healthcheck(check),
            workdir=_workdir(table.get("workdir")),
            network=self._network(table, path) or NetworkPolicy(default),
        )

    def _megabytes(self, table: JsonObject, name: str, path: FieldPath) -> int | None:
        """Return `memory_mb` or `storage_mb`, or the value of its deprecated form with a unit."""
        size, old = table.get(f"{name}_mb"), table.get(name)
        if not isinstance(old, str):
            if old is not None:
                self.ignored.append(((*path, name), "is not text, and Harbor ignores it"))
            return size or None
        try:
            text = old.strip().upper()
            old_size = int(float(text[:-1]) * _MIB[text[-1:]])
        except (KeyError, ValueError, OverflowError):
            message = f"found {quoted(old)}; expected a size such as 512M or 2G"
            self.problems.append(((*path, name), message))
            return size
        if size not in (None, old_size):
            self.problems.append(((*path, name), f"found {old}, but {name}_mb is {size}"))
        return old_size or None

    def _network(self, table: JsonObject, path: FieldPath) -> NetworkPolicy | None:
        """Return the network policy of a table; None without one."""
        mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
        path = (*path, "allowed_hosts")
        is_phase = path[-2] != "environment"
        refused = hosts is not None if is_phase and mode is None else bool(hosts)
        if refused and mode != NetworkMode.ALLOWLIST:
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

    def _artifacts(self, entries: Sequence[Any], verifier: Verifier) -> tuple[HarborArtifact, ...]:
        """Return the artifacts that Harbor takes.

        The verdicts of shared verifiers do not depend on artifacts, so an unusable one is ignored
        there.
        """
        declared = [
            self._artifact({"source": entry} if isinstance(entry, str) else entry, number)
            for number, entry in enumerate(entries)
        ]
        taken, left_out = split_artifacts(declared)
        for first, second in left_out:
            message = (
                f"{first.source} and {second.source} overlap on Harbor's host, which leaves out "
                "the second"
            )
            self.ignored.append((("artifacts",), message))
        if verifier.mode is VerifierMode.SEPARATE:
            return taken
        usable = tuple(artifact for artifact in taken if is_usable(artifact.source))
        self.ignored.extend(
            (("artifacts",), f"{artifact.source} is no absolute path of something in /")
            for artifact in taken
            if artifact not in usable
        )
        return usable

    def _artifact(self, table: JsonObject, number: int) -> HarborArtifact:
        destination = table.get("destination") or None
        if destination is not None:
            path, parts = ("artifacts", number, "destination"), PurePosixPath(destination).parts
            if destination.startswith("/") or "\\" in destination or ".." in parts or not parts:
                expected = "expected a relative path with / and without .."
                self.problems.append((path, f"found {destination!r}; {expected}"))
            elif destination.rstrip("/") == "manifest.json":
                self.problems.append((path, "manifest.json is reserved"))
        exclude = tuple(table.get("exclude", ()))
        return HarborArtifact(table["source"], destination, exclude, table.get("service"))


def is_usable(path: str) -> bool:
    """Return whether a path can be the working folder or an artifact of a trial."""
    return path.startswith("/") and unusable(str(PurePosixPath(path))) is None


def _workdir(path: str | None) -> str | None:
    """Return a working folder in the engine's form; None without one."""
    if path and path.startswith("/"):
        return f"/{posixpath.normpath(path).lstrip('/')}"
    return path or None


def _healthcheck(table: JsonObject) -> HealthCheck:
    return HealthCheck.from_json(table | {"retries": max(1, table.get("retries", 3))})


def _user(table: JsonObject) -> str | None:
    """Return the user of a phase; None, also for an empty name, means the image's user."""
    return user_name(table.get("user")) or None


def _number(table: JsonObject, name: str) -> float | None:
    value = table.get(name)
    return None if value is None else normalize_number(value)


def _seconds(table: JsonObject, name: str, default: float = 0) -> float:
    return normalize_number(min(table.get(name, default), MAX_TIMEOUT_S))


def _allowed_host(host: str) -> str | None:
    """Return an allowed host in its normal form; None if it is not valid."""
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
