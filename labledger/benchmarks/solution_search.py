"""The agent `solution-search`, which searches an agent's readable files for its task's solution.

Only its containers have the solution and the tests. `solution_search.sh` searches files and Git
objects, and prints lines for `read_matches`. A file matches if it has at least half of the
solution's groups of three consecutive lines. Short groups are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from labledger.benchmarks.benchmark_variations import TaskContents
from labledger.benchmarks.formats import BenchmarkAgent, TranslatedBenchmark
from labledger.files.durable_files import FileContent
from labledger.records import JsonObject

AGENT: Final = "solution-search"
LIMIT_S = 600
"""The minimum time limit of the search, in seconds. A task may have a longer limit."""

_PROGRAM = Path(__file__).with_name("solution_search.sh")
_PLACE = "/labledger-search"
_SEPARATOR = "\x1f"
_GROUP_LINES = 3
_MIN_GROUP = 40
"""The minimum number of characters of a group."""
_MIN_SINGLE = 16
"""The minimum number of characters if a whole solution has a single line."""
_MAX_GROUPS = 400
_MAX_FILES = 8
"""The number of a solution's files that are searched for, the largest first."""
_SKIPPED = re.compile(r"#!|set [-+]|#.*canary", re.IGNORECASE)
"""Lines that many scripts begin with."""
_POST_IMAGE = re.compile(rb"^index [0-9a-f]{7,64}\.\.([0-9a-f]{7,64})", re.MULTILINE)


class Kind(StrEnum):
    """The kind of file that the agent searches for."""

    SOLUTION = "solution"
    TESTS = "tests"


@dataclass(frozen=True, slots=True)
class Match:
    """A match that the search found."""

    kind: Kind
    where: str
    """A path in the container, with the kind of match."""
    in_git: bool = False
    """Whether it is in the objects of a Git repository and not in a file."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The findings of one trial of the agent."""

    matches: tuple[Match, ...] = ()
    other_commits: str | None = None
    """The commits of a repository that are outside its checked-out history."""
    finished: bool = False


def with_search(benchmark: TranslatedBenchmark, contents: TaskContents) -> TranslatedBenchmark:
    """Return a benchmark with the searching agent as its last agent.

    The tasks stay the same. If a task has neither solution nor tests, the search finds nothing.
    """
    files: dict[str, FileContent] = dict(benchmark.files)
    rows = []
    for number, row in enumerate(benchmark.tasks):
        task_id = row["id"]
        wanted = wanted_files(contents.solutions.get(task_id, {}), contents.tests.get(task_id, {}))
        if wanted:
            folder = f"solution-search/{number}"
            files |= {f"{folder}/{name}": content for name, content in wanted.items()}
            row = {**row, "files": [*row.get("files", ()), _entry(folder)]}
        rows.append({**row, **_limit(row)})
    agent = BenchmarkAgent(
        AGENT,
        "Searches for the solution and changes nothing: must not pass",
        files={_PROGRAM.name: _PROGRAM.read_bytes()},
        runtime={"agent": {"command": ["sh", _PROGRAM.name]}},
        expects="fail",
    )
    agents = (*benchmark.agents, agent)
    return replace(benchmark, agents=agents, files=files, tasks=tuple(rows))


def _entry(folder: str) -> JsonObject:
    return {"path": _PLACE, "directory": folder, "for": "agent", "variants": [AGENT]}


def _limit(row: JsonObject) -> JsonObject:
    given = row.get("timeout_s")
    return {} if given is None else {"timeout_s": max(given, LIMIT_S)}


