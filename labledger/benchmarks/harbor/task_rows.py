"""Translate one Harbor task into a line of `tasks.jsonl`, its files, and its image builds.

The row has everything that differs from the experiment's defaults (`translation.DEFAULTS`). An
environment variable whose whole value is `${NAME}` or `${NAME:-default}` comes from outside. Any
other value is literal. `benchmarks.translate` decides whether NAME is set.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from labledger.benchmarks.harbor.declared_artifacts import HarborArtifact
from labledger.benchmarks.harbor.task_files import DOCKERFILE, HarborTaskFiles, files_digest
from labledger.benchmarks.harbor.task_names import unique_folder
from labledger.benchmarks.harbor.task_toml import (
    MAX_TIMEOUT_S,
    Collect,
    Environment,
    NetworkMode,
    NetworkPolicy,
    TaskConfig,
    VerifierImage,
    VerifierMode,
)
from labledger.benchmarks.harbor.unsupported import healthcheck_limit_s
from labledger.experiment.authored_fields import UNLIMITED
from labledger.experiment.container_users import is_root
from labledger.files.durable_files import FileContent
from labledger.records import JsonObject

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)

_SOLUTION_PREFIX = "HARBOR_SOLUTION_"
"""The prefix of the solution's variables for the agent `oracle`."""

_UNSET = "labledger:unset"
"""The value that `oracle` gets for a variable with a default that is not set outside."""


def authored_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables in the form of `experiment.yaml` and `tasks.jsonl`."""
    return {name: _authored(value) for name, value in env.items()}


def _authored(value: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    return value.replace("$", "$$") if match is None else value


def unusable_names(env: Mapping[str, str]) -> list[str]:
    """Return the names in templates that cannot be names of environment variables."""
    matches = [_TEMPLATE.fullmatch(value) for value in env.values()]
    return [m[1] for m in matches if m is not None and not (m[1].isidentifier() and m[1].isascii())]


def outside_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the outside variables that the variant `oracle` needs for the solution."""
    names: dict[str, str] = {}
    for value in env.values():
        match = _TEMPLATE.fullmatch(value)
        if match is not None:
            reference = f"${{{match[1]}}}" if match[2] is None else f"${{{match[1]}:-{_UNSET}}}"
            names[_SOLUTION_PREFIX + match[1]] = reference
    return names


def solution_script(env: Mapping[str, str]) -> bytes:
    """Return a shell script that exports the solution's variables, without values from outside."""
    lines = ["# The variables of [solution.env]."]
    for name, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        if match is None:
            lines.append(f"export {name}={shlex.quote(value)}")
            continue
        unset = "" if match[2] is None else _UNSET
        lines.append(f'export {name}="${{{_SOLUTION_PREFIX}{match[1]}-{unset}}}"')
        if match[2] is not None:
            # A variable with an empty value does not use the default.
            lines.append(f'[ "${name}" != {_UNSET} ] || {name}={shlex.quote(match[2])}')
    return ("\n".join(lines) + "\n").encode()


_COLLECT = """# The commands of [[verifier.collect]]. Their exit statuses have no meaning.
run() {
    shell=sh
    ! command -v bash >/dev/null 2>&1 || shell=bash
    limit="timeout -k 1 $1"
    command -v timeout >/dev/null 2>&1 || limit=
    $limit "$shell" -c "$2" || :
}
"""


def collect_script(collects: Iterable[Collect]) -> bytes:
    """Return a shell script that runs the collect commands of a shared verifier."""
    calls = (
        f"run {_seconds(collect.timeout_s)} {shlex.quote(collect.command)}\n"
        for collect in collects
    )
    return (_COLLECT + "".join(calls)).encode()


ORACLE = "oracle"
AGENT_LOGS, ARTIFACTS, VERIFIER_LOGS = "/logs/agent", "/logs/artifacts", "/logs/verifier"
HEALTH_CHECK = "healthcheck.sh"

_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
_NETWORKS = {
    NetworkMode.PUBLIC: "full",
    NetworkMode.NO_NETWORK: "none",
    NetworkMode.ALLOWLIST: "allowlist",
}


@dataclass(frozen=True, slots=True)
class HarborBuild:
    """The build of one image."""

    context: str
    """The build context, a folder beside the experiment file."""
    digest: str
    """The SHA-256 (hex) of the files in the context."""
    timeout_s: float


