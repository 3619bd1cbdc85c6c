"""Read a `task.toml` of the schemas 1.0 to 1.4.

Every key is known or refused, with the file and the key. Deprecated keys (`version`,
`allow_internet`, `memory`, `storage`) are read as Harbor reads them. Whether labledger can honour
what the file asks for is decided by `unsupported`, not here.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from labledger.benchmarks.harbor.task_config import (
    Agent,
    Artifact,
    Collect,
    Environment,
    HealthCheck,
    NetworkMode,
    NetworkPolicy,
    TaskConfig,
    Verifier,
    VerifierMode,
)
from labledger.benchmarks.harbor.toml_tables import TomlTable
from labledger.errors import InvalidInput, Problem

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")

_ORG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG])\s*", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


def read_task_toml(path: Path) -> TaskConfig:
    """Return what a file says. Raises `InvalidInput` with every problem."""
    subject = f"cannot read {path}"
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(subject, [Problem(str(path), error.strerror or str(error))]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(subject, [Problem(str(path), f"is not TOML: {error}")]) from error
    problems: list[Problem] = []
    config = _task(TomlTable(path, values, problems))
    if problems:
        raise InvalidInput(subject, problems)
    return config


def _task(top: TomlTable) -> TaskConfig:
    old_version = top.value("version")
    schema = top.value("schema_version") or old_version or SCHEMAS[-1]
    if schema not in SCHEMAS:
        top.add_problem("schema_version", f"found {schema!r}; expected {', '.join(SCHEMAS)}")
    name = _package(top.table("task")) if top.has("task") else None
    metadata = top.value("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        top.add_problem("metadata", "expected a table")
    top.text("source")
    top.choice("multi_step_reward_strategy", ("mean", "final"))
    environment = _environment(top.table("environment"))
    solution = top.table("solution")
    solution_env = solution.env("env")
    solution.end()
    steps = top.value("steps") or []
    if not isinstance(steps, list):
        top.add_problem("steps", "expected an array of tables")
        steps = []
    config = TaskConfig(
        schema_version=str(schema),
        name=name,
        verifier=_verifier(top.table("verifier")),
        agent=_agent(top.table("agent")),
        environment=environment,
        solution_env=solution_env,
        artifacts=_artifacts(top),
        steps=len(steps),
    )
    top.end()
    return config


def _package(table: TomlTable) -> str | None:
    name = table.text("name", required=True)
    if name is not None and (not _ORG_NAME.fullmatch(name) or ".." in name):
        table.add_problem("name", f"found {name!r}; expected org/name")
    table.text("version")
    table.text("description")
    for author in table.tables("authors"):
        author.text("name", required=True)
        author.text("email")
        author.end()
    table.texts("keywords")
    table.end()
    return name


def _agent(table: TomlTable) -> Agent:
    agent = Agent(
        timeout_s=table.number("timeout_sec"),
        user=table.user("user"),
        network=_network(table),
    )
    table.end()
    return agent


def _verifier(table: TomlTable) -> Verifier:
    mode = table.choice("environment_mode", tuple(VerifierMode))
    environment = _environment(table.table("environment")) if table.has("environment") else None
    if mode == VerifierMode.SHARED and environment is not None:
        message = "found shared, but there is a [verifier.environment], which needs separate"
        table.add_problem("environment_mode", message)
    if mode is None:
        mode = VerifierMode.SHARED if environment is None else VerifierMode.SEPARATE
    timeout_s = table.number("timeout_sec", 600)
    collect = tuple(_collect(item) for item in table.tables("collect"))
    verifier = Verifier(
        timeout_s=600 if timeout_s is None else timeout_s,
        env=table.env("env"),
        user=table.user("user"),
        mode=VerifierMode(mode),
        environment=environment,
        collect=collect,
        network=_network(table),
    )
    table.end()
    return verifier


def _collect(table: TomlTable) -> Collect:
    collect = Collect(
        command=table.text("command", required=True) or "",
        service=table.text("service") or "main",
        timeout_s=table.number("timeout_sec", 60) or 60,
        user=table.user("user"),
    )
    table.end()
    return collect


def _environment(table: TomlTable) -> Environment:
    internet = table.flag("allow_internet")
    os_name = (table.text("os") or "linux").lower()
    if os_name not in ("linux", "windows"):
        table.add_problem("os", f"found {os_name!r}; expected linux or windows")
    network = _network(table)
    if network is None:
        network = NetworkPolicy(NetworkMode.NO_NETWORK if internet is False else NetworkMode.PUBLIC)
    servers = table.tables("mcp_servers")
    environment = Environment(
        build_timeout_s=table.number("build_timeout_sec", 600) or 600,
        docker_image=table.text("docker_image") or None,
        os=os_name,
        cpus=table.number("cpus"),
        memory_mb=_megabytes(table, "memory"),
        storage_mb=_megabytes(table, "storage"),
        gpus=table.whole("gpus"),
        gpu_types=table.texts("gpu_types") or (),
        tpu=table.value("tpu") is not None,
        # A task with servers is refused as a whole, so nothing but their names is read.
        mcp_servers=tuple(str(server.value("name")) for server in servers),
        env=table.env("env"),
        skills_dir=table.text("skills_dir"),
        healthcheck=_healthcheck(table),
        workdir=table.text("workdir"),
        network=network,
    )
    table.end()
    return environment


def _megabytes(table: TomlTable, name: str) -> int | None:
    """Return `memory_mb` or `storage_mb`, or what its deprecated form with a unit says."""
    size = table.whole(f"{name}_mb", least=1)
    old = table.value(name)
    if old is None:
        return size
    match = _SIZE.fullmatch(old) if isinstance(old, str) else None
    if match is None:
        table.add_problem(name, f"found {old!r}; expected a size such as 512M or 2G")
        return size
    old_size = int(float(match[1]) * _MIB[match[2].upper()])
    if size not in (None, old_size):
        table.add_problem(name, f"found {old}, but {name}_mb is {size}")
    return old_size


def _healthcheck(table: TomlTable) -> HealthCheck | None:
    if not table.has("healthcheck"):
        return None
    check = table.table("healthcheck")
    defaults = HealthCheck("")

    def seconds(name: str, default: float) -> float:
        value = check.number(name, default)
        return default if value is None else value

    healthcheck = HealthCheck(
        command=check.text("command", required=True) or "",
        interval_s=seconds("interval_sec", defaults.interval_s),
        timeout_s=seconds("timeout_sec", defaults.timeout_s),
        start_period_s=seconds("start_period_sec", defaults.start_period_s),
        start_interval_s=seconds("start_interval_sec", defaults.start_interval_s),
        retries=check.whole("retries", defaults.retries, least=1) or defaults.retries,
    )
    check.end()
    return healthcheck


def _network(table: TomlTable) -> NetworkPolicy | None:
    """Return the policy that a table sets, None if it sets none."""
    mode = table.choice("network_mode", tuple(NetworkMode))
    hosts = table.texts("allowed_hosts")
    if hosts is not None and mode != NetworkMode.ALLOWLIST:
        message = 'is only for network_mode = "allowlist"'
        table.add_problem("allowed_hosts", message)
    if mode is None:
        return None
    allowed = []
    for host in hosts or ():
        normalized = _allowed_host(host)
        if normalized is None:
            expected = "a host name, *.name, an IP address or a CIDR range, without port and path"
            table.add_problem("allowed_hosts", f"found {host!r}; expected {expected}")
        else:
            allowed.append(normalized)
    return NetworkPolicy(NetworkMode(mode), tuple(dict.fromkeys(allowed)))


def _allowed_host(host: str) -> str | None:
    """Return an entry in its normal form, None if it is not valid."""
    host = host.strip().lower().rstrip(".")
    if "%" in host:
        return None
    try:
        if "/" in host:
            return str(ipaddress.ip_network(host))
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    name = host.removeprefix("*.")
    labels = name.split(".")
    if not all(_HOST_LABEL.fullmatch(label) for label in labels):
        return None
    return None if name != host and _is_address(name) else host


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _artifacts(top: TomlTable) -> tuple[Artifact, ...]:
    entries: Any = top.value("artifacts")
    if entries is None:
        return ()
    if not isinstance(entries, list):
        top.add_problem("artifacts", "expected a list")
        return ()
    artifacts = []
    for number, entry in enumerate(entries):
        where = f"artifacts[{number}]"
        if isinstance(entry, str):
            artifact = Artifact(entry)
        elif isinstance(entry, dict):
            artifact = _artifact(top, where, entry)
        else:
            top.add_problem(where, "expected a path or a table")
            continue
        if not artifact.source or ".." in PurePosixPath(artifact.source).parts:
            top.add_problem(where, f"found {artifact.source!r}; expected a path without ..")
        artifacts.append(artifact)
    return tuple(artifacts)


def _artifact(top: TomlTable, where: str, values: dict[str, Any]) -> Artifact:
    table = top.part(where, values)
    artifact = Artifact(
        source=table.text("source", required=True) or "",
        destination=table.text("destination") or None,
        exclude=table.texts("exclude") or (),
        service=table.text("service"),
    )
    destination = artifact.destination
    if destination is not None:
        parts = PurePosixPath(destination).parts
        if destination.startswith("/") or "\\" in destination or ".." in parts or not parts:
            expected = "expected a relative path with / and without .."
            table.add_problem("destination", f"found {destination!r}; {expected}")
        elif destination.rstrip("/") == "manifest.json":
            table.add_problem("destination", "manifest.json is reserved")
    table.end()
    return artifact
