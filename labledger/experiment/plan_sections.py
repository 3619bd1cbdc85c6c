"""The sections of a resolved experiment, each with the keys of its stored form.

`from_json` reads a section and `as_json` writes it; `of_authored` makes one from what a person
wrote, where that differs. No other module knows the keys. A new key needs a default that means what
held before, and is listed in `_OPTIONAL` if documents without it must keep their digest. A shard is
no part of what an experiment is: all shards of one have its digest. `StoredFacts` also reads stored
documents that are incomplete, which `ExperimentPlan` would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from labledger.experiment.authored_fields import (
    UNLIMITED,
    FieldPath,
    ResourceOverrides,
    outside_names,
    phase_texts,
    resource_values,
    text,
    texts,
    user_name,
)
from labledger.experiment.grading_settings import HIDING_MODES, Grading
from labledger.experiment.model_settings import ModelSettings
from labledger.experiment.schedule import Shard
from labledger.records import JsonObject
from labledger.records.json_codec import Section, normalize_number
from labledger.records.model_calls import Api
from labledger.records.task_coverage import SkippedTask

AnySection = TypeVar("AnySection", bound=Section)

_IDENTITY = ("adapter_id", "name", "version", "split")


def benchmark_identity(benchmark: JsonObject) -> dict[str, str]:
    """Return the fields that identify a benchmark, from a stored document or a score."""
    return {key: str(benchmark[key]) for key in _IDENTITY if benchmark.get(key)}


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """The parts of a stored document by which results are described and compared.

    A stored document may be incomplete. Facts that are missing from it are empty here.
    """

    benchmark: Mapping[str, str]
    """See `benchmark_identity`."""
    cluster: str | None
    """The field of a task's row that groups related tasks; see `task_row.cluster_of`."""
    grader_command: tuple[str, ...]
    grader: tuple[Any, ...]
    """Settings and files of the grader, to compare it with another one of unknown digest."""

    @classmethod
    def of_document(cls, document: JsonObject) -> Self:
        grader = document.get("grader") or {}
        files = (document.get("files") or {}).get("grader") or []
        return cls(
            benchmark_identity(document.get("benchmark") or {}),
            (document.get("dataset") or {}).get("cluster"),
            tuple(grader.get("command") or ()),
            (grader, sorted((file["name"], file["sha256"]) for file in files)),
        )


@dataclass(frozen=True, slots=True)
class Identity(Section):
    """The experiment's names, which have no influence on results."""

    experiment_id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()

    _KEYS: ClassVar = {"experiment_id": "id"}

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        return cls.from_json({"name": authored["id"]} | authored)


@dataclass(frozen=True, slots=True)
class Filters(Section):
    """What the command line selected: globs, the largest number of tasks, and a shard."""

    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    limit: int | None = None
    shard: Shard | None = None
    """None for all slots."""

    _OPTIONAL = frozenset({"shard"})


@dataclass(frozen=True, slots=True)
class DatasetPlan(Section):
    """Where the tasks come from, and which of them are selected."""

    path: str
    suite_id: str
    split_id: str
    limit: int | None = None
    """How many tasks of the file, from the first, are considered; None for all."""
    cluster: str | None = None
    """The field of a task's row that groups related tasks; see `task_row.cluster_of`."""
    tasks: int = 0
    """How many tasks are selected; 0 until they have been read."""
    digest: str = ""
    """SHA-256 (hex) over the digests of the selected tasks."""
    filters: Filters = Filters()
    env_names: tuple[str, ...] | None = None
    """The `$NAME`s in `env` and `grader` of the tasks' own settings, which a regrading needs."""
    skipped: tuple[SkippedTask, ...] = ()
    """The tasks of the benchmark that are left out. They have no influence on results."""

    _OPTIONAL = frozenset({"cluster", "env_names", "skipped"})

    @classmethod
    def of_authored(cls, authored: JsonObject, suite_id: str, split_id: str) -> Self:
        return cls.from_json({"suite_id": suite_id, "split_id": split_id} | authored)


