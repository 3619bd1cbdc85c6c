"""The facts of a report as frozen dataclasses, and their JSON form, `report_v1`.

`Report.as_json` makes the JSON and checks it against the schema. The page and the Markdown are made
from these types, after `with_plain_text` has removed hidden characters from all text.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from labledger.compare.comparison_document import Comparison, RunReruns
from labledger.compare.statistics.samples import Estimate
from labledger.ledger.rows.model_usage import ModelUse
from labledger.records import JsonObject, json_schemas
from labledger.records.json_codec import members
from labledger.records.json_schemas import (
    LATER,
    Count,
    PositiveInt,
    Share,
    Text,
    one_of,
    one_of_each,
)
from labledger.records.outcomes import RunStatus, Verdict
from labledger.records.pass_rate import PassCounts
from labledger.records.task_coverage import SkippedTask
from labledger.report.report_queries import Claim, ReportedCommits, ReportedTrial
from labledger.text.escaping import plain_text

SCHEMA = "report_v1"


@dataclass(frozen=True, slots=True)
class Extension:
    """A part by which a run was extended after it was started."""

    part: Annotated[int, ("minimum", 2)]
    created_at: Text
    slots: PositiveInt
    """The number of slots that it added."""
    because: str | None
    """The reason that the user gave."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The run, the times of its agents, and the progress of its grading."""

    run_id: Text
    """The run as the user named it: RUN is its current grading."""
    experiment_id: Text
    name: str
    status: Annotated[str, one_of(*RunStatus)]
    created_at: Text
    updated_at: Text
    ended_at: str | None
    scheduled: Count
    committed: Count
    scored: Count
    passed: Count
    extensions: Annotated[tuple[Extension, ...], LATER] = ()
    """The parts by which the run was extended after it was started."""
    skipped_tasks: Annotated[tuple[SkippedTask, ...], LATER] = ()
    """The tasks of its benchmark that were skipped, and why."""


@dataclass(frozen=True, slots=True)
class PrimaryMetric:
    name: Text
    mean: float


@dataclass(frozen=True, slots=True)
class VariantOutcomes:
    """The outcomes of a variant's slots."""

    variant_id: Text
    role: Annotated[str, one_of("baseline", "treatment")]
    bindings: JsonObject
    scheduled: Count
    committed: Count
    scored: Count
    verdicts: Annotated[Mapping[str, Count], one_of_each(*Verdict)]
    """The verdicts of scored slots."""
    statuses: Mapping[str, Count]
    not_passed: Annotated[Count, LATER]
    """Committed slots that count in the pass rate and did not pass."""
    agent_failed: Annotated[Count, LATER]
    """Committed slots without a verdict that did not pass, because their agent failed or broke its
    grader."""
    left_out: Annotated[Count, LATER]
    """Committed slots that ran, but do not count in the pass rate."""
    pass_rate: Estimate | None
    """None if no slot counts."""
    primary_metric: PrimaryMetric | None
    """None if scored trials have no primary metric, or different ones."""

    @property
    def passes(self) -> PassCounts:
        """The numbers of slots that the pass rate counts and leaves out."""
        return PassCounts(self.verdicts["pass"], self.not_passed, left_out=self.left_out)


@dataclass(frozen=True, slots=True)
class Cell:
    """The slots of a variant on a task."""

    scheduled: Count
    committed: Count
    scored: Count
    passed: Count
    not_passed: Annotated[Count, LATER]

    @property
    def counted(self) -> int:
        """The number of slots that the pass rate counts."""
        return self.passed + self.not_passed

    @property
    def share(self) -> float | None:
        """The share that passed; None if no slot counts."""
        return PassCounts(self.passed, self.not_passed).rate

    @property
    def is_flaky(self) -> bool:
        """Whether some replications passed and others did not."""
        return bool(self.passed and self.not_passed)


@lru_cache(maxsize=1024)
def _counted_and_share(cells: tuple[Cell, ...]) -> tuple[int, float | None]:
    """Return a task's `counted` and `share`. Many tasks have equal cells, so they are cached."""
    counted = sum(cell.counted for cell in cells)
    return counted, sum(cell.passed for cell in cells) / counted if counted else None


