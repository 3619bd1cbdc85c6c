"""The results of a comparison as frozen dataclasses, and their JSON form, `comparison_v1`.

Fields have the names of the document's keys. Only `Comparison.as_json` makes JSON, and checks it
against the schema. All modules that present a comparison read these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger.compare.options import PASS_RATE, Validity
from labledger.compare.side_trials import Side
from labledger.compare.statistics.rates import PassAt
from labledger.compare.statistics.samples import Estimate
from labledger.ledger.database.model import Graded, Rerun
from labledger.records import JsonObject, json_schemas
from labledger.records.json_codec import members

SCHEMA = "comparison_v1"


@dataclass(frozen=True, slots=True)
class SideGrading:
    """The grading that a side's scores come from."""

    run_id: str
    """The run whose agents ran."""
    generation: int
    generations: int
    """How many gradings the run has, complete or not."""
    grader_digest: str | None
    """None where an older labledger did not write it."""

    @classmethod
    def of(cls, graded: Graded) -> Self:
        grading = graded.grading
        return cls(grading.root_id, grading.generation, graded.generations, grading.grader_digest)


@dataclass(frozen=True, slots=True)
class SideReport:
    """The results of one side, over the compared tasks."""

    run_id: str
    """The run as it was named: a run stands for its current grading, RUN.gN for another one."""
    variant_id: str
    mean: Estimate | None
    """The pass rate or the metric's mean, as the mean of the tasks' means."""
    pass_at: tuple[PassAt, ...] = ()
    grading: SideGrading | None = None
    """None where several runs are taken as one: `runs` has the grading of each."""
    trials: int = 0
    """How many counted trials the compared tasks have on this side."""
    runs: tuple[SideGrading, ...] = ()
    """The runs that are taken as one; empty for a single run."""

    @property
    def side(self) -> Side:
        return Side(self.run_id, self.variant_id)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tasks each side passed, if each task has one trial on each side."""

    both: int
    only_a: int
    only_b: int
    neither: int


@dataclass(frozen=True, slots=True)
class Significance:
    """A test that there is no difference; the difference's interval is its inversion."""

    name: str
    p: float
    p_adjusted: float | None = None
    """Corrected by Bonferroni's method for the number of comparisons; None where there is one."""
    p_holm: None = None
    """Always None. Earlier versions corrected by Holm's method, which has no intervals that agree
    with it (Strassburger and Bretz 2008, Statistics in Medicine 27:4914–4927)."""

    @property
    def p_decisive(self) -> float:
        return self.p if self.p_adjusted is None else self.p_adjusted


