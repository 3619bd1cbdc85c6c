"""Formats of benchmarks: their protocol, the search for `FORMAT:LOCATION`, and their agents.

A package adds a format as an entry point of the group `labledger.benchmarks`. Entry points are
looked up only for such references, so that other commands start fast. A failure of a format is
`InvalidInput` with the package's name.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from labledger import plug_ins
from labledger.agents.own_folder import files_of, read_folder
from labledger.agents.profiles import find_profiles, is_folder
from labledger.errors import InvalidInput, LabLedgerError, Parameter, Problem
from labledger.files.durable_files import FileContent
from labledger.files.project_files import require_location
from labledger.records import JsonObject
from labledger.text.words import near_names

ENTRY_POINT_GROUP = "labledger.benchmarks"


@dataclass(frozen=True, slots=True)
class BenchmarkAgent:
    """An agent of a benchmark, which becomes a variant of the experiment."""

    name: str
    """Its name for `--agent`, and the variant's id."""
    description: str = ""
    bindings: JsonObject = field(default_factory=dict)
    """The variant's bindings, which no other variant can read."""
    files: Mapping[str, FileContent] = field(default_factory=dict)
    """Files beside the experiment that only this agent needs, by name. All variants can read them.
    Files that only this agent may read belong in `files` of the tasks, with its name in
    `variants`."""
    runtime: JsonObject = field(default_factory=dict)
    """The variant's own `runtime`."""
    task_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables of the agent, by task id. The variant has the variables of all
    selected tasks, so equal names must have equal values."""
    expects: Literal["pass", "fail"] | None = None
    """The verdict that it must have on every task of a working benchmark; None if there is none.
    `labledger check` tests it."""
    needs_files: bool = False
    """Whether it can pass only tasks with files for it. For `labledger check`, a task without such
    files, or with empty ones, has no solution."""
    given_as: str | None = None
    """Another name for `--agent`: its kind and argument. Set by labledger."""


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """A task of the location that cannot be run."""

    task_id: str
    reason: str
    """The unsupported feature, and what would be needed."""


@dataclass(frozen=True, slots=True)
class ReadingNote:
    """A fact about a benchmark that the user should know, and that does not prevent a run."""

    message: str
    task_id: str | None = None
    """The id of its task; None for the benchmark as a whole."""
    where: str | None = None
    """The path of its file."""
    is_ignored: bool = True
    """Whether a key or value was ignored, which `strict` refuses."""


@dataclass(frozen=True, slots=True)
class TranslatedBenchmark:
    """The content of a location, as a format reads it."""

    name: str
    """The name of the benchmark, the experiment, its suite and its scores."""
    version: str
    """The version of the data, such as a release or a digest; recorded with every score."""
    split: str
    tasks: tuple[JsonObject, ...]
    """The tasks that can be run, each a line of `tasks.jsonl` (schema `task_v1`). Entries of
    `files` for variants outside the experiment are left out. A value of an `env` may be
    `${NAME:-DEFAULT}`. It becomes `${NAME}` if NAME is set outside, otherwise DEFAULT."""
    files: Mapping[str, FileContent]
    """The files beside the experiment, by relative name: graders, agents, tests. A path is
    copied."""
    agents: tuple[BenchmarkAgent, ...]
    """The agents of the benchmark. The first one is the baseline."""
    defaults: JsonObject
    """The sections `runtime`, `benchmark`, `metrics`, `design` and `images` of `experiment.yaml`.
    In `benchmark`, name, version and split may be left out. `--image` overrides
    `runtime.image`."""
    description: str = ""
    refused: tuple[RefusedTask, ...] = ()
    notes: tuple[ReadingNote, ...] = ()
    """The keys, values and names that were ignored or changed."""
    unread: tuple[str, ...] = ()
    """The ids of tasks that were not read, because they were not selected."""
    cluster: str | None = None
    """The field of a task's row that groups similar tasks, such as `task.repo`; None without one.
    Comparisons use the groups as the sample."""


@runtime_checkable
class BenchmarkFormat(Protocol):
    """The object that the entry point of a format loads.

    `labledger run NAME:LOCATION` calls `read`, writes the result as an experiment, and runs it.
    `read` may write only caches. The same input must give the same `TranslatedBenchmark`, so that
    the experiment is the same byte for byte.
    """

    name: str
    """The word before the colon."""
    agents: tuple[str, ...]
    """The names of the benchmark's agents. The first one is the baseline."""

    def read(self, location: str) -> TranslatedBenchmark:
        """Return the benchmark at `location`, the text after the colon.

        Raises `labledger.errors.InvalidInput` with the file and line of each problem.
        """
        ...