@dataclass(frozen=True, slots=True)
class TaskOutcomes:
    """The outcomes of a task's slots, with a cell for each variant in the experiment's order."""

    task_id: Text
    cells: tuple[Cell, ...]
    """One for each variant, in the order of the variants."""

    @property
    def passed(self) -> int:
        return sum(cell.passed for cell in self.cells)

    @property
    def counted(self) -> int:
        """The number of its slots that the pass rate counts."""
        return _counted_and_share(self.cells)[0]

    @property
    def share(self) -> float | None:
        """The share that passed, over all variants; None if no slot counts."""
        return _counted_and_share(self.cells)[1]

    @property
    def spread(self) -> float:
        """The largest share of a variant minus the smallest."""
        shares = [cell.share for cell in self.cells if cell.share is not None]
        return max(shares) - min(shares) if shares else 0.0

    @property
    def is_flaky(self) -> bool:
        return any(cell.is_flaky for cell in self.cells)

    @property
    def flakiness(self) -> float:
        """The sum over variants of the variance of passing, at most 0.25 for each variant."""
        return sum(c.share * (1 - c.share) for c in self.cells if c.share is not None)

    @property
    def is_unscored(self) -> bool:
        """Whether some variant has slots of the task, but no score."""
        return any(not cell.scored and cell.scheduled for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Spread:
    """The number of durations, and their sum, mean and quartiles in milliseconds."""

    trials: PositiveInt
    sum: Annotated[int, ("type", "number")]
    mean: float
    min: Annotated[int, ("type", "number")]
    q1: float
    median: float
    q3: float
    max: Annotated[int, ("type", "number")]


@dataclass(frozen=True, slots=True)
class VariantTimes:
    variant_id: Text
    trial: Spread | None
    phases: Annotated[Mapping[str, Spread | None], one_of_each("setup", "agent", "grader")]


@dataclass(frozen=True, slots=True)
class Times:
    wall_ms: int | None
    """From the run's creation to its completion; None until then."""
    variants: tuple[VariantTimes, ...]


@dataclass(frozen=True, slots=True)
class VariantMetric:
    """The values of a metric that a variant's trials reported."""

    variant_id: Text
    known: Count
    unknown: Count
    """Trials that ran, but reported no value."""
    sum: float | None
    mean: float | None
    median: float | None
    mean_low: Annotated[float | None, LATER] = None
    """The lower bound of the mean's interval, which accounts for trials of the same task; None if
    unknown, as for a single task."""
    mean_high: Annotated[float | None, LATER] = None


@dataclass(frozen=True, slots=True)
class Metric:
    metric_id: Text
    variants: tuple[VariantMetric, ...]


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """The slots that ended with the same status and reason."""

    status: Text
    reason: str | None
    count: Count
    variants: Mapping[str, Count]
    examples: tuple[Count | str, ...]
    """The first few slots, as RUN:SLOT if there are several runs."""
    message: str | None
    """The first message that is not empty."""


@dataclass(frozen=True, slots=True)
class ReportedGrading:
    root_id: Text
    """The run whose agents ran."""
    run_id: Text
    """The run that holds the rows."""
    generation: PositiveInt
    generations: PositiveInt
    """The number of gradings that the run has."""
    counts: bool
    """Whether this is the current grading."""
    grader_digest: str | None
    """The grader's digest; None if an older labledger did not store it."""
    created_at: Text


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation facts, and the number of scores that have them."""

    facts: Any
    """As JSON."""
    scores: Count

    _KEYS: ClassVar = {"facts": "says"}

    @property
    def is_suspected(self) -> bool:
        return isinstance(self.facts, dict) and bool(self.facts.get("tampering_total"))


@dataclass(frozen=True, slots=True)
class Verification:
    """The extent of verifying the run's rows, and the result."""

    extent: Annotated[str, one_of("chain", "all"), LATER]
    """`chain`: each commit follows from the commit before it. `all`: every record and artifact was
    verified, too. Documents without this key mean `all`."""
    clean: bool
    commits: Count
    artifacts: Count
    findings: Count
    listed_findings: tuple[Text, ...]
    """The first findings, as sentences."""

    _KEYS: ClassVar = {"listed_findings": "told"}


@dataclass(frozen=True, slots=True)
class Image:
    ref: Text
    id: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a report's numbers."""

    experiment_digest: Text
    labledger_version: Text
    ledger_id: Text
    chain_head: Text
    images: tuple[Image, ...]
    benchmark: Mapping[str, str]
    evaluator: Mapping[str, str]
    grading: Annotated[ReportedGrading, LATER]
    """The grading of the run that the numbers are from."""
    isolation: tuple[Isolation, ...]
    verification: Verification
    replays: Annotated[str | None, LATER] = None
    """The run whose recorded calls answered the agents; None if providers answered them."""


@dataclass(frozen=True, slots=True)
class ReportedPart:
    """One of several runs that a report takes as one."""

    run: ReportedRun
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report states about a run."""

    written_at: Text
    written_by: Text
    confidence: Share
    run: ReportedRun
    headline: Text
    missing: tuple[Text, ...]
    """Sentences about limits of the report: missing parts and their reasons, runs taken as one, a
    busy machine, and cancelled slots."""
    reruns: Annotated[tuple[RunReruns, ...], LATER]
    """The slots of its runs that were run again, and why."""
    variants: tuple[VariantOutcomes, ...]
    comparisons: tuple[Comparison, ...]
    """Documents of `comparison_v1`."""
    tasks: tuple[TaskOutcomes, ...]
    """In the order of the dataset."""
    time: Times
    metrics: tuple[Metric, ...]
    errors: tuple[ErrorGroup, ...]
    trials: tuple[ReportedTrial, ...]
    provenance: Provenance
    """For several runs: their common facts, and their digests joined by `+`."""
    runs: Annotated[tuple[ReportedPart, ...], ("minItems", 2)] = ()
    """The runs, if the report takes several as one. Otherwise it is empty and not in the
    document."""
    models: tuple[ModelUse, ...] = ()
    """The usage of each model by each variant. Not in the document if no agent called a model."""
    claims: tuple[Claim, ...] = ()
    """The usage that agents claimed, beside the gateway's counts. Not in the document if the
    experiment reads no claims."""

    _OPTIONAL = frozenset({"runs", "models", "claims"})

    @property
    def parts(self) -> tuple[ReportedPart, ...]:
        """The runs that the report is about, at least one."""
        return self.runs or (ReportedPart(self.run, self.provenance),)

    def as_json(self) -> JsonObject:
        """Return the document `report_v1`, checked against its schema."""
        document: JsonObject = {"schema_version": SCHEMA, **members(self)}
        # The rows of long lists are alike, so only the first and last are checked.
        ends = {name: document[name][:1] + document[name][-1:] for name in ("tasks", "trials")}
        json_schemas.require_valid({**document, **ends}, SCHEMA)
        return document

    def commits(self, path: Path) -> dict[str | None, ReportedCommits]:
        """Return the commits of the report's trials, by `ReportedTrial.run_id`.

        `path` is the ledger's path.
        """
        rerun, is_part = {of_run.run_id for of_run in self.reruns}, bool(self.runs)
        return {
            origin.grading.run_id if is_part else None: ReportedCommits(
                path,
                origin.grading.root_id,
                origin.grading.run_id,
                origin.verification.commits,
                is_part=is_part,
                has_reruns=origin.grading.root_id in rerun,
            )
            for origin in (part.provenance for part in self.parts)
        }

    def with_plain_text(self) -> Report:
        return with_plain_text(self)


T = TypeVar("T")


def with_plain_text(value: T) -> T:
    """Apply `plain_text` to every text in a dataclass or JSON value, including keys.

    Parts that do not change stay the same objects, so that a large report is not in memory twice.
    """
    return _plain(value)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Cell):
        return value  # A large report has very many cells, and they hold only numbers.
    if isinstance(value, dict):
        return {plain_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return ReportedTrial(*items) if isinstance(value, ReportedTrial) else type(value)(items)
    old = {name: getattr(value, name) for name in _field_names(value.__class__)}
    changed = {name: new for name, item in old.items() if (new := _plain(item)) is not item}
    return replace(value, **changed) if changed else value


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    """Return the field names of a dataclass; empty for any other type."""
    return tuple(field.name for field in fields(cls)) if is_dataclass(cls) else ()
