"""The format `harbor`: a `Benchmark` of the task folders that a location names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labledger import resources
from labledger.benchmarks.formats import Benchmark, BenchmarkAgent, RefusedTask
from labledger.benchmarks.harbor import task_rows
from labledger.benchmarks.harbor.sources import TASK_FILE, TaskFolder, TaskSource, find_tasks
from labledger.benchmarks.harbor.task_files import TaskFiles, files_digest
from labledger.benchmarks.harbor.task_rows import (
    AGENT_LOGS,
    ARTIFACTS,
    HEALTH_CHECK,
    ORACLE,
    VERIFIER_LOGS,
    ImageBuild,
    TranslatedTask,
    translate_task,
)
from labledger.benchmarks.harbor.task_toml import (
    Environment,
    TaskConfig,
    read_task_toml,
    verifier_image,
)
from labledger.benchmarks.harbor.unsupported import unsupported
from labledger.errors import InvalidInput
from labledger.files.durable_files import FileContent
from labledger.records import JsonObject
from labledger.records.outcomes import Reason

AGENTS = (ORACLE, "nop")

_PROGRAMS = Path(__file__).parent
_DESCRIPTION = (
    "The agent finds its instruction in $AGENTLAB_TASK_PATH, at task.instruction, and works in\n"
    "the image's own folder. The tests arrive when it has ended. storage_mb is not enforced."
)


@dataclass(frozen=True, slots=True)
class HarborFormat:
    """Reads `harbor:LOCATION`."""

    name: str = "harbor"
    agents: tuple[str, ...] = AGENTS

    def read(self, location: str) -> Benchmark:
        """Return the benchmark at a location. Clones Git repositories into the user's cache.

        Raises `InvalidInput` if the location names no tasks. A task that cannot be run is refused
        in the benchmark, with every reason.
        """
        source = find_tasks(location)
        outcomes = [_read_task(name, folder.path) for name, folder in _named(source.folders)]
        tasks = [each for each in outcomes if isinstance(each, TranslatedTask)]
        refused = [each for each in outcomes if isinstance(each, RefusedTask)]
        return _benchmark(source, tasks, [*source.refused, *refused])


def _named(folders: Sequence[TaskFolder]) -> list[tuple[str, TaskFolder]]:
    """Return folders with their ids: the name without its organization, unless two have it."""
    names = [folder.name or _declared_name(folder.path) for folder in folders]
    short = [name.rpartition("/")[2] for name in names]
    counts = Counter(short)
    ids = [n if counts[s] > 1 else s for n, s in zip(names, short, strict=True)]
    doubled = Counter(ids)
    numbered = []
    for task_id, folder in zip(ids, folders, strict=True):
        if doubled[task_id] > 1:
            task_id = f"{task_id}@{folder.path.name}"
        numbered.append((task_id, folder))
    return numbered


def _declared_name(folder: Path) -> str:
    """Return the name in a task's file, or that of its folder."""
    try:
        return _read_config(TaskFiles(folder)).name or folder.resolve().name
    except InvalidInput:
        return folder.resolve().name


def _read_config(files: TaskFiles) -> TaskConfig:
    path = files.folder / TASK_FILE
    files.require_inside(path)
    return read_task_toml(path)


def _read_task(task_id: str, folder: Path) -> TranslatedTask | RefusedTask:
    """Return the translation of a task, or with every reason why it cannot be run."""
    files = TaskFiles(folder)
    try:
        config = _read_config(files)
        image = verifier_image(config, files)
        reasons = [*_unusable_env(config), *unsupported(config, files, image)]
        if not reasons:
            return translate_task(task_id, config, files, image)
    except InvalidInput as error:
        reasons = [str(problem) for problem in error.problems]
    except OSError as error:
        reasons = [f"{error.filename}: cannot be read: {error.strerror}"]
    return RefusedTask(task_id, "; ".join(reasons))


def _unusable_env(config: TaskConfig) -> list[str]:
    environment = config.verifier.environment or Environment()
    sections = {
        "environment.env": config.environment.env,
        "verifier.env": config.verifier.env,
        "verifier.environment.env": environment.env,
        "solution.env": config.solution_env,
    }
    return [
        f"[{section}]: ${{{name}}} is not the name of an environment variable"
        for section, env in sections.items()
        for name in task_rows.unusable_names(env)
    ]


