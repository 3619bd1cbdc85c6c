"""The format `harbor`: make a `TranslatedBenchmark` from the task folders of a location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labledger import resources
from labledger.benchmarks.formats import (
    BenchmarkAgent,
    ReadingNote,
    RefusedTask,
    TranslatedBenchmark,
)
from labledger.benchmarks.harbor import task_rows
from labledger.benchmarks.harbor.sources import TASK_FILE, Clones, TaskSource, find_tasks
from labledger.benchmarks.harbor.task_files import HarborTaskFiles
from labledger.benchmarks.harbor.task_names import NamedTask, digest_of, name_tasks
from labledger.benchmarks.harbor.task_rows import (
    AGENT_LOGS,
    ARTIFACTS,
    HEALTH_CHECK,
    ORACLE,
    VERIFIER_LOGS,
    HarborBuild,
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
from labledger.benchmarks.task_selection import selects
from labledger.errors import InvalidInput, Problem
from labledger.experiment.authored_fields import UNLIMITED
from labledger.experiment.consistency_checks import row_problems
from labledger.files.durable_files import FileContent
from labledger.records import JsonObject, json_schemas
from labledger.records.outcomes import Reason

AGENTS = (ORACLE, "nop")

_MAX_INSTRUCTION = 4_000_000
"""The most characters of an instruction. Lines of `tasks.jsonl` have a limit."""
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

    def read(self, location: str) -> TranslatedBenchmark:
        """Return the benchmark at a location. Clones Git repositories into the user's cache.

        Raises `InvalidInput` if the location has no tasks. Tasks that cannot be run are in
        `refused`, with all reasons.
        """
        return self.read_selected(location, ())

    def read_selected(self, location: str, globs: Sequence[str]) -> TranslatedBenchmark:
        """Return the benchmark, but read and clone only the tasks that `globs` select."""
        source = find_tasks(location)
        named = name_tasks(source.tasks)
        selected = [task for task in named if selects(globs, task.task_id)]
        clones = Clones()
        outcomes = [_read_task(task, clones) for task in selected]
        benchmark = _benchmark(source, outcomes)
        version = source.version or f"sha256:{digest_of(named)[:16]}"
        unread = [task.task_id for task in named if task not in selected]
        return replace(benchmark, version=version, unread=tuple(unread))


@dataclass(frozen=True, slots=True)
class _ReadTask:
    """The result of reading a task, and notes about ignored parts."""

    outcome: TranslatedTask | RefusedTask
    notes: tuple[ReadingNote, ...] = ()


def _read_task(task: NamedTask, clones: Clones) -> _ReadTask:
    """Return the translation of a task, or all reasons why it cannot be run."""
    notes: list[ReadingNote] = []
    if task.given_name is not None:
        message = f"the task {task.given_name!r} is called {task.task_id} here"
        notes.append(ReadingNote(message, task.task_id, is_ignored=False))
    reasons: list[str] = []
    try:
        files = HarborTaskFiles(task.listed.checked_folder(clones))
        toml = read_task_toml(files.require_file(TASK_FILE))
        notes += [_note(task.task_id, problem) for problem in toml.ignored]
        notes += [
            replace(_note(task.task_id, problem), is_ignored=False)
            for problem in files.windows_scripts()
        ]
        image = verifier_image(toml.config, files)
        reasons += map(str, toml.problems)
        reasons += [*_unusable_env(toml.config), *unsupported(toml.config, files, image)]
        if not reasons:
            translated = translate_task(task.task_id, toml.config, files, image)
            reasons += _row_problems(translated.row)
            if not reasons:
                return _ReadTask(translated, tuple(notes))
    except InvalidInput as error:
        reasons += map(str, error.problems)
    except OSError as error:
        reasons.append(f"{error.filename}: cannot be read: {error.strerror}")
    return _ReadTask(RefusedTask(task.task_id, "; ".join(reasons)), tuple(notes))


def _row_problems(row: JsonObject) -> Iterator[str]:
    """Yield the problems for which an experiment would refuse a task's row.

    Without this check, one such task would make the whole experiment fail.
    """
    if len(row["task"]["instruction"]) > _MAX_INSTRUCTION:
        yield f"instruction.md: has more than {_MAX_INSTRUCTION:,} characters"
    for path, message in json_schemas.problems(row, "task_v1"):
        yield f"{json_schemas.dotted(path)}: {message}"
    for problem in row_problems(row):
        yield f"{json_schemas.dotted(problem.path)}: {problem.message}"


def _note(task_id: str | None, problem: Problem) -> ReadingNote:
    message = f"{problem.field}: {problem.message}" if problem.field else problem.message
    return ReadingNote(message, task_id, problem.where)


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


def _benchmark(source: TaskSource, outcomes: Sequence[_ReadTask]) -> TranslatedBenchmark:
    """Return the benchmark without its version.

    The common parts do not depend on the selected tasks, so that a run can be extended.
    """
    tasks = [item.outcome for item in outcomes if isinstance(item.outcome, TranslatedTask)]
    refused = [item.outcome for item in outcomes if isinstance(item.outcome, RefusedTask)]
    for task in tasks:
        task.row["runtime"].setdefault("setup", None)
    files: dict[str, FileContent] = {
        name: (_PROGRAMS / name).read_bytes() for name in ("agent.sh", "grader.sh")
    }
    files[HEALTH_CHECK] = resources.health_check_script().read_bytes()
    for task in tasks:
        files |= task.files
    return TranslatedBenchmark(
        name=source.name,
        version="",
        split="test",
        tasks=tuple(task.row for task in tasks),
        files=files,
        agents=_agents({task.row["id"]: task.oracle_env for task in tasks if task.oracle_env}),
        defaults=_defaults(_builds(tasks)),
        description="\n".join([_DESCRIPTION, *source.notes]),
        refused=tuple(sorted(refused, key=lambda task: task.task_id)),
        notes=(
            *(_note(None, problem) for problem in source.ignored),
            *(note for item in outcomes for note in item.notes),
        ),
    )


def _agents(oracle_env: Mapping[str, Mapping[str, str]]) -> tuple[BenchmarkAgent, ...]:
    """Return the agents. `oracle_env` has the solutions' outside variables, by task."""
    return (
        BenchmarkAgent(
            ORACLE,
            "Runs the task's own solution: must pass",
            {"agent": ORACLE},
            task_env=oracle_env,
            expects="pass",
            needs_files=True,
        ),
        BenchmarkAgent("nop", "Does nothing: must fail", {"agent": "nop"}, expects="fail"),
    )


def _builds(tasks: Iterable[TranslatedTask]) -> JsonObject:
    """Return the section `images`.

    An image that several tasks build from different files can only be pulled.
    """
    builds: dict[str, set[HarborBuild]] = {}
    for task in tasks:
        for ref, build in task.images.items():
            builds.setdefault(ref, set()).add(build)
    section: JsonObject = {}
    for ref, known in builds.items():
        if len({build.digest for build in known}) == 1:
            first = min(known, key=lambda build: build.context)
            section[ref] = {"context": first.context, "timeout_s": first.timeout_s}
    return section


def _defaults(images: JsonObject) -> JsonObject:
    runtime: JsonObject = {
        "user": "image",
        "agent": {"command": ["sh", "agent.sh", "$agent"], "files": ["agent.sh"]},
        "rights": "docker",
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
        "resources": dict.fromkeys(("cpus", "memory", "pids"), UNLIMITED),
    }
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
