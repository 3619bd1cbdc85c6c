"""Formats of benchmarks: the protocol, how `FORMAT:LOCATION` finds one, its agents, its tasks.

A package adds a format as an entry point of the group `labledger.benchmarks`, under the format's
name, that loads an object with the attributes of `BenchmarkFormat`; the formats of this package use
the same protocol. Entry points are looked up only when such a reference is given, so that other
commands start fast. Whatever is wrong with a format of another package is reported as
`InvalidInput` with the package's name.

An agent with a profile is given on the command line as
`--agent NAME[@VERSION]:model=MODEL[,OPTION=VALUE…]`. Each becomes an agent of the benchmark, and so
a variant of its experiment, which has the profile in place of the benchmark's own command. What the
words mean is checked with the experiment.
"""

from __future__ import annotations

import os
import re
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
from labledger.text import near_names

ENTRY_POINT_GROUP = "labledger.benchmarks"


@dataclass(frozen=True, slots=True)
class BenchmarkAgent:
    """An agent that comes with a benchmark; it becomes a variant of the experiment."""

    name: str
    """Its name for `--agent`, and the variant's id."""
    description: str = ""
    bindings: JsonObject = field(default_factory=dict)
    """The variant's bindings, which no other variant can read."""
    files: Mapping[str, FileContent] = field(default_factory=dict)
    """Files beside the experiment that are needed for this agent only, by name. They are staged
    for every variant of the experiment: what this agent alone may read belongs in `files` of the
    tasks, with its name in `variants`."""
    runtime: JsonObject = field(default_factory=dict)
    """The variant's own `runtime`."""
    task_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By task id, environment variables of the variant's agent that are for this task. The variant
    has those of all selected tasks: equal names must have equal values."""
    expects: Literal["pass", "fail"] | None = None
    """The verdict that it must have on every task of a working benchmark, which `labledger check`
    tests; None if there is none."""
    needs_files: bool = False
    """Whether it can pass only tasks that have files for it: to `labledger check`, a task without
    such files, or with empty ones, is a task without a solution."""
    given_as: str | None = None
    """What `--agent` may call it beside its name: its kind and argument. Set by labledger."""


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """A task of the location that cannot be run."""

    task_id: str
    reason: str
    """What is not supported, and what would be needed."""


@dataclass(frozen=True, slots=True)
class ReadingNote:
    """Something in a benchmark that the user should know and that does not prevent a run."""

    message: str
    task_id: str | None = None
    """The task that it is about; None for the benchmark as a whole."""
    where: str | None = None
    """The file that it is about."""
    is_ignored: bool = True
    """Whether something was ignored, which `strict` refuses."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What a format reads from a location."""

    name: str
    """The benchmark's name: of the experiment, its suite and its scores."""
    version: str
    """The version of the data, such as a release or a digest; recorded with every score."""
    split: str
    tasks: tuple[JsonObject, ...]
    """The tasks that can be run, each a line of `tasks.jsonl` (schema `task_v1`). Entries of
    their `files` are left out for variants that are not in the experiment. A value of an `env` may
    be `${NAME:-DEFAULT}`: it becomes `${NAME}` if NAME is set outside, and else DEFAULT."""
    files: Mapping[str, FileContent]
    """The files beside the experiment by relative name: graders, agents, tests. A path is a file
    that is copied."""
    agents: tuple[BenchmarkAgent, ...]
    """The agents that come along; the first is the baseline."""
    defaults: JsonObject
    """The sections `runtime`, `benchmark`, `metrics`, `design` and `images` of `experiment.yaml`.
    In `benchmark` name, version and split may be left out; `runtime.image` is the image unless
    `--image` names another."""
    description: str = ""
    refused: tuple[RefusedTask, ...] = ()
    notes: tuple[ReadingNote, ...] = ()
    """The keys, values and names that were ignored or changed."""
    unread: tuple[str, ...] = ()
    """The ids of tasks that were not selected, and so were not read."""
    cluster: str | None = None
    """The field of a task's row whose values group tasks that resemble each other, such as
    `task.repo`; None if there is none. Comparisons take the groups as the sample."""


@runtime_checkable
class BenchmarkFormat(Protocol):
    """What the entry point of a format loads.

    `labledger run NAME:LOCATION` calls `read`, and runs the experiment that `translate` makes of
    the `Benchmark`. `read` writes nothing but caches, and the same input gives the same
    `Benchmark`: the experiment is then the same byte for byte.
    """

    name: str
    """The word before the colon."""
    agents: tuple[str, ...]
    """The names of the agents that come along, the first of them the baseline."""

    def read(self, location: str) -> Benchmark:
        """Return the benchmark at `location`, the text after the colon.

        Raises `labledger.InvalidInput` with the file and line of each problem.
        """
        ...


