"""The documents that labledger writes part by part, as types for their JSON Schemas.

Such documents are made of ledger rows, and most are formatted as text, so labledger itself has no
types for them. `schemas.py` generates their schemas from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from labledger.records import JsonObject
from labledger.records.identity import MAX_RUN_ID, TrialIds
from labledger.records.json_schemas import Count, PositiveInt, Text, one_of
from labledger.records.model_calls import Api, CallFault, CallState
from labledger.records.outcomes import SlotStatus, Verdict

Time = Annotated[
    str,
    ("pattern", r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"),
    ("description", "a time such as 2026-01-31T12:00:00.000Z"),
]
OPTIONAL = "optional"
"""Marks a key that is absent if it has no value. It is never null."""
OptionalText = Annotated[str, OPTIONAL]
Digest = Annotated[str, ("pattern", "^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class SlotDocument:
    """The first keys of every record of a slot."""

    schedule_idx: Count
    slot_commit_id: Text
    attempt: PositiveInt
    ts: Time
    ids: TrialIds


@dataclass(frozen=True)
class RowDocument(SlotDocument):
    """A record that is one of several rows of its slot."""

    row_seq: Count


@dataclass(frozen=True)
class EventDocument(RowDocument):
    event: JsonObject


@dataclass(frozen=True)
class MetricDocument(RowDocument):
    metric_id: Text
    source: Annotated[str, one_of("result", "events", "score", "runner", "gateway")]
    value: float | str


@dataclass(frozen=True)
class UsageDocument:
    input: Count
    """tokens of the request that were neither read from a cache nor written to one"""
    cache_read: Count
    cache_write: Count
    cache_write_1h: Annotated[PositiveInt, OPTIONAL]
    """tokens written to a cache for an hour; absent if there were none"""
    output: Count
    """all tokens of the answer"""
    reasoning: Annotated[PositiveInt, OPTIONAL]
    """the part of the output that is reasoning; absent if there was none"""


@dataclass(frozen=True)
class ModelCallDocument(SlotDocument):
    call: PositiveInt
    """number of the call in its attempt"""
    started_at: Time
    provider: Text
    api: Api
    model: Text
    """the requested model"""
    model_served: str | None
    """the model that the provider says it used"""
    state: CallState
    status: Count | None
    """the HTTP status of the answer that the agent got"""
    reason: str | None
    """the gateway's word for the refusal or failure"""
    usage: UsageDocument | None
    """null if the provider's answer had no usage"""
    raw_usage: JsonObject | None
    """the usage in the provider's answer, unchanged"""
    first_byte_ms: Count | None
    duration_ms: Count | None
    waited_ms: Count
    """how long the call waited for limits of the provider; part of `duration_ms`"""
    request_id: str | None
    """the provider's name for the call"""
    reserved: UsageDocument | None
    """the most that the call could use"""
    replayed: Annotated[Any, ("const", True), OPTIONAL]
    """the answer came from the record of another run, and cost nothing; absent if the provider was
    asked"""
    detail: OptionalText
    """the provider's sentence in a refusal, or the contradiction in an answer; absent if there is
    none"""
    fault: Annotated[CallFault, OPTIONAL]
    """whose fault a failed call was; absent if the gateway could not show it"""
    effort: OptionalText
    """how much the model was asked to reason; absent if the request did not say"""
    temperature: Annotated[float, OPTIONAL]
    """the temperature that the request set; absent if it set none"""
    service_tier: OptionalText
    """the tier that served the call, or else the requested tier; absent if neither was named"""
    price_condition: OptionalText
    """the condition of the price, such as `service_tier=flex`; absent for the standard price"""
    fees: Annotated[Count, OPTIONAL]
    """charges beyond tokens, in picodollars; absent if there were none"""
    stated_cost: Annotated[Count, OPTIONAL]
    """the provider's stated charge, in picodollars; absent if it states none"""
    cost_unknown: OptionalText
    """why the cost is unknown although the tokens may be known; absent if it is known"""


@dataclass(frozen=True)
class PhaseDocument:
    exit_status: int
    duration_ms: Count
    timed_out: bool


@dataclass(frozen=True)
class PhasesDocument:
    setup: PhaseDocument | None
    """null if it did not run"""
    agent: PhaseDocument | None
    """null if it did not run"""
    grader: PhaseDocument | None
    """null if it did not run"""


@dataclass(frozen=True)
class ImageDocument:
    ref: str
    id: str


@dataclass(frozen=True)
class AttemptDocument:
    attempt: PositiveInt
    status: SlotStatus
    reason: str | None
    message: str | None
    exit_status: int | None
    started_at: Text
    ended_at: Text
    duration_ms: Count
    container: str
    image_id: str


