"""How a trial is graded, and what reads the verdict that its grader leaves.

A format of benchmarks whose graders leave a verdict in a form of their own declares a
`ResultReader` beside its judge, and registers it as an entry point of the group
`labledger.result_readers`. Settings are checked and trials judged by what the reader says.
Experiments may use the names that their schema lists, and no package can replace a reader of this
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self

from labledger import plug_ins
from labledger.experiment.authored_fields import ResourceOverrides, resource_values, text, user_name
from labledger.records import JsonObject
from labledger.records.json_codec import Section


class GradingMode(StrEnum):
    """When the grader's files arrive, and where the grader runs."""

    SAME = "same"
    """With the agent's, in its container; the agent's processes have been killed."""
    AFTER_AGENT = "after_agent"
    """When the agent has ended; its container is started a second time."""
    DELIVERED = "delivered"
    """When the agent has ended; its container runs on and waits for them."""
    SEPARATE = "separate"
    """In another container, which gets the declared artifacts of the agent's."""


class Sealing(StrEnum):
    """How a grader's files are hidden from the agent."""

    NONE = "none"
    UNREADABLE = "unreadable"
    """They are mounted, and the agent's user cannot read them."""
    AFTER_AGENT = "after_agent"
    """They are added when the agent and all its processes have ended."""
    DELIVERED = "delivered"
    """They are added to the running container when the agent has ended."""
    SEPARATE = "separate"
    """They are never in the agent's container."""

    @classmethod
    def of(cls, agent_user: str | None, mode: GradingMode | None, *, is_sealed: bool) -> Self:
        """Return how a trial is sealed whose agent runs as `agent_user`.

        `is_sealed` says whether the experiment hides its grader's files at all.
        """
        if mode is not None and mode is not GradingMode.SAME:
            return cls(mode.value)
        if not is_sealed:
            return cls.NONE
        return cls.AFTER_AGENT if agent_user is None else cls.UNREADABLE

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Sealing.NONE: "not sealed: the agent can read the grader's files",
    Sealing.UNREADABLE: "sealed, unreadable: the agent's user cannot read the grader's files",
    Sealing.AFTER_AGENT: "sealed, after_agent: the grader's files come when the agent has ended",
    Sealing.DELIVERED: "delivered: the running container gets the grader's files after the agent",
    Sealing.SEPARATE: "separate: the grader runs in a container of its own",
}


@dataclass(frozen=True, slots=True)
class DeclaredArtifact(Section):
    """A file or folder of the agent's container that a separate grader gets, or that is kept."""

    path: str
    to: str | None = None
    """Where the grader's container has it; None for the same path."""
    exclude: tuple[str, ...] | None = None
    """Globs of what is left out of a folder."""
    optional: bool | None = None
    """True if it may be missing."""

    _ONLY_SET = True


