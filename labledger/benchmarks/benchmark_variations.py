"""Variations of a benchmark for `labledger check`, and the facts about a task without a run.

Each function returns a changed copy: with replications, without a network, or with other settings.
A task's files for agents that must pass are its solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from labledger.benchmarks.formats import TranslatedBenchmark
from labledger.benchmarks.task_selection import selects
from labledger.experiment.phase_commands import TIMEOUT_S
from labledger.files.durable_files import EmptyFolder, FileContent
from labledger.records import JsonObject

_MAX_FILE_BYTES = 1 << 18
"""Larger files of solutions and tests are ignored, in bytes."""


def with_repeats(benchmark: TranslatedBenchmark, repeats: int) -> TranslatedBenchmark:
    """Return a benchmark that runs each agent `repeats` times on each task."""
    design = {**benchmark.defaults.get("design", {}), "replications": repeats}
    return replace(benchmark, defaults={**benchmark.defaults, "design": design})


def without_concurrency(benchmark: TranslatedBenchmark) -> TranslatedBenchmark:
    """Return a benchmark that does not set how many trials run at once."""
    design = {**benchmark.defaults.get("design", {})}
    design.pop("max_concurrency", None)
    return replace(benchmark, defaults={**benchmark.defaults, "design": design})


def passing_agents(benchmark: TranslatedBenchmark) -> list[str]:
    """Return the names of the agents that must pass every task."""
    return [agent.name for agent in benchmark.agents if agent.expects == "pass"]


# -- the network


def uses_network(benchmark: TranslatedBenchmark) -> bool:
    """Return whether an agent or a grader of any task has a network."""
    return any(section.get("network", "none") != "none" for section in _network_sections(benchmark))


def without_network(benchmark: TranslatedBenchmark) -> TranslatedBenchmark:
    """Return a benchmark in which no agent and no grader has a network."""
    defaults = benchmark.defaults
    grader = {**defaults["benchmark"], "grader": _offline(defaults["benchmark"]["grader"])}
    runtime = {**_offline(defaults["runtime"]), "network": "none"}
    return replace(
        benchmark,
        defaults={**defaults, "runtime": runtime, "benchmark": grader},
        tasks=tuple(_offline_row(row) for row in benchmark.tasks),
    )


def _network_sections(benchmark: TranslatedBenchmark) -> Iterator[JsonObject]:
    yield benchmark.defaults["runtime"]
    yield benchmark.defaults["benchmark"]["grader"]
    for row in benchmark.tasks:
        runtime = row.get("runtime") or {}
        yield from (runtime, runtime.get("grader") or {})


def _offline(section: JsonObject) -> JsonObject:
    others = {key: value for key, value in section.items() if key != "allowed_hosts"}
    return others | ({"network": "none"} if "network" in section else {})


def _offline_row(row: JsonObject) -> JsonObject:
    if not row.get("runtime"):
        return row
    runtime = _offline(row["runtime"])
    if runtime.get("grader"):
        runtime["grader"] = _offline(runtime["grader"])
    return {**row, "runtime": runtime}


# -- what a task consists of


@dataclass(frozen=True, slots=True)
class TaskContents:
    """The files of agents and graders for each task, by the task's id."""

    solutions: Mapping[str, Mapping[str, bytes]]
    """The files that only agents which must pass get, and that no other task shares."""
    tests: Mapping[str, Mapping[str, bytes]]
    """The files that only the grader gets, and that no other task shares."""
    without_solution: frozenset[str]
    """The tasks without a file with content for an agent that needs files to pass."""