def _benchmark(
    source: TaskSource, tasks: list[TranslatedTask], refused: list[RefusedTask]
) -> Benchmark:
    has_healthcheck = any("setup" in task.row["runtime"] for task in tasks)
    if has_healthcheck:
        for task in tasks:
            task.row["runtime"].setdefault("setup", None)
    files: dict[str, FileContent] = {
        name: (_PROGRAMS / name).read_bytes() for name in ("agent.sh", "grader.sh")
    }
    if has_healthcheck:
        files[HEALTH_CHECK] = resources.health_check_script().read_bytes()
    for task in tasks:
        files |= task.files
    return Benchmark(
        name=source.name,
        version=source.version or f"sha256:{files_digest(files)[:16]}",
        split="test",
        tasks=tuple(task.row for task in tasks),
        files=files,
        agents=_agents({task.row["id"]: task.oracle_env for task in tasks if task.oracle_env}),
        defaults=_defaults(_builds(tasks), has_healthcheck=has_healthcheck),
        description="\n".join([_DESCRIPTION, *source.notes]),
        refused=tuple(sorted(refused, key=lambda task: task.task_id)),
    )


def _agents(oracle_env: Mapping[str, Mapping[str, str]]) -> tuple[BenchmarkAgent, ...]:
    """Return the agents. `oracle_env` has what solutions need from outside, by task."""
    return (
        BenchmarkAgent(
            ORACLE,
            "Runs the task's own solution: must pass",
            {"agent": ORACLE},
            task_env=oracle_env,
            expects="pass",
        ),
        BenchmarkAgent("nop", "Does nothing: must fail", {"agent": "nop"}, expects="fail"),
    )


def _builds(tasks: Iterable[TranslatedTask]) -> JsonObject:
    """Return the section `images`.

    An image that tasks share, and that each would build of other files, can only be pulled.
    """
    builds: dict[str, set[ImageBuild]] = {}
    for task in tasks:
        for ref, build in task.images.items():
            builds.setdefault(ref, set()).add(build)
    section: JsonObject = {}
    for ref, known in builds.items():
        if len({build.digest for build in known}) == 1:
            first = min(known, key=lambda build: build.context)
            section[ref] = {"context": first.context, "timeout_s": first.timeout_s}
    return section


def _defaults(images: JsonObject, *, has_healthcheck: bool) -> JsonObject:
    runtime: JsonObject = {
        "user": "image",
        "agent": {"command": ["sh", "agent.sh", "$agent"], "files": ["agent.sh"]},
        "workspace": "image",
        "network": "full",
        "processes": "keep",
        "entrypoint": "image",
        "healthcheck": "image",
        "outputs": [
            {"path": AGENT_LOGS, "phase": "agent", "image_files": "keep"},
            {"path": ARTIFACTS, "phase": "agent", "image_files": "keep"},
            {"path": VERIFIER_LOGS, "phase": "grader", "image_files": "keep"},
        ],
        "resources": {"cpus": 1, "memory": "2g", "pids": 4096},
    }
    if has_healthcheck:
        # Tasks without a health check have no setup.
        arguments = ["true", "5", "30", "0", "5", "3"]
        command = ["sh", HEALTH_CHECK, *arguments]
        runtime["setup"] = {"command": command, "files": [HEALTH_CHECK]}
    defaults: JsonObject = {
        "runtime": runtime,
        "benchmark": {
            "grader": {
                "command": ["sh", "grader.sh"],
                "files": ["grader.sh"],
                "timeout_s": 600,
                "mode": "delivered",
                "results": {
                    "from": "rewards",
                    "folder": VERIFIER_LOGS,
                    "primary": "reward",
                    "pass_at": 1,
                    "log": "test-stdout.txt",
                },
            },
            "evaluator": {"name": "harbor-tests", "mode": "official"},
        },
        "metrics": [{"id": "reward", "from": "score", "pointer": "/metrics/reward"}],
        "design": {
            "schedule": "paired_interleaved",
            "retry": {
                "max_attempts": 2,
                "retry_on": ["infra_error", Reason.GRADER_BOOTSTRAP_FAILED.value],
            },
        },
    }
    return {**defaults, "images": images} if images else defaults


HARBOR = HarborFormat()