@runtime_checkable
class AgentKinds(Protocol):
    """A format that also accepts agents with an argument, as `--agent KIND:ARG`.

    Other formats do not have these attributes.
    """

    agent_kinds: tuple[str, ...]
    """The accepted kinds: the words before the colon."""

    def add_agent(
        self, benchmark: TranslatedBenchmark, kind: str, argument: str
    ) -> TranslatedBenchmark:
        """Return `benchmark` with one more agent at the end, of this kind and with this argument.

        Raises `labledger.errors.InvalidInput`.
        """
        ...


@runtime_checkable
class SelectiveFormat(Protocol):
    """A format that can also read only the selected tasks of a large benchmark."""

    def read_selected(self, location: str, globs: Sequence[str]) -> TranslatedBenchmark:
        """Return the benchmark with the tasks that a glob matches. `unread` has the other ids.

        A task must not depend on which other tasks are selected. Raises
        `labledger.errors.InvalidInput`.
        """
        ...


_REFERENCE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BenchmarkReference:
    """A parsed `FORMAT:LOCATION`."""

    format_name: str
    location: str

    def __str__(self) -> str:
        return f"{self.format_name}:{self.location}"


def parse_reference(text: str) -> BenchmarkReference | None:
    """Return the reference in `text`; None if it is a path.

    An existing path is a path, even if it contains colons.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    return BenchmarkReference(match[1], match[2])


def read_benchmark(
    reference: BenchmarkReference, agents: Sequence[str] = (), globs: Sequence[str] = ()
) -> TranslatedBenchmark:
    """Return the benchmark that a reference names, with an added agent for each `KIND:ARGUMENT`.

    `agents` has names of agents, and `KIND:ARGUMENT` if the format has agents of this kind. Tasks
    that no glob selects may be left unread. Without globs, every task is read. Raises
    `InvalidInput` if the format does not exist, cannot be loaded or fails, and with every problem
    of the location or of an argument.
    """
    benchmark_format, package = _load_format(reference)
    function, read = "read", partial(benchmark_format.read, reference.location)
    if globs and isinstance(benchmark_format, SelectiveFormat):
        function = "read_selected"
        read = partial(benchmark_format.read_selected, reference.location, globs)
    benchmark = _checked(reference, package, function, read)
    if not isinstance(benchmark_format, AgentKinds):
        return benchmark
    for given in agents:
        kind, colon, argument = given.partition(":")
        if colon and kind in benchmark_format.agent_kinds:
            add_agent = partial(benchmark_format.add_agent, benchmark, kind, argument)
            benchmark = _checked(reference, package, "add_agent", add_agent)
            *others, added = benchmark.agents
            benchmark = replace(benchmark, agents=(*others, replace(added, given_as=given)))
    return benchmark


def _checked(
    reference: BenchmarkReference,
    package: str,
    function: str,
    call: Callable[[], TranslatedBenchmark],
) -> TranslatedBenchmark:
    """Call a function of a format, and return its benchmark. Raises `InvalidInput`."""
    try:
        benchmark = call()
    except LabLedgerError:
        raise
    except OSError as error:
        problem = Problem(error.filename or reference.location, error.strerror or str(error))
        raise InvalidInput(f"cannot read {reference}", [problem]) from error
    except Exception as error:
        raise _format_failed(reference, package, error) from error
    if not isinstance(benchmark, TranslatedBenchmark):
        returned = TypeError(f"{function}() returned {type(benchmark).__name__}, not a Benchmark")
        raise _format_failed(reference, package, returned)
    return benchmark


def _load_format(reference: BenchmarkReference) -> tuple[BenchmarkFormat, str]:
    """Return the format of a reference, and the name of its package."""
    name = reference.format_name
    registered = plug_ins.registered(ENTRY_POINT_GROUP)
    if name not in registered:
        close = near_names(name, registered)
        hint = f"did you mean {close[0]}:{reference.location}?" if close else None
        formats = ", ".join(sorted(registered))
        message = f"there is no file of this name, and no format {name!r}; formats: {formats}"
        raise InvalidInput(
            f"cannot read {reference}", [Problem(str(reference), message, hint=hint)]
        )
    by_package = registered[name]
    if len(by_package) > 1:
        message = f"the packages {' and '.join(sorted(by_package))} both have a format {name!r}"
        problem = Problem(str(reference), message, hint="uninstall all but one of them")
        raise InvalidInput(f"cannot read {reference}", [problem])
    [(package, entry_point)] = by_package.items()
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise _format_failed(reference, package, error) from error
    if not isinstance(loaded, BenchmarkFormat):
        wrong = TypeError(f"{entry_point.value} has not the attributes name, agents and read")
        raise _format_failed(reference, package, wrong)
    return loaded, package


def _format_failed(reference: BenchmarkReference, package: str, error: Exception) -> InvalidInput:
    message = (
        f"the format {reference.format_name!r} of the package {package} failed: "
        f"{type(error).__name__}: {error}"
    )
    hint = f"report it to the authors of {package}"
    return InvalidInput(f"cannot read {reference}", [Problem(str(reference), message, hint=hint)])


_GIVEN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9_.-]*|\.{0,2}/[^:@]*[^:@/])"
    r"(?:@(?P<version>[^:]*))?(?::(?P<settings>.*))?"
)
_IN_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_ID = 64


def with_profiled_agents(
    benchmark: TranslatedBenchmark, given: Sequence[str]
) -> TranslatedBenchmark:
    """Return a benchmark with an agent for each item of `given` that names a profile.

    The form is `NAME[@VERSION]:model=MODEL[,OPTION=VALUE…]`. The experiment checks the values.
    Agents of the benchmark itself take precedence over profiles of the same name. The folder of the
    user's own agent becomes a part of the experiment. Raises `InvalidInput` for an item of another
    form that names a profile, and for a folder without a valid profile.
    """
    benchmark_names = {agent.given_as or agent.name for agent in benchmark.agents}
    parsed = {words: _GIVEN.fullmatch(words) for words in given if words not in benchmark_names}
    profiles = find_profiles() if any(parsed.values()) else {}
    agents: dict[str, JsonObject] = {}
    files: dict[str, FileContent] = {}
    problems: list[Problem] = []
    for words, match in parsed.items():
        if match is None or not (match["name"] in profiles or is_folder(match["name"])):
            continue
        try:
            agents[words] = _authored_agent(match)
            if is_folder(match["name"]):
                agents[words]["profile"] = _add_folder(Path(match["name"]), files)
        except ValueError as error:
            hint = f"such as {match['name']}:model=MODEL"
            problems.append(Problem(Parameter("agents"), f"{words}: {error}", hint=hint))
    if problems:
        raise InvalidInput("the agents given", problems)
    ids = _variant_ids(list(agents.values()))
    added = (
        BenchmarkAgent(name, runtime={"agent": agent}, given_as=words)
        for name, (words, agent) in zip(ids, agents.items(), strict=True)
    )
    agents_of_all = (*benchmark.agents, *added)
    return replace(benchmark, agents=agents_of_all, files={**benchmark.files, **files})


def _add_folder(folder: Path, files: dict[str, FileContent]) -> str:
    """Add the files of an agent's folder. Return the profile's path beside the experiment.

    Raises `InvalidInput`, and `PermissionNeeded` if the folder is a link out of its project.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100
    require_location(folder, str(folder))
    profile = read_folder(folder)
    top = f"agents/{profile.name}"
    folder_files = {
        f"{top}/{path.relative_to(folder).as_posix()}": path for path in files_of(folder)
    }
    if any(files.get(name, path) != path for name, path in folder_files.items()):
        problem = Problem(Parameter("agents"), f"two folders hold an agent {profile.name}")
        raise InvalidInput("the agents given", [problem])
    files |= folder_files
    return f"./{top}"