def wanted_files(solution: Mapping[str, bytes], tests: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files that the agent gets in the folder `_PLACE`."""
    wanted: dict[str, bytes] = {}
    for kind, given in ((Kind.SOLUTION, solution), (Kind.TESTS, tests)):
        largest = sorted(given.values(), key=len, reverse=True)[:_MAX_FILES]
        for number, content in enumerate(largest):
            groups = line_groups(content, is_whole=len(given) == 1)
            folder = f"{kind}.{number}"
            wanted[f"{folder}/file"] = content
            wanted[f"{folder}/groups"] = _lines(groups)
            longest = dict.fromkeys(max(group.split(_SEPARATOR), key=len) for group in groups)
            wanted[f"{folder}/lines"] = _lines(longest)
    blobs = dict.fromkeys(
        blob.decode()
        for content in solution.values()
        for blob in _POST_IMAGE.findall(content)
        if blob.strip(b"0")
    )
    if blobs:
        wanted["blobs"] = _lines(blobs)
    return wanted


def _lines(texts: Collection[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


# -- groups of lines


def line_groups(content: bytes, *, is_whole: bool = False) -> list[str]:
    """Return the groups of lines that identify a file, or the added lines of a patch.

    `is_whole` says that there is no other file. Then a single line may be enough.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return []
    is_patch = content.startswith(b"diff --git ") or b"\ndiff --git " in content
    blocks = list(_added_blocks(text) if is_patch else _script_blocks(text))
    groups = dict.fromkeys(
        _SEPARATOR.join(group)
        for block in blocks
        for group in _windows(block)
        if sum(map(len, group)) >= _MIN_GROUP
    )
    if not groups and is_whole and not is_patch:
        groups = dict.fromkeys(
            line for block in blocks for line in block if len(line) >= _MIN_SINGLE
        )
    return list(groups)[:_MAX_GROUPS]


def _added_blocks(patch: str) -> Iterator[list[str]]:
    """Yield the runs of lines that a patch adds."""
    block: list[str] = []
    for line in patch.split("\n"):
        if line.startswith("+") and not line.startswith("+++ "):
            block.append(line[1:])
        elif block:
            yield _stripped(block)
            block = []
    yield _stripped(block)


def _script_blocks(text: str) -> Iterator[list[str]]:
    yield [line for line in _stripped(text.split("\n")) if not _SKIPPED.match(line)]


def _stripped(lines: Sequence[str]) -> list[str]:
    return [stripped for line in lines if (stripped := line.strip(" \t\r"))]


def _windows(block: list[str]) -> Iterator[list[str]]:
    size = min(_GROUP_LINES, len(block))
    if size:
        yield from (block[start : start + size] for start in range(len(block) - size + 1))


def stands_in_task(row: JsonObject, solution: Mapping[str, bytes]) -> bool:
    """Return whether the text that the agent gets has at least half of a solution."""
    texts = "\n".join(_texts(row["task"]))
    lines = _stripped(texts.split("\n"))
    there = {
        _SEPARATOR.join(lines[start : start + size])
        for size in range(1, _GROUP_LINES + 1)
        for start in range(len(lines) - size + 1)
    }
    for content in solution.values():
        groups = line_groups(content, is_whole=len(solution) == 1)
        if groups and 2 * sum(group in there for group in groups) >= len(groups):
            return True
    return False


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


# -- the output of the search


def read_matches(output: bytes) -> SearchResult:
    """Return the result of a search. Its output is as hostile as any output of a container."""
    matches: dict[Match, None] = {}
    commits, finished = None, False
    for line in output.decode("utf-8", "replace").split("\n"):
        match line.split("\t"):
            case ["same", kind, path] if kind in list(Kind):
                matches[Match(Kind(kind), path)] = None
            case ["similar", kind, found, total, path] if kind in list(Kind):
                same = Match(Kind(kind), path)
                if same not in matches:
                    matches[replace(same, where=f"{path} ({found} of {total} parts)")] = None
            case ["blob", blob, repository]:
                where = f"{repository} (blob {blob})"
                matches[Match(Kind.SOLUTION, where, in_git=True)] = None
            case ["history", found, total, repository]:
                where = f"{repository} ({found} of {total} parts)"
                matches[Match(Kind.SOLUTION, where, in_git=True)] = None
            case ["commits", count, newest, repository]:
                commits = f"{repository}: {count}, the newest of them {json.dumps(newest)}"
            case ["done"]:
                finished = True
    return SearchResult(tuple(matches), commits, finished)