@dataclass(frozen=True, slots=True)
class CollectCommand(Section):
    """A command that runs in the agent's container before artifacts are taken from it."""

    command: tuple[str, ...]
    timeout_s: float = 60
    user: str | None = None

    _OPTIONAL = frozenset({"user"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        given = authored | {"command": [text(word) for word in authored["command"]]}
        if "user" in authored:
            given["user"] = user_name(authored["user"])
        return cls.from_json(given)


CONTRACT = "contract"
"""The source of results of a grader that writes score and prediction as labledger asks for them."""


@dataclass(frozen=True, slots=True)
class ResultSource(Section):
    """Where the verdict of a grader is read.

    What a key means is up to the `ResultReader` of `source`.
    """

    source: str = CONTRACT
    """`CONTRACT`, or the name of another reader."""
    folder: str | None = None
    """The output folder of the grader with its results."""
    primary: str | None = None
    """The name of the number that decides; None for the reader's own."""
    pass_at: float | None = None
    """The least deciding number that passes; None for the reader's own."""
    log: str | None = None
    """The name of the grader's log in `folder`."""
    instance: JsonObject | None = None
    """What the reader needs of a row to judge by. No container gets it."""

    _KEYS: ClassVar = {"source": "from"}
    _OPTIONAL = frozenset({"folder", "primary", "pass_at", "log", "instance"})


@dataclass(frozen=True, slots=True)
class Grading(Section):
    """The settings of grading beside the grader's command; None for what is not set."""

    mode: GradingMode | None = None
    user: str | None = None
    """The user that the grader runs as; None for the container's."""
    network: str | None = None
    """`none`, `full` or `allowlist`, while the grader runs; None for the runtime's."""
    allowed_hosts: tuple[str, ...] | None = None
    wait_s: float | None = None
    """How long a container waits for delivered files, in seconds; None for `WAIT_S`."""
    image: str | None = None
    """Of a separate grader's container; None for the trial's."""
    resources: ResourceOverrides | None = None
    """What differs in a separate grader's container from the experiment's resources."""
    workspace: str | None = None
    """`image`, or the working folder of a separate grader; None for the runtime's."""
    artifacts: tuple[DeclaredArtifact, ...] | None = None
    collect: tuple[CollectCommand, ...] | None = None
    results: ResultSource | None = None
    own_env: bool | None = None
    """True if a separate grader has the grader's `env` alone, without `runtime.env`."""

    _ONLY_SET = True

    @classmethod
    def of_authored(cls, grader: JsonObject) -> Self | None:
        """Return the settings in an authored grader section; None if it has none."""
        names = {field.name for field in fields(cls)}
        given: dict[str, Any] = {key: value for key, value in grader.items() if key in names}
        if "user" in given:
            given["user"] = user_name(given["user"])
        if "resources" in given:
            given["resources"] = resource_values(given["resources"])
        own = cls.from_json({key: value for key, value in given.items() if key != "collect"})
        if "collect" in given:
            own = replace(own, collect=tuple(map(CollectCommand.of_authored, given["collect"])))
        return own if own.as_json() else None

    def merged(self, own: Grading | None) -> Grading:
        """Return these settings with what `own` sets in place of them, key by key."""
        if own is None:
            return self
        changes = own.fields_set()
        if own.resources is not None and self.resources is not None:
            both = self.resources.as_json() | own.resources.as_json()
            changes["resources"] = ResourceOverrides.from_json(both)
        if own.network is not None:
            changes["allowed_hosts"] = own.allowed_hosts
        return replace(self, **changes)


WAIT_S = 86_400
"""How long a container waits for its grader's files by default, in seconds."""

HIDING_MODES = frozenset({GradingMode.AFTER_AGENT, GradingMode.DELIVERED, GradingMode.SEPARATE})
"""The modes in which the grader's files are not in the agent's container while the agent runs."""


ENTRY_POINT_GROUP = "labledger.result_readers"


@dataclass(frozen=True, slots=True)
class ResultReader:
    """How the verdict of a grader is read, and which settings that takes."""

    required: Mapping[str, str] = field(default_factory=dict)
    """The keys of `results` that must be set, each with what it is for."""
    optional: frozenset[str] = frozenset()
    """The keys that may be set."""
    ignores_exit_status: bool = False
    """Whether a grader that fails may still have left a verdict."""
    judge: Callable[..., None] | None = None
    """A `Judge` of `trial.evidence.grading`; None for the one of labledger's own contract."""

    @property
    def keys(self) -> frozenset[str]:
        return self.optional.union(self.required)


_OWN_CONTRACT = ResultReader()


@cache
def find_reader(name: str) -> ResultReader:
    """Return the reader of a name that the schema allows. It is imported when it is needed."""
    if name == CONTRACT:
        return _OWN_CONTRACT
    first, *_ = plug_ins.registered(ENTRY_POINT_GROUP)[name].values()
    reader: ResultReader = first.load()
    return reader


def readers_with(key: str) -> list[str]:
    """Return the names of the readers for which a key of `results` may be set."""
    return [
        name for name in plug_ins.registered(ENTRY_POINT_GROUP) if key in find_reader(name).keys
    ]