def _authored_agent(match: re.Match[str]) -> JsonObject:
    """Return the `runtime.agent` of a parsed item. Raises `ValueError`."""
    agent: JsonObject = {"profile": match["name"]}
    if match["version"] is not None:
        agent["version"] = match["version"]
    options: JsonObject = {}
    for setting in (match["settings"] or "").split(","):
        key, equals, value = setting.partition("=")
        if not setting:
            continue
        if not equals or not key:
            raise ValueError(f"found {setting!r}; expected NAME=VALUE")
        if key in options or (key == "model" and "model" in agent):
            raise ValueError(f"{key} is given twice")
        if key == "model":
            agent["model"] = value
        else:
            options[key] = value
    if "model" not in agent:
        raise ValueError("the model is missing")
    return agent | ({"options": options} if options else {})


def _variant_ids(agents: Sequence[JsonObject]) -> list[str]:
    """Return an id for each agent's variant: its profile, and distinguishing settings if needed."""
    profiles = Counter(agent["profile"] for agent in agents)
    ids: list[str] = []
    for agent in agents:
        words = [agent["profile"].rpartition("/")[2]]
        if profiles[agent["profile"]] > 1:
            values = [*agent.get("options", {}).values()]
            words += [agent["model"], *([agent["version"]] if "version" in agent else []), *values]
        ids.append(unused_id(_IN_NO_ID.sub("-", "-".join(words)), ids))
    return ids


def unused_id(name: str, used: Collection[str]) -> str:
    """Return an unused variant id that begins with `name`."""
    numbered = (f"{name[: _MAX_ID - 4]}-{number}" for number in count(2))
    return next(
        candidate for candidate in chain([name[:_MAX_ID]], numbered) if candidate not in used
    )


def __getattr__(name: str) -> object:
    """Return `TranslatedBenchmark` under its name in versions before 0.4, with a warning."""
    if name == "Benchmark":
        warnings.warn(
            "labledger.benchmarks.formats.Benchmark is now called TranslatedBenchmark",
            DeprecationWarning,
            stacklevel=2,
        )
        return TranslatedBenchmark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