@runtime_checkable
class AgentKinds(Protocol):
    """What a format also has whose agents can be given with an argument, as `--agent KIND:ARG`.

    A format without such agents does not have these attributes.
    """

    agent_kinds: tuple[str, ...]
    """The words before the colon."""

    def add_agent(self, benchmark: Benchmark, kind: str, argument: str) -> Benchmark:
        """Return `benchmark` with one more agent, its last: that of a kind with an argument.

        Raises `labledger.InvalidInput`.
        """
        ...


@runtime_checkable
class SelectiveFormat(Protocol):
    """A format that can also read only the selected tasks of a large benchmark."""

    def read_selected(self, location: str, globs: Sequence[str]) -> Benchmark:
        """Return what `read` does, with the ids that no glob matches in `unread`.

        A task that is read is the same whatever is selected beside it. Raises
        `labledger.InvalidInput`.
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
    """Return the reference that `text` is, or None if it is a path.

    A path that exists is a path, whatever colons it contains.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    return BenchmarkReference(match[1], match[2])


def read_benchmark(
    reference: BenchmarkReference, agents: Sequence[str] = (), globs: Sequence[str] = ()
) -> Benchmark:
    """Return the benchmark that a reference names, with its agents of `agents` that have arguments.

    An agent is given by its name, or as `KIND:ARGUMENT` where the format has agents of this kind;
    it is then added to the benchmark. Tasks that no glob selects may be left unread; without globs,
    every task is read. Raises `InvalidInput` if there is no such format, if it
    cannot be loaded, if it fails, and with every problem that it finds in the location or in an
    argument.
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
    reference: BenchmarkReference, package: str, function: str, call: Callable[[], Benchmark]
) -> Benchmark:
    """Return the benchmark that a `function` of a format returns. Raises `InvalidInput`."""
    try:
        benchmark = call()
    except LabLedgerError:
        raise
    except OSError as error:
        problem = Problem(error.filename or reference.location, error.strerror or str(error))
        raise InvalidInput(f"cannot read {reference}", [problem]) from error
    except Exception as error:
        raise _format_failed(reference, package, error) from error
    if not isinstance(benchmark, Benchmark):
        returned = TypeError(f"{function}() returned {type(benchmark).__name__}, not a Benchmark")
        raise _format_failed(reference, package, returned)
    return benchmark


def _load_format(reference: BenchmarkReference) -> tuple[BenchmarkFormat, str]:
    """Return the format of a reference and the name of the package that it is from."""
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


def with_profiled_agents(benchmark: Benchmark, given: Sequence[str]) -> Benchmark:
    """Return a benchmark with an agent for each word in `given` that names a profile.

    Agents of the benchmark itself take precedence over profiles of the same name. The folder of the
    user's own agent becomes a part of the experiment. Raises `InvalidInput` for words that name a
    profile and do not have the form above, and for a folder without a valid profile.
    """
    own = {agent.given_as or agent.name for agent in benchmark.agents}
    parsed = {words: _GIVEN.fullmatch(words) for words in given if words not in own}
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
    """Add the files of an agent's folder; return the profile's path beside the experiment.

    Raises `InvalidInput`, and `PermissionNeeded` if the folder is a link out of its project.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100
    require_location(folder, str(folder))
    profile = read_folder(folder)
    top = f"agents/{profile.name}"
    own = {f"{top}/{path.relative_to(folder).as_posix()}": path for path in files_of(folder)}
    if any(files.get(name, path) != path for name, path in own.items()):
        problem = Problem(Parameter("agents"), f"two folders hold an agent {profile.name}")
        raise InvalidInput("the agents given", [problem])
    files |= own
    return f"./{top}"


def _authored_agent(match: re.Match[str]) -> JsonObject:
    """Return the `runtime.agent` that words mean. Raises `ValueError`."""
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
    """Return an id for the variant of each agent: its profile, with what tells it from others."""
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
    """Return a variant's id that begins with `name` and is not used."""
    numbered = (f"{name[: _MAX_ID - 4]}-{number}" for number in count(2))
    return next(each for each in chain([name[:_MAX_ID]], numbered) if each not in used)