@dataclass
class TranslatedTask:
    """The translation of one task."""

    row: JsonObject
    files: dict[str, FileContent] = field(default_factory=dict)
    """The files beside the experiment file, by name."""
    images: dict[str, HarborBuild] = field(default_factory=dict)
    """The builds by the name of the image."""
    oracle_env: dict[str, str] = field(default_factory=dict)
    """The variables that the variant `oracle` needs from outside."""


def translate_task(
    task_id: str, config: TaskConfig, files: HarborTaskFiles, verifier: VerifierImage
) -> TranslatedTask:
    """Return the translation of a supported task. Raises `InvalidInput` for its files."""
    folder = f"tasks/{unique_folder(task_id)}"
    instruction = _without_canary(files.text("instruction.md"))
    task = TranslatedTask({"id": task_id, "task": {"instruction": instruction}})
    environment = config.environment
    agent_image = _image_with_files(task, files, folder, environment)
    runtime = _runtime(config)
    runtime["grader"] = _grader(config)
    if config.verifier.mode is VerifierMode.SHARED:
        runtime["grader"] |= _without_empty({"artifacts": _kept_artifacts(config.artifacts)})
    else:
        verifier_environment = config.verifier.environment or environment
        image = agent_image
        if not verifier.has_tests and verifier_environment.workdir != environment.workdir:
            in_own_folder = replace(environment, workdir=verifier_environment.workdir)
            image = _image_with_files(task, files, folder, in_own_folder)
        elif verifier.has_tests:
            image = _image(
                task,
                files,
                folder,
                verifier.built_from,
                verifier.docker_image,
                verifier_environment,
            )
        runtime["grader"] |= _separate(config) | {"image": image}
    timeout_s = config.agent.timeout_s
    task.row |= {
        "image": agent_image,
        "timeout_s": MAX_TIMEOUT_S if timeout_s is None else timeout_s,
        "files": _task_files(task, config, files, folder, has_tests=verifier.has_tests),
        "runtime": _without_empty(runtime),
    }
    return task


def _without_canary(text: str) -> str:
    """Return an instruction without the marker lines at its beginning."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and _CANARY.fullmatch(lines[first].strip()):
        first += 1
    while first < len(lines) and not lines[first].strip():
        first += 1
    return "\n".join(lines[first:])


# -- images and files


def _image(
    task: TranslatedTask,
    files: HarborTaskFiles,
    folder: str,
    built_from: str | None,
    docker_image: str | None,
    environment: Environment,
) -> str:
    """Return the name of an image, and add its build if the task has a Dockerfile."""
    if built_from is None or not files.has(f"{built_from}/{DOCKERFILE}"):
        assert docker_image is not None  # A task without image and Dockerfile is not supported.
        return docker_image
    context = files.context_in(built_from)
    name = docker_image or _image_name(task.row["id"], built_from, files_digest(context))
    _add_build(task, name, f"{folder}/{built_from}", context, environment.build_timeout_s)
    return name


def _image_with_files(
    task: TranslatedTask, files: HarborTaskFiles, folder: str, environment: Environment
) -> str:
    """Return the image of `[environment]`, with the files of `environment/` in its working folder.

    Harbor copies the files there when a container starts, unless one of them is a Dockerfile.
    """
    image = environment.docker_image
    if image is None or files.has(f"environment/{DOCKERFILE}"):
        return _image(task, files, folder, "environment", image, environment)
    loose = files.context_in("environment")
    if not loose:
        return image
    workdir = environment.workdir and str(PurePosixPath(environment.workdir))
    dockerfile = _copying_dockerfile(image, workdir)
    context = {DOCKERFILE: dockerfile} | {f"files/{name}": loose[name] for name in loose}
    digest = files_digest(context)
    name = _image_name(task.row["id"], "environment", digest)
    if name not in task.images:
        # A separate verifier may have another working folder, and so another image.
        place = "environment" if not task.images else "verifier-environment"
        _add_build(task, name, f"{folder}/{place}", context, environment.build_timeout_s)
    return name


def _copying_dockerfile(image: str, workdir: str | None) -> bytes:
    """Return a Dockerfile that copies the folder `files` into an image's working folder."""
    # The builder parses the path as a shell word.
    target = re.sub(r"([\\\"'$])", r"\\\1", f"{(workdir or '.').rstrip('/')}/")
    return f"FROM {image}\nCOPY {json.dumps(['files/', target])}\n".encode()