@dataclass(frozen=True, slots=True)
class Resources(Section):
    """The limits of a trial's container; None for no limit."""

    cpus: float | None = 1
    memory_bytes: int | None = 1 << 30
    pids: int | None = 512
    storage_bytes: int | None = None
    """How much the container may write to its own file system."""
    gpus: str | int | None = None
    """How many GPUs it gets, or `all`."""

    _OPTIONAL = frozenset({"storage_bytes", "gpus"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        return cls().merged(ResourceOverrides.from_json(resource_values(authored)))

    @property
    def limit_count(self) -> int:
        """How many of the limits that every engine knows are set."""
        return sum(limit is not None for limit in (self.cpus, self.memory_bytes, self.pids))

    def merged(self, own: ResourceOverrides | None) -> Self:
        """Return these limits with what `own` sets in place of them."""
        changes = {} if own is None else own.as_json()
        return replace(self, **{name: None if v == UNLIMITED else v for name, v in changes.items()})


class Rights(StrEnum):
    """What the processes of a trial's containers may do. Helper containers are always strict."""

    STRICT = "strict"
    """Few capabilities, for root alone, and no process gains privileges."""
    DOCKER = "docker"
    """Those that Docker gives by default. Programs such as `sudo` work, so that a user of the
    container may become root in it."""

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Rights.STRICT: "strict: containers have few capabilities, and no process gains privileges",
    Rights.DOCKER: "docker: containers have Docker's default capabilities, and any user of them "
    "may become root in them, as with sudo",
}


KEEP = "keep"
"""The value of `image_files` where what the image has at a path stays there."""


@dataclass(frozen=True, slots=True)
class OutputFolder(Section):
    """A folder for outputs, which the host keeps beside `out` and `state` of the trial."""

    path: str
    phase: str
    """`agent` or `grader`: the phase that writes there."""
    image_files: str | None = None
    """`KEEP` if the folder begins with what the image has there; None if it begins empty."""

    _OPTIONAL = frozenset({"image_files"})


@dataclass(frozen=True, slots=True)
class Runtime(Section):
    """The container that a trial runs in."""

    image: str | None = None
    """The image of the tasks that name none."""
    user: str | None = None
    """The container's user; None for the image's. `image` if the container starts as root, and each
    phase runs as its own user or else the image's."""
    network: str = "none"
    """`none`, `full` or `allowlist`."""
    root_read_only: bool = False
    max_log_bytes: int = 1 << 20
    """How much of each output of a phase is stored."""
    oci: str | None = None
    """The OCI runtime; None for the engine's default."""
    agent_user: str | None = None
    """The user that the agent runs as; None for the container's."""
    resources: Resources = Resources()
    env: Mapping[str, str] | None = None
    """Environment variables of all phases. A variant's bindings are not substituted yet."""
    workspace: str | None = None
    """`image`, or the folder of the image that is the workspace; None for a mounted one."""
    allowed_hosts: tuple[str, ...] | None = None
    """Which hosts can be reached with the network `allowlist`."""
    processes: str | None = None
    """`keep` if processes go on when their phase has ended; None to kill them."""
    entrypoint: str | None = None
    """`image` if the image's entrypoint is started in the background; None if not."""
    outputs: tuple[OutputFolder, ...] | None = None
    healthcheck: str | None = None
    """`image` if setup begins by waiting for the image's HEALTHCHECK to succeed; None if not."""
    models: ModelSettings | None = None
    """What agents may ask of models; None if they have none."""
    rights: Rights = Rights.STRICT

    _OPTIONAL = frozenset(
        {
            *("oci", "env", "workspace", "allowed_hosts", "processes", "entrypoint", "outputs"),
            *("healthcheck", "models", "rights"),
        }
    )

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        defaults = {"workspace": "mounted", "processes": "kill"}
        defaults |= {"entrypoint": "ignore", "healthcheck": "ignore"}
        given = {key: authored[key] for key in authored.keys() - _CONVERTED}
        return replace(
            cls.from_json(
                {key: value for key, value in given.items() if value != defaults.get(key)}
            ),
            resources=Resources.of_authored(authored.get("resources", {})),
            **_converted(authored),
        )


@dataclass(frozen=True, slots=True)
class PhaseOverrides(Section):
    """The parts of a phase that differ. `env` is merged name by name."""

    command: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    timeout_s: float | None = None

    _ONLY_SET = True

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        command, env = authored.get("command"), authored.get("env")
        return cls(
            None if command is None else tuple(map(text, command)),
            None if env is None else texts(env),
            normalize_number(authored["timeout_s"]) if "timeout_s" in authored else None,
        )


@dataclass(frozen=True, slots=True)
class RuntimeOverrides(Section):
    """What a variant or a task sets of its trials' container and phases in place of `runtime`.

    Only what was authored is stored, so that a run without such settings keeps its bytes. Texts of
    a task may still contain any `$NAME`: bindings are substituted when `trial_settings` merges it.
    """

    image: str | None = None
    user: str | None = None
    network: str | None = None
    root_read_only: bool | None = None
    max_log_bytes: int | None = None
    agent_user: str | None = None
    resources: ResourceOverrides | None = None
    env: Mapping[str, str] | None = None
    """Of all phases; merged name by name."""
    agent: PhaseOverrides | None = None
    setup: PhaseOverrides | None = None
    without_setup: bool | None = None
    """True if no setup runs."""
    workspace: str | None = None
    allowed_hosts: tuple[str, ...] | None = None
    processes: str | None = None
    entrypoint: str | None = None
    outputs: tuple[OutputFolder, ...] | None = None
    healthcheck: str | None = None
    models: ModelSettings | None = None
    """Merged field by field."""
    grader: PhaseOverrides | None = None
    """Of a task alone."""
    grading: Grading | None = None
    """Of a task alone."""

    _ONLY_SET = True

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        setup, grader = authored.get("setup"), authored.get("grader", {})
        resources = ResourceOverrides.from_json(resource_values(authored.get("resources", {})))
        return replace(
            cls.from_json({key: authored[key] for key in authored.keys() - _CONVERTED}),
            resources=_none_if_empty(resources),
            agent=_none_if_empty(PhaseOverrides.of_authored(authored.get("agent", {}))),
            setup=None if setup is None else PhaseOverrides.of_authored(setup),
            without_setup=True if "setup" in authored and setup is None else None,
            grader=_none_if_empty(PhaseOverrides.of_authored(grader)),
            grading=Grading.of_authored(grader),
            **_converted(authored),
        )


_CONVERTED = {"setup", "agent", "grader", "user", "resources", "env", "models"}
"""The keys of an authored `runtime` whose stored form differs."""


def _converted(authored: JsonObject) -> dict[str, Any]:
    """Return the fields that the sections above make of authored keys in the same way."""
    return {
        "user": user_name(authored.get("user")),
        "agent_user": user_name(authored.get("agent", {}).get("user")),
        "env": texts(authored["env"]) if "env" in authored else None,
        "models": ModelSettings.of_authored(authored["models"]) if "models" in authored else None,
    }


def _none_if_empty(section: AnySection) -> AnySection | None:
    """Return a section, or None if nothing in it is set."""
    return section if section.as_json() else None


@dataclass(frozen=True, slots=True)
class Policy(Section):
    """Settings of the benchmark that the grader can read."""

    grade_failed_agents: bool = True
    timeouts_under_pressure: str | None = None
    """`retry` if a slot that timed out while it was short of processors gets another attempt, as
    far as `design.retry.max_attempts` goes; None to count it, as `count` says."""

    _OPTIONAL = frozenset({"timeouts_under_pressure"})

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        is_default = authored.get("timeouts_under_pressure") == "count"
        return cls.from_json(authored | ({"timeouts_under_pressure": None} if is_default else {}))


@dataclass(frozen=True, slots=True)
class Benchmark(Section):
    """The benchmark's names, which predictions and scores repeat, and its policy."""

    adapter_id: str
    name: str
    split: str
    policy: Policy
    evaluator: JsonObject
    """The grader's name and version as authored, recorded in each score."""
    version: str | None = None

    _OPTIONAL = frozenset({"version"})

    @classmethod
    def of_authored(cls, authored: JsonObject, split_id: str) -> Self:
        name = authored["name"]
        evaluator = {"name": f"{name}-grader", "mode": "custom"}
        default = {"adapter_id": name, "split": split_id, "policy": {}, "evaluator": evaluator}
        given = {key: value for key, value in authored.items() if key != "grader"}
        policy = Policy.of_authored(given.get("policy", {})).as_json()
        return cls.from_json(default | given | {"policy": policy})

    @property
    def identity(self) -> dict[str, str]:
        """The fields of the benchmark that predictions and scores repeat."""
        return benchmark_identity(self.as_json())


@dataclass(frozen=True, slots=True)
class MetricDefinition(Section):
    """Where a metric's value comes from: `pointer` or `field`, of events of type `event`."""

    metric_id: str
    source: str
    """`result`, `events`, `score` or `runner`."""
    pointer: str | None = None
    event: str | None = None
    field: str | None = None
    aggregate: str | None = None

    _KEYS: ClassVar = {"metric_id": "id", "source": "from"}

    @classmethod
    def of_authored(cls, authored: JsonObject) -> Self:
        aggregate = {"aggregate": "count"} if authored["from"] == "events" else {}
        return cls.from_json(aggregate | authored)


@dataclass(frozen=True, slots=True)
class PhasePlan(Section):
    """A command of a trial. Words and values may still refer to the environment by `$NAME`."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float

    def outside_names(self) -> Iterator[tuple[FieldPath, str]]:
        """Yield each `$NAME` that the environment must set, with its path in the phase."""
        return outside_names(phase_texts(self.command, self.env))


@dataclass(frozen=True, slots=True)
class GraderPlan(PhasePlan):
    """The grader, which is the same for all variants."""

    sealed: bool = False
    """Whether the agent must not be able to read the grader's files."""
    grading: Grading | None = None
    """The other settings of grading; None if there are none."""

    _OPTIONAL = frozenset({"grading"})

    @property
    def hides_files(self) -> bool:
        """Whether the grader's files are not simply mounted with the agent's."""
        return self.sealed or (self.grading is not None and self.grading.mode in HIDING_MODES)


class NamedPhase(NamedTuple):
    """A phase of an experiment, for checks of all phases."""

    name: str
    plan: PhasePlan
    variant_id: str | None = None
    """None for the grader."""


@dataclass(frozen=True, slots=True)
class ProfiledAgent(Section):
    """The agent of a variant that has a profile, which `labledger.agents` knows."""

    profile: str
    version: str
    provider: str
    model: str
    """As its provider spells it."""
    api: Api
    options: JsonObject
    instructions: str | None = None
    """The template of the instruction; None for the usual one."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """The agent's own logs: by the name of their form, the path in the container, or `stdout`."""
    needs: tuple[str, ...] = ()
    """Programs that its images must have."""
    tree_sha256: str | None = None
    """The digest of its installed files; None before they are installed, and in runs of versions
    that froze none."""

    _OPTIONAL = frozenset({"tree_sha256"})


@dataclass(frozen=True, slots=True)
class VariantPlan(Section):
    """A variant with its phases, in which its bindings are substituted."""

    variant_id: str
    role: str
    """`baseline` or `treatment`."""
    bindings: JsonObject
    setup: PhasePlan | None
    agent: PhasePlan
    runtime: RuntimeOverrides | None = None
    """Its own settings of the container, beside the phases above; None if it has none."""
    profile: ProfiledAgent | None = None
    """Its agent's; None for an agent with a command of the experiment."""

    _OPTIONAL = frozenset({"runtime", "profile"})


@dataclass(frozen=True, slots=True)
class Regrades(Section):
    """The run that a regrading grades again."""

    run_id: str
    generation: int
    grader_digest: str
    head: str
    """The digest of that run's last commit."""


@dataclass(frozen=True, slots=True)
class Replays(Section):
    """The run whose recorded calls to models answer the agents, in place of the providers."""

    run_id: str


@dataclass(frozen=True, slots=True)
class GraderIdentity(Section):
    """The facts about its grader that each score records."""

    digest: str
    generation: int
