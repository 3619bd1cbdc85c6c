"""The protocol by which a package adds a benchmark format.

A package registers an object with the attributes of `BenchmarkFormat` as an entry point of the
group `labledger.benchmarks`, under the format's name. `labledger run NAME:LOCATION` then calls its
`read`, and runs the experiment that `translate` makes of the `Benchmark`. The formats of this
package use the same protocol. `read` writes nothing but caches, and the same input gives the same
`Benchmark`: the experiment is then the same byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from labledger.records import JsonObject
from labledger.storage.file_contents import FileContent

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
    given_as: str | None = None
    """What `--agent` may call it beside its name: its kind and argument. Set by labledger."""


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """A task of the location that cannot be run."""

    task_id: str
    reason: str
    """What is not supported, and what would be needed."""


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
    cluster: str | None = None
    """The field of a task's row whose values group tasks that resemble each other, such as
    `task.repo`; None if there is none. Comparisons take the groups as the sample."""


@runtime_checkable
class BenchmarkFormat(Protocol):
    """What the entry point of a format loads."""

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