def _add_build(
    task: TranslatedTask,
    name: str,
    folder: str,
    context: Mapping[str, FileContent],
    timeout_s: float,
) -> None:
    _add_files(task, folder, context)
    task.images[name] = HarborBuild(folder, files_digest(context), timeout_s)


def _image_name(task_id: str, built_from: str, digest: str) -> str:
    """Return a readable name of an image, which differs for other content."""
    readable = re.sub(r"[^a-z0-9]+", "-", task_id.lower()).strip("-")
    role = "" if built_from == "environment" else "-verifier"
    return f"labledger-harbor/{readable}{role}:{digest[:16]}"


def _task_files(
    task: TranslatedTask,
    config: TaskConfig,
    files: HarborTaskFiles,
    folder: str,
    *,
    has_tests: bool,
) -> list[JsonObject]:
    """Return the entries of the row's `files`, and add the files."""
    entries: list[JsonObject] = []
    if not has_tests:
        files.require_selected("tests/test.sh")
        _add_files(task, f"{folder}/grader-tests", files.selected_in("tests"))
        entries.append(
            {
                "path": "/tests",
                "directory": f"{folder}/grader-tests",
                "for": "grader",
                "image_files": "keep",
            }
        )
    if config.verifier.mode is VerifierMode.SHARED and config.verifier.collect:
        task.files[f"{folder}/collect/collect.sh"] = collect_script(config.verifier.collect)
        directory = f"{folder}/collect"
        entries.append({"path": "/harbor-collect", "directory": directory, "for": "grader"})
    for_oracle: dict[str, str] = {}
    solution = files.selected_in("solution") if files.has("solution/solve.sh") else {}
    if solution:
        _add_files(task, f"{folder}/solution", solution)
        for_oracle["/solution"] = f"{folder}/solution"
    if solution and config.solution_env:
        script = solution_script(config.solution_env)
        task.files[f"{folder}/oracle/env.sh"] = script
        task.oracle_env |= outside_env(config.solution_env)
        for_oracle["/oracle"] = f"{folder}/oracle"
    # Solutions may write to their own folder.
    return entries + [
        {"path": path, "directory": directory, "for": "agent", "variants": [ORACLE]}
        | ({"writable": True} if path == "/solution" else {})
        for path, directory in for_oracle.items()
    ]


def _add_files(task: TranslatedTask, folder: str, files: Mapping[str, FileContent]) -> None:
    task.files |= {f"{folder}/{name}": path for name, path in files.items()}


# -- settings


def _runtime(config: TaskConfig) -> JsonObject:
    environment = config.environment
    return {
        "workspace": environment.workdir and str(PurePosixPath(environment.workdir)),
        **_network(config.agent.network or environment.network),
        **_agent_user(config.agent.user),
        "setup": _setup(environment),
        "resources": _resources(environment),
        "env": authored_env(environment.env),
    }


def _agent_user(user: str | None) -> JsonObject:
    if user is None:
        return {}
    # An agent that is root needs `user`, because the experiment starts containers as root.
    return {"agent": {"user": user}} | ({"user": "image"} if is_root(user) else {})


def _network(policy: NetworkPolicy) -> JsonObject:
    if policy.mode is NetworkMode.ALLOWLIST and not policy.allowed_hosts:
        return {"network": "none"}
    network: JsonObject = {"network": _NETWORKS[policy.mode]}
    if policy.allowed_hosts:
        network["allowed_hosts"] = list(policy.allowed_hosts)
    return network


def _resources(environment: Environment) -> JsonObject:
    """Return the limits of a task. As in Docker, 0 means no limit."""
    cpus, memory = environment.cpus, environment.memory_mb
    return _without_empty(
        {
            "cpus": _limit(cpus, cpus),
            "memory": _limit(memory, f"{memory}m"),
            "gpus": environment.gpus or None,
        }
    )


def _limit(number: float | None, written: float | str | None) -> float | str | None:
    if number is None:
        return None
    return UNLIMITED if number == 0 else written