@dataclass(frozen=True)
class TrialDocument(RowDocument):
    status: SlotStatus
    reason: str | None
    """why the status is not `completed`"""
    message: str | None
    """a sentence for people about the reason"""
    verdict: Verdict | None
    outcome: str | None
    """the agent's own report about its work"""
    exit_status: int | None
    """the container's exit status"""
    started_at: Text
    ended_at: Text
    duration_ms: Count
    """from the container's start to its end"""
    phases: PhasesDocument
    image: ImageDocument
    events_dropped: Count
    """how many lines of the events file were not stored: too many, or too large"""
    attempts: Annotated[tuple[AttemptDocument, ...], ("minItems", 1)]


@dataclass(frozen=True)
class TrajectoryDocument:
    ids: TrialIds
    schedule_idx: Count
    attempt: PositiveInt
    status: Text
    verdict: Verdict | None
    started_at: Time
    ended_at: Time
    origin: Annotated[str, one_of("gateway", "agent_log", "agent")]
    """the gateway's record, the agent's own log, or a document that the agent wrote"""
    trajectory: JsonObject
    """a document of atif_v1_8"""
    cuts: Annotated[tuple[str, ...], ("minItems", 1), OPTIONAL]
    """why the trajectory lacks steps; absent if it has all of them"""


@dataclass(frozen=True)
class NotificationDocument:
    version: Annotated[Any, ("const", 1)]
    """the version of this format"""
    id: Annotated[str, ("pattern", "^[0-9a-f]{32}$")]
    """the event's id, the same for every receiver and repetition, so that a receiver can drop
    duplicates"""
    event: str
    """the kind of event; a later labledger may have further kinds"""
    at: Annotated[str, ("pattern", r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    """when it happened, in UTC"""
    run_id: str
    experiment_id: str
    committed: Count
    """how many slots of the run were committed then"""
    total_slots: Count
    """how many slots the run had then"""
    text: Annotated[str, ("minLength", 1), ("maxLength", 1000)]
    """a sentence for people, of at most 1,000 characters"""
    details: JsonObject
    """facts about this kind of event"""


@dataclass(frozen=True)
class LedgerFileDocument:
    sha256: Digest
    """the SHA-256 of its content"""
    size: PositiveInt
    """in bytes"""


@dataclass(frozen=True)
class ArtifactFilesDocument:
    count: Count
    """how many files follow below `artifacts/`"""
    size: Count
    """their bytes together"""


@dataclass(frozen=True)
class ArchivedRunDocument:
    run_id: Annotated[str, ("pattern", f"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_RUN_ID - 1}}}$")]
    """the run first, then its regradings"""
    committed: Count
    """how many slots are committed"""
    chain_head: Digest
    """the digest of the last commit, or of the run's creation if there is none"""


@dataclass(frozen=True)
class ArchiveDocument:
    written_at: Text
    """the time, ISO 8601 in UTC"""
    written_by: Text
    """the version of labledger"""
    ledger: LedgerFileDocument
    """the file `ledger.sqlite`"""
    artifacts: ArtifactFilesDocument
    runs: Annotated[tuple[ArchivedRunDocument, ...], ("minItems", 1)]


@dataclass(frozen=True)
class SummaryBenchmark:
    adapter_id: Text
    name: Text
    split: Text
    version: Annotated[Text, OPTIONAL]


@dataclass(frozen=True)
class SummaryEvaluator:
    name: Text
    mode: Annotated[str, one_of("official", "custom")]
    version: Annotated[Text, OPTIONAL]
    command: Annotated[tuple[str, ...], OPTIONAL]


_PASS: dict[str, str] = {"passes": "pass"}


@dataclass(frozen=True)
class SummaryTotals:
    trials: Count
    passes: Count
    fail: Count
    missing: Count
    error: Count

    _KEYS: ClassVar = _PASS


@dataclass(frozen=True)
class SummaryVariant:
    variant_id: Text
    total: Count
    """how many slots have a score"""
    passes: Count
    fail: Count
    missing: Count
    error: Count
    pass_rate: float | None
    """`pass` divided by `total`; null if no slot has a score"""
    primary_metric_name: str | None
    primary_metric_mean: float | None

    _KEYS: ClassVar = _PASS


@dataclass(frozen=True)
class SummaryDocument:
    run_id: Text
    benchmark: SummaryBenchmark
    totals: SummaryTotals
    variants: tuple[SummaryVariant, ...]
    evaluator: Annotated[SummaryEvaluator, OPTIONAL]
    ext: Annotated[JsonObject, OPTIONAL]
