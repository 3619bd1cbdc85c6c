"""What coordinators and hosts say to each other, and what an attempt needs on its host.

A request names the session of the host's process that it is meant for, and the epoch of the run's
coordinator, so that one which was delayed or repeated does no harm. Everything is a frozen
dataclass whose fields say what may arrive; `message_bytes` makes bytes of it. Requests may hold
secrets in the environment of attempts: they are never logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from labledger.agents.agent_trees import InstalledAgent
from labledger.errors import LabLedgerError
from labledger.execution.executor import HostState
from labledger.experiment.runtime_sections import Resources
from labledger.experiment.staged_files import StagedFile
from labledger.records import JsonObject
from labledger.records.attempt_result import digest_of
from labledger.records.model_grants import CapShare, KeySource, ProviderConfig, ShareUse
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.trial_kinds import RegradedTrial

PROTOCOL = 8
"""Version of the messages. A host and a coordinator with different ones do not work together."""

CHUNK_BYTES = 4 << 20
"""How many bytes of a file one message carries at most."""

AttemptKey = tuple[int, int]
"""Slot and attempt."""


class HostRefused(LabLedgerError):
    """A host does not do what was requested."""


class WrongSession(HostRefused):
    """The request was meant for an earlier process of the host."""


class SupersededEpoch(HostRefused):
    """A later coordinator has taken the run over."""


class AnotherHost(HostRefused):
    """The machine that answers is not the one that the coordinator has worked with."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """A run of one ledger."""

    ledger_id: str
    run_id: str

    @property
    def ledger(self) -> str:
        """What folders of the ledger's runs are called on a host."""
        return self.ledger_id[:12]


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a host needs so that agents can ask models."""

    providers: tuple[ProviderConfig, ...]
    """With the places where their keys are read."""
    are_keys_sent: bool
    """Whether the coordinator reads the keys and sends them. Otherwise each host reads them."""
    machine: str | None = None
    """The kind of machine that the installed agents are for; None if no agent is installed."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What a host needs once for a run: who asks, and the files that all trials share."""

    run: RunKey
    epoch: int
    files: Mapping[str, tuple[StagedFile, ...]]
    """Staged files by phase."""
    is_sealed: bool
    known_hosts: frozenset[str] = frozenset()
    """The hosts that have open attempts of earlier coordinators."""
    models: ModelNeeds | None = None
    """What agents need for their models; None if no agent has any."""
    agents: tuple[InstalledAgent, ...] = ()
    """The installed agents of variants that have a profile."""

    @property
    def needs_preparation(self) -> bool:
        """Whether a host has to be prepared before it gets attempts."""
        return self.models is not None or bool(self.agents)

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the staged files, which every attempt needs."""
        return frozenset(file.sha256 for files in self.files.values() for file in files)


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A request to the process of a host that has this session. Another one refuses it."""

    session: str


@dataclass(frozen=True, slots=True)
class RunRequest(HostRequest):
    """A request for a run. A host refuses that of a coordinator which has lost the run."""

    setup: RunSetup


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask a worker which host it is. Meant for any session."""


@dataclass(frozen=True, slots=True)
class Described:
    """Which host a worker is, and its state."""

    session: str
    """Random; another one for each process of the host."""
    state: HostState
    monotonic: float
    """The host's own clock, in seconds; only its own values are compared."""
    unix_time: float


@dataclass(frozen=True, slots=True)
class LimitsToTry:
    """The limits of trials, and in which containers a host can try whether they are in force."""

    images: tuple[str, ...]
    """Ids. The first one that the host has is used; nothing is tried if it has none."""
    resources: Resources
    oci_runtime: str | None
    """None for the engine's default."""


@dataclass(frozen=True, slots=True)
class TryLimits(HostRequest):
    """Have a host start a container and read which limits are in force in it."""

    limits: LimitsToTry


@dataclass(frozen=True, slots=True)
class TriedLimits:
    """What came of it. A host whose engine ignores limits says so in its state from then on."""

    problem: str | None = None
    """Why nothing is placed on the host, if the engine ignored limits."""
    refusal: str | None = None
    """Why no container could be started with these limits."""


@dataclass(frozen=True, slots=True)
class TryModels(HostRequest):
    """Ask whether a host has what agents need for their models. It keeps no key."""

    needs: ModelNeeds