def task_contents(benchmark: TranslatedBenchmark, globs: Sequence[str] = ()) -> TaskContents:
    """Return the contents of the tasks that `globs` select, without running them."""
    chosen = tuple(row for row in benchmark.tasks if selects(globs, row["id"]))
    benchmark = replace(benchmark, tasks=chosen)
    solvers = set(passing_agents(benchmark))
    needy = {agent.name for agent in benchmark.agents if agent.needs_files}

    def is_solution(entry: JsonObject) -> bool:
        return entry["for"] == "agent" and bool(set(entry.get("variants", ())) & solvers)

    def is_test(entry: JsonObject) -> bool:
        return bool(entry["for"] == "grader")

    files = _files_by_folder(benchmark)
    return TaskContents(
        _own_files(benchmark, files, is_solution),
        _own_files(benchmark, files, is_test),
        frozenset(
            row["id"]
            for row in benchmark.tasks
            if needy and not any(_has_content(files, e) for e in _entries(row) if is_solution(e))
        ),
    )


def _entries(row: JsonObject) -> Sequence[JsonObject]:
    return [entry for entry in row.get("files", ()) if "directory" in entry]


def _files_by_folder(benchmark: TranslatedBenchmark) -> dict[str, dict[str, FileContent]]:
    """Return the files of each folder that a task names, by their names in the folder."""
    folders = {entry["directory"] for row in benchmark.tasks for entry in _entries(row)}
    files: dict[str, dict[str, FileContent]] = {folder: {} for folder in folders}
    for name, content in benchmark.files.items():
        for parent in PurePosixPath(name).parents:
            if str(parent) in files:
                files[str(parent)][name[len(str(parent)) + 1 :]] = content
    return files


def _has_content(files: Mapping[str, Mapping[str, FileContent]], entry: JsonObject) -> bool:
    return any(map(_says_anything, files[entry["directory"]].values()))


def _says_anything(given: FileContent) -> bool:
    """Return whether a file has more than blank lines and comments, such as a first `#!` line."""
    if isinstance(given, Path) and given.stat().st_size > _MAX_FILE_BYTES:
        return True
    if not isinstance(given, Path | bytes):
        return not isinstance(given, EmptyFolder)
    lines = (given.read_bytes() if isinstance(given, Path) else given).splitlines()
    return any(line.strip() and not line.lstrip().startswith(b"#") for line in lines)


def _own_files(
    benchmark: TranslatedBenchmark,
    files: Mapping[str, Mapping[str, FileContent]],
    is_wanted: Callable[[JsonObject], bool],
) -> dict[str, dict[str, bytes]]:
    wanted = {row["id"]: list(filter(is_wanted, _entries(row))) for row in benchmark.tasks}
    users = Counter(entry["directory"] for entries in wanted.values() for entry in entries)
    return {
        task_id: {
            name: content
            for entry in entries
            if users[entry["directory"]] == 1
            for name, given in files[entry["directory"]].items()
            if (content := _small_content(given))
        }
        for task_id, entries in wanted.items()
    }


def _small_content(given: FileContent) -> bytes:
    """Return a file's content; empty for links, folders, and files that are too large."""
    if isinstance(given, Path):
        return given.read_bytes() if given.stat().st_size <= _MAX_FILE_BYTES else b""
    return given if isinstance(given, bytes) and len(given) <= _MAX_FILE_BYTES else b""


# -- how long it may take


def agent_limit_s(benchmark: TranslatedBenchmark, row: JsonObject) -> float:
    """Return the time limit of the agent on a task, in seconds."""
    agent_settings = (row.get("runtime") or {}).get("agent") or {}
    default = benchmark.defaults["runtime"]["agent"].get("timeout_s", TIMEOUT_S["agent"])
    return float(row.get("timeout_s") or agent_settings.get("timeout_s") or default)


def grader_limit_s(benchmark: TranslatedBenchmark, row: JsonObject) -> float:
    """Return the time limit of the grader of a task, in seconds."""
    grader_settings = (row.get("runtime") or {}).get("grader") or {}
    default = benchmark.defaults["benchmark"]["grader"].get("timeout_s", TIMEOUT_S["grader"])
    return float(grader_settings.get("timeout_s") or default)