@dataclass(frozen=True, slots=True)
class Effect:
    """`odds_ratio`: pairs that only B passed over those that only A passed. `d_z`: Cohen's d_z."""

    name: str
    value: float | None
    """None where it is undefined: all pairs that differ go one way, or nothing varies."""


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest difference that this comparison would have shown with probability `power`."""

    difference: float | None
    """None where no difference is large enough, or where it cannot be computed."""
    power: float
    discordant: float | None
    """The share of pairs that is assumed to differ; None for metrics and fixed suites."""
    assumed: bool
    """Whether that share is larger than the observed one, because the difference requires it."""


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    side: str
    """`a`, `b` or `both`."""
    reason: str
    pairs: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The difference with errors counted in another way."""

    errors: str
    pairs: int
    difference: Estimate | None
    a: float | None
    """A's pass rate, over the tasks compared then; None where nothing is paired."""
    b: float | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: how many pairs, the means of both sides, and why pairs were left out."""

    task_id: str
    pairs: int
    a: float | None
    b: float | None
    left_out: tuple[str, ...]
    """Distinct reasons, each with its side, such as ``b: infra_error``."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: str
    """`better`, `worse`, `higher`, `lower` (of B), `not_shown`, or `nothing_paired`."""
    text: str
    """A plain sentence or two."""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether both sides are shown to be equivalent: to differ by less than a limit."""

    limit: float
    """In the metric's unit; a share for pass rates."""
    verdict: str
    """`equivalent` if every value in the difference's interval is smaller than the limit, in either
    direction; `different` if none is; else `not_shown`."""
    text: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison of two sides. Differences are B minus A."""

    a: SideReport
    b: SideReport
    tasks: int
    """Tasks with at least one pair."""
    pairs: int
    """Pairs of trials: in each task as many as the side with fewer counted trials has."""
    replications: int
    """The largest number of pairs of a task."""
    counts: Counts | None
    """None for metrics."""
    difference: Estimate | None
    """None where nothing is paired, as are `test`, `effect` and `detectable`. The intervals of all
    comparisons of the family hold together. There are no bounds where nothing varies."""
    test: Significance | None
    """None also for a fixed suite without replications, and where `validity` is `none`."""
    effect: Effect | None
    detectable: Detectable | None
    """None also where nothing varies, and where runs can still grow."""
    left_out: tuple[LeftOutCount, ...]
    by_task: tuple[TaskRow, ...]
    same_trials: bool = False
    """Whether both sides are gradings of the same trials, so that only the graders differ."""
    sensitivity: tuple[Sensitivity, ...] = ()
    warnings: tuple[str, ...] = ()
    clusters: int | None = None
    """The number of clusters of the tasks, where clusters are the sample."""
    effective_clusters: float | None = None
    """How many clusters of one size would tell as much; the fewer, the less equal they are."""
    validity: str = Validity.FIXED_SAMPLE.value
    """For which looks `difference` and `test` hold; see `Validity`."""
    pass_at: tuple[PassAt, ...] = ()
    """The differences of pass@k and pass^k, each over the tasks that have k counted trials on both
    sides. Their intervals are corrected for the family, as that of `difference` is, but not for
    several k."""
    equivalence: Equivalence | None = None
    """None where it was not asked for."""
    decision: Decision = Decision("nothing_paired", "")
    """Set last, because it needs everything above."""

    @property
    def labels(self) -> tuple[str, str]:
        """What to call A and B: the variants of one run, else RUN:VARIANT."""
        if self.a.run_id == self.b.run_id:
            return self.a.variant_id, self.b.variant_id
        return str(self.a.side), str(self.b.side)


@dataclass(frozen=True, slots=True)
class Standing:
    """A side's place among all sides that were compared in pairs."""

    run_id: str
    """As that of `SideReport`."""
    variant_id: str
    mean: Estimate | None
    """Over the side's own counted trials; None where it has none."""
    tasks: int
    trials: int
    groups: tuple[str, ...] = ()
    """The letters of its tie groups: sides that share one are not shown to differ."""

    @property
    def side(self) -> Side:
        return Side(self.run_id, self.variant_id)


@dataclass(frozen=True, slots=True)
class GateResult:
    option: str
    """The gate, by the option of the command line, as the format `comparison_v1` names it."""
    limit: float
    b: str
    """The side that was tested."""
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class RunReruns:
    """The reruns of a run whose trials are compared: which of its slots were run again, and why."""

    run_id: str
    """The run whose agents ran."""
    reruns: tuple[Rerun, ...]
    """The oldest first; never empty."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every comparison that was asked for."""

    metric: str
    lower_is_better: bool | None
    confidence: float
    errors: str
    seed: int
    comparisons: tuple[Compared, ...]
    gates: tuple[GateResult, ...]
    estimand: str
    """`tasks` or `suite`; see `Estimand`."""
    cluster: str | None
    """The field of the tasks' rows whose values were taken as the sample; None for tasks."""
    family: int
    """For how many comparisons intervals, p values and gates are corrected."""
    ranking: tuple[Standing, ...] = ()
    """The sides, the best first, where all were compared in pairs; else empty."""
    reruns: tuple[RunReruns, ...] = ()
    """The runs that slots were run again of."""
    unfinished: tuple[str, ...] = ()
    """A clause for each run compared that is not complete. Gates are not decided then."""

    @property
    def undecided(self) -> str | None:
        """Why nobody can rely on the gates, in a clause; None if one can."""
        if not self.has_pairs:
            return "nothing was compared: no trials could be paired"
        if self.gates and self.unfinished:
            return f"gates are decided for complete runs: {'; '.join(self.unfinished)}"
        return None

    @property
    def is_rate(self) -> bool:
        return self.metric == PASS_RATE

    @property
    def level(self) -> float:
        """A difference is shown where its decisive p value is below this."""
        return 1 - self.confidence

    @property
    def has_pairs(self) -> bool:
        """Whether any two trials could be compared."""
        return any(compared.tasks for compared in self.comparisons)

    def as_json(self) -> JsonObject:
        """Return the document `comparison_v1`, checked against its schema."""
        document: JsonObject = {"schema_version": SCHEMA, **members(self)}
        json_schemas.require_valid(document, SCHEMA)
        return document