@dataclass(frozen=True, slots=True)
class TriedModels:
    """What is missing; None if nothing is."""

    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PrepareRun(RunRequest):
    """Prepare a host for the agents of a run: a gateway with the keys, and the agents' files.

    Can be repeated. A host in a new process has to be prepared again.
    """

    keys: tuple[tuple[KeySource, str], ...] = field(default=(), repr=False)
    """The keys of providers, if the coordinator sends them. They are held in memory alone."""
    tars: Mapping[str, str] = field(default_factory=dict)
    """The digests of tars with the files of agents, which the host has got, by `tree_sha256`."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """What a host still lacks; it is prepared if that is nothing."""

    missing: tuple[str, ...] = ()
    """The `tree_sha256` of agents whose files have to be sent."""
    problem: str | None = None
    """Why it cannot be prepared."""


@dataclass(frozen=True, slots=True)
class ShareCaps(RunRequest):
    """Give a host its shares in the caps of the run. Can be repeated."""

    number: int
    """Higher than that of every earlier request of this coordinator: what arrives late is not
    carried out."""
    shares: tuple[CapShare, ...]


@dataclass(frozen=True, slots=True)
class SharedCaps:
    """What became of the shares; nothing if the gateway does not answer at present."""

    uses: tuple[ShareUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """An attempt whose result is durable: what it left may go."""

    spec: AttemptSpec
    keep_folder: bool


@dataclass(frozen=True, slots=True)
class Cancellation:
    """An attempt that will run again, by request of a person."""

    spec: AttemptSpec
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """The order to start no container for an attempt, and to kill those that have started."""

    spec: AttemptSpec
    spares_started: bool = False
    """Whether an attempt that has started goes on."""


@dataclass(frozen=True, slots=True)
class Exchange(RunRequest):
    """One round between a run's coordinator and a host: orders in one direction, results back."""

    grant_until: float | None
    """Until when, by the host's monotonic clock, containers may be started; None: not yet."""
    mark: str = ""
    """Random; made by this coordinator for this host, which keeps it on its disk."""
    is_marked: bool = False
    """Whether the host has kept it: a machine that has not is a copy, or was restored."""
    stopping: bool = False
    """Whether the run starts no further container."""
    is_lost: bool = False
    """Whether the host was declared lost: it starts no agent any more, whatever it was granted."""
    number: int = 0
    """Of the coordinator's exchanges that have orders, which it numbers for each host from 1."""
    attempts: tuple[AttemptSpec, ...] = ()
    delivered_before: frozenset[AttemptKey] = frozenset()
    """Those of them that an earlier process of the host has accepted."""
    removals: tuple[Removal, ...] = ()
    cancellations: tuple[Cancellation, ...] = ()
    kills: tuple[Kill, ...] = ()
    received: frozenset[AttemptKey] = frozenset()
    """Ended attempts that the coordinator has, so that they are not sent again."""
    confirmed: frozenset[AttemptKey] = frozenset()
    """Removals and cancellations that the coordinator knows to have ended."""
    wait_s: float = 0.0
    """How long to wait for something to report."""
    wants_state: bool = False


@dataclass(frozen=True, slots=True)
class ResultMessage:
    """The result of an attempt, as it is in the host's outbox."""

    key: AttemptKey
    result: bytes
    """`AttemptResult.as_json()`, as the text of it."""
    contents: Mapping[str, bytes]
    """Its small artifacts by digest. Others, and a file of events, are fetched in chunks."""
    events_size: int = 0
    """Bytes of its file of events, if it has one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that has no result, and does not go on by itself."""

    key: AttemptKey
    kind: str
    """`refused`: the run is stopping and nothing was started; `left`: the run is stopping, and the
    agent has ended but is not graded; `uncollected`: see the message."""
    message: str


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """What has happened on a host for one run."""

    session: str
    monotonic: float
    results: tuple[ResultMessage, ...] = ()
    failures: tuple[Failure, ...] = ()
    removed: tuple[AttemptKey, ...] = ()
    """Removals and cancellations that have ended and are not confirmed yet."""
    started: frozenset[AttemptKey] = frozenset()
    """Attempts of the run for which a container has been started and that are not removed."""
    restarts: tuple[tuple[AttemptKey, str], ...] = ()
    """Attempts that were started again since the last reply, with the reasons."""
    paused: tuple[AttemptKey, ...] = ()
    warnings: tuple[str, ...] = ()
    last_start_age_s: float | None = None
    """How long ago the newest container that could be started was created."""
    is_prepared: bool = True
    """Whether this process still has what `PrepareRun` gave it, if the run needs that."""
    state: HostState | None = None


@dataclass(frozen=True, slots=True)
class MissingInputs(HostRequest):
    """Ask which of these artifacts, and of these images, a host lacks."""

    digests: tuple[str, ...]
    images: tuple[tuple[str, str], ...] = ()
    """Name and id of each image. The host begins to pull what it lacks."""


@dataclass(frozen=True, slots=True)
class MissingReply:
    """What a host lacks."""

    digests: tuple[str, ...]
    pulling: tuple[str, ...] = ()
    """Ids of images that the host is pulling or loading."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Ids of images that it could not pull, with the reason: they have to be sent."""


@dataclass(frozen=True, slots=True)
class FindImages(HostRequest):
    """Ask which ids these images have on a host, by name."""

    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundImages:
    """The ids of the images that the host has, by name."""

    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PullImage(HostRequest):
    """Have a host pull an image that it lacks. Repeated until the reply says how that ended."""

    ref: str