def _verifiers_resources(config: TaskConfig) -> JsonObject:
    """Return the resources of a separate verifier. With its own environment, it has no others."""
    agents = _resources(config.environment)
    if config.verifier.environment is None:
        return agents
    own_resources = _resources(config.verifier.environment)
    none: JsonObject = {"cpus": UNLIMITED, "memory": UNLIMITED, "gpus": 0}
    return {key: none[key] for key in agents if key not in own_resources} | own_resources


def _setup(environment: Environment) -> JsonObject | None:
    check = environment.healthcheck
    if check is None:
        return None
    words = [
        check.command.replace("$", "$$"),
        _seconds(check.interval_s),
        _seconds(check.timeout_s),
        str(round(check.start_period_s * 100)),
        _seconds(check.start_interval_s),
        str(check.retries),
    ]
    limit_s = healthcheck_limit_s(environment)
    return {"command": ["sh", HEALTH_CHECK, *words], "timeout_s": limit_s}


def _seconds(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _grader(config: TaskConfig) -> JsonObject:
    verifier = config.verifier
    collect_s = 0.0
    if verifier.mode is VerifierMode.SHARED:
        collect_s = sum(collect.timeout_s for collect in verifier.collect)
    grader: JsonObject = {"timeout_s": min(verifier.timeout_s + collect_s, MAX_TIMEOUT_S)}
    verifier_environment = verifier.environment
    env = {} if verifier_environment is None else verifier_environment.env
    network = verifier.network or (verifier_environment or config.environment).network
    if _network(network) != _network(config.agent.network or config.environment.network):
        grader |= _network(network)
    if verifier.user is not None:
        grader["user"] = verifier.user
    grader["env"] = authored_env({**env, **verifier.env})
    return _without_empty(grader)


def _separate(config: TaskConfig) -> JsonObject:
    """Return the settings of a separate grader."""
    verifier_environment = config.verifier.environment or config.environment
    return _without_empty(
        {
            "mode": "separate",
            "resources": _verifiers_resources(config),
            "workspace": str(PurePosixPath(verifier_environment.workdir))
            if verifier_environment.workdir
            else "image",
            "artifacts": _artifacts(config.artifacts),
            "collect": [_collect(collect) for collect in config.verifier.collect],
            "own_env": None if config.verifier.environment is None else True,
        }
    )


def _artifacts(declared: tuple[HarborArtifact, ...]) -> list[JsonObject]:
    """Return the artifacts of a separate verifier, with the folders of every task."""
    return _outermost((*declared, HarborArtifact(ARTIFACTS), HarborArtifact(AGENT_LOGS)))


def _kept_artifacts(declared: tuple[HarborArtifact, ...]) -> list[JsonObject]:
    """Return the artifacts for a shared verifier, without those in an output folder."""
    folders = [PurePosixPath(folder) for folder in (ARTIFACTS, AGENT_LOGS, VERIFIER_LOGS)]
    return _outermost(
        artifact
        for artifact in declared
        if not any(PurePosixPath(artifact.source).is_relative_to(folder) for folder in folders)
    )


def _outermost(artifacts: Iterable[HarborArtifact]) -> list[JsonObject]:
    """Return artifacts in the form of an experiment, without artifacts inside another one.

    As in Harbor, an artifact may be missing. The tests decide what that means.
    """
    entries: list[HarborArtifact] = []
    for artifact in artifacts:
        path = PurePosixPath(artifact.source)
        if not any(path.is_relative_to(PurePosixPath(kept.source)) for kept in entries):
            entries = [a for a in entries if not PurePosixPath(a.source).is_relative_to(path)]
            entries.append(artifact)
    return [
        _without_empty(
            {
                "path": str(PurePosixPath(artifact.source)),
                "exclude": list(artifact.exclude),
                "optional": True,
            }
        )
        for artifact in entries
    ]


def _collect(collect: Collect) -> JsonObject:
    run = 'if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi'
    command = ["sh", "-c", run, "sh", collect.command]
    return _without_empty(
        {"command": command, "timeout_s": collect.timeout_s, "user": collect.user}
    )


def _without_empty(values: Mapping[str, Any]) -> JsonObject:
    """Return the values without None, `{}` and `[]`."""
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