@dataclass(frozen=True, slots=True)
class PulledImage:
    """The id of an image, or why the host cannot get it; neither while it is being pulled."""

    image_id: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PutChunk(HostRequest):
    """A piece of an artifact, or of the tar of an image, for a host."""

    name: str
    """The SHA-256 of the artifact, or the id of the image (`sha256:…`)."""
    offset: int
    content: bytes = field(repr=False)
    last: bool


@dataclass(frozen=True, slots=True)
class ChunkReply:
    """How many bytes of the file the host has: where the next piece begins."""

    size: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class ReadChunk(HostRequest):
    """Ask for a piece of an artifact of an ended attempt, or of its file of events."""

    run: RunKey
    key: AttemptKey
    sha256: str | None
    """None for the file of events."""
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the files of one run are in an object store, and how fsspec opens it.

    It holds no secrets: each machine has credentials of its own.
    """

    url: str
    options: JsonObject = field(default_factory=dict)

    def below(self, *names: str) -> StorePlace:
        """Return the place of a folder in it."""
        return StorePlace("/".join([self.url.rstrip("/"), *names]), self.options)


@dataclass(frozen=True, slots=True)
class GetInput(HostRequest):
    """Have a host get an artifact, or the tar of an image, from an object store."""

    place: StorePlace
    object_name: str
    name: str
    """The SHA-256 of the artifact, or the id of the image (`sha256:…`)."""
    sha256: str
    """Of the object."""
    size: int
    wait_s: float
    """How long to wait for the end of it."""


@dataclass(frozen=True, slots=True)
class PutOutput(HostRequest):
    """Have a host put an artifact of an ended attempt, or its events, into an object store."""

    place: StorePlace
    object_name: str
    run: RunKey
    key: AttemptKey
    sha256: str | None
    """None for the file of events."""
    wait_s: float


@dataclass(frozen=True, slots=True)
class StoreReply:
    """How it goes with a transfer between a host and an object store."""

    is_over: bool
    problem: str | None = None
    """Why the host could not use the store."""


@dataclass(frozen=True, slots=True)
class ListAttempts(RunRequest):
    """Ask for the attempts of a run of which a host has anything."""


@dataclass(frozen=True, slots=True)
class ListedAttempts:
    attempts: frozenset[AttemptKey]


@dataclass(frozen=True, slots=True)
class CleanUp(RunRequest):
    """Remove what attempts left whose results are durable."""

    durable: frozenset[AttemptKey]
    kept: frozenset[AttemptKey]
    """Those of them whose folders are retained."""


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """The reply to `CleanUp` and to `ForgetAttempts`."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetAttempts(RunRequest):
    """Forget what unfinished attempts have done, by request of a person: they will run again."""

    keys: frozenset[AttemptKey]
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not carried out."""

    kind: str
    message: str

    def raised(self) -> HostRefused:
        kinds = {each.__name__: each for each in (WrongSession, SupersededEpoch, AnotherHost)}
        return kinds.get(self.kind, HostRefused)(self.message)


REPLIES: Mapping[type, type] = {
    Describe: Described,
    TryLimits: TriedLimits,
    TryModels: TriedModels,
    PrepareRun: PreparedRun,
    ShareCaps: SharedCaps,
    Exchange: ExchangeReply,
    MissingInputs: MissingReply,
    FindImages: FoundImages,
    PullImage: PulledImage,
    PutChunk: ChunkReply,
    ReadChunk: Chunk,
    GetInput: StoreReply,
    PutOutput: StoreReply,
    ListAttempts: ListedAttempts,
    CleanUp: CleanedUp,
    ForgetAttempts: CleanedUp,
}
"""What answers each request, if it is not refused."""


DIGEST = re.compile(r"[0-9a-f]{64}")
"""A SHA-256 as it names artifacts."""


def input_digests(spec: AttemptSpec) -> frozenset[str]:
    """Return the digests of the artifacts that an attempt reads, beside the run's staged files."""
    task = spec.task
    digests = {files.tar for files in task.files or ()}
    if task.workspace is not None and task.workspace.tar is not None:
        digests.add(task.workspace.tar)
    if isinstance(spec.kind, RegradedTrial):
        trial = spec.kind.stored
        references = map(digest_of, trial.evidence["evidence"].values())
        digests |= {digest for digest in references if digest not in trial.contents}
    return frozenset(digest for digest in digests if DIGEST.fullmatch(digest))


def needed_images(spec: AttemptSpec) -> dict[str, str]:
    """Return the ids of the images that an attempt runs in, by the names that they have."""
    needed = {spec.image_ref: spec.image_id}
    if spec.has_grader_container:
        needed[spec.grader_image_ref] = spec.grader_image_id
    has_helper = spec.uses_egress_proxy or spec.uses_models
    if has_helper and spec.plan.egress_image is not None:
        needed[spec.plan.egress_image] = spec.plan.egress_image
    return needed
