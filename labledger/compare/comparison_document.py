"""The results of a comparison as frozen dataclasses, and their JSON form, `comparison_v1`.

Fields have the names of the document's keys. Only `Comparison.as_json` makes JSON, and checks it
against the schema. All modules that present a comparison read these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from labledger.compare.compare_options import PASS_RATE, ErrorCounting, Estimand, Gate, Validity
from labledger.compare.sides import Side
from labledger.compare.statistics.rates import PassAt
from labledger.compare.statistics.samples import Estimate
from labledger.experiment.schedule import Look
from labledger.ledger.database.model import Graded, Rerun
from labledger.records import JsonObject, json_schemas
from labledger.records.json_codec import members
from labledger.records.json_schemas import (
    LATER,
    Count,
    NonNegative,
    PositiveInt,
    Share,
    Text,
    one_of,
)

SCHEMA = "comparison_v1"


@dataclass(frozen=True, slots=True)
class SideGrading:
    """The grading that a side's scores come from."""

    run_id: Text
    """The run whose agents ran."""
    generation: PositiveInt
    generations: PositiveInt
    """How many gradings the run has, complete or not."""
    grader_digest: str | None
    """Digest of the grader; None where an older labledger did not write it."""

    @classmethod
    def of(cls, graded: Graded) -> Self:
        grading = graded.grading
        return cls(grading.root_id, grading.generation, graded.generations, grading.grader_digest)


@dataclass(frozen=True, slots=True)
class SideReport:
    """The results of one side, over the compared tasks."""

    run_id: Text
    """The run as it was named: a run stands for its current grading, RUN.gN for another one."""
    variant_id: Text
    mean: Estimate | None
    """The pass rate or the metric's mean, as the mean of the tasks' means."""
    pass_at: tuple[PassAt, ...] = ()
    grading: Annotated[SideGrading | None, LATER] = None
    """Who graded the trials; None where several runs are taken as one: `runs` has the grading of
    each."""
    trials: Annotated[Count, LATER] = 0
    """How many counted trials the compared tasks have on this side."""
    runs: Annotated[tuple[SideGrading, ...], LATER] = ()
    """The runs that are taken as one; empty for a single run."""

    @property
    def side(self) -> Side:
        return Side(self.run_id, self.variant_id)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tasks each side passed, if each task has one trial on each side."""

    both: Count
    only_a: Count
    only_b: Count
    neither: Count


@dataclass(frozen=True, slots=True)
class Significance:
    """A test that there is no difference; the difference's interval is its inversion."""

    name: Text
    p: Share
    p_adjusted: Annotated[Share | None, LATER] = None
    """The p value after Bonferroni's correction for the number of comparisons, multiplied by
    `looks.price`. None if neither changes it."""
    p_holm: Share | None = None
    """Always None. Earlier versions corrected by Holm's method, which has no intervals that agree
    with it (Strassburger and Bretz 2008, Statistics in Medicine 27:4914–4927)."""

    @property
    def p_decisive(self) -> float:
        return self.p if self.p_adjusted is None else self.p_adjusted


@dataclass(frozen=True, slots=True)
class Effect:
    """`odds_ratio`: pairs that only B passed over those that only A passed. `d_z`: Cohen's d_z."""

    name: Annotated[str, one_of("odds_ratio", "d_z")]
    value: float | None
    """None where it is undefined: all pairs that differ go one way, or nothing varies."""


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest difference that this comparison would have shown with probability `power`."""

    difference: float | None
    """None where no difference is large enough, or where it cannot be computed."""
    power: Share
    discordant: float | None
    """The share of pairs that is assumed to differ; None for metrics and fixed suites."""
    assumed: bool
    """Whether that share differs from the observed one."""
    possible: Annotated[bool, LATER] = True
    """Whether any results of as many trials would have shown a difference."""


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    side: Annotated[str, one_of("a", "b", "both")]
    """`a`, `b` or `both`."""
    reason: Text
    pairs: PositiveInt


class Conclusion(StrEnum):
    """What a comparison shows of B."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    NOT_SHOWN = "not_shown"
    NOTHING_PAIRED = "nothing_paired"

    @property
    def is_difference(self) -> bool:
        """Whether a difference is shown."""
        return self not in (Conclusion.NOT_SHOWN, Conclusion.NOTHING_PAIRED)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The difference with errors counted in another way."""

    errors: Annotated[str, one_of(*ErrorCounting)]
    pairs: Count
    difference: Estimate | None
    a: Annotated[float | None, LATER]
    """A's pass rate, over the tasks compared then; None where nothing is paired."""
    b: Annotated[float | None, LATER]
    """B's pass rate, over the same tasks."""
    verdict: Annotated[Conclusion | None, LATER] = None
    """What the comparison would show then; None where it decides nothing."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: how many pairs, the means of both sides, and why pairs were left out."""

    task_id: Text
    pairs: Count
    a: float | None
    b: float | None
    left_out: tuple[Text, ...]
    """Distinct reasons, each with its side, such as ``b: infra_error``."""


class Nearness(StrEnum):
    """Whether both sides are shown to differ by less than a limit."""

    EQUIVALENT = "equivalent"
    """Every value in the difference's interval is smaller than it, in either direction."""
    DIFFERENT = "different"
    """No value is."""
    NOT_SHOWN = "not_shown"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Conclusion
    """`better`, `worse`, `higher`, `lower` (of B), `not_shown`, or `nothing_paired`."""
    text: Text
    """A plain sentence or two."""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether both sides are shown to be equivalent: to differ by less than a limit."""

    limit: NonNegative
    """In the metric's unit; a share for pass rates."""
    verdict: Nearness
    """`equivalent` if every value in the difference's interval is smaller than the limit, in either
    direction; `different` if none is; else `not_shown`."""
    text: Text


class LookKind(StrEnum):
    """The kind of look at an experiment that a comparison is; see `compare.earlier_looks`."""

    FIRST = "first"
    """The first run, or as many first runs together as the first one declared."""
    ADDED = "added"
    """More or fewer runs together than were declared. Later ones began after earlier ones had
    results."""
    CHOSEN = "chosen"
    """A choice of runs: some earlier ones, or some that began beside them, are not compared."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The look at its experiment that a comparison is, as far as the ledger knows."""

    kind: LookKind
    number: PositiveInt
    """The number of the look: the last run's number, or how often runs were added, plus 1."""
    planned: PositiveInt
    """How many runs the first one declared (`design.planned_runs`)."""
    price: PositiveInt
    """The factor by which p values are multiplied; 1 for the first look."""
    last: Text
    """The compared run that began last."""
    omitted: tuple[Text, ...] = ()
    """The runs of the experiment that are left out."""
    later: tuple[Text, ...] = ()
    """The runs of the experiment that began after the compared ones."""
    deleted: Count = 0
    """The number of deleted runs with the experiment's id that had begun before. The ledger does
    not know whether they were of the same experiment."""
    imported: tuple[Text, ...] = ()
    """The compared runs that came from another ledger. Other runs of that ledger are not known."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say: the first look, and nothing unknown."""
        return self.kind is LookKind.FIRST and not (self.later or self.deleted or self.imported)


@dataclass(frozen=True, slots=True)
class PlannedLooks:
    """The looks at growing runs that their experiments declared before they began."""

    planned: Annotated[tuple[Look, ...], ("minItems", 1)]
    used: Annotated[tuple[Look, ...], ("minItems", 1)]
    """The sizes that both sides had when the runs were complete, or were extended."""
    number: PositiveInt | None
    """Which planned look this is; None where some size was not planned."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison of two sides. Differences are B minus A."""

    a: SideReport
    b: SideReport
    tasks: Count
    """Tasks with at least one pair."""
    pairs: Count
    """Pairs of trials: in each task as many as the side with fewer counted trials has."""
    replications: Count
    """The largest number of pairs of a task."""
    counts: Counts | None
    """Tasks by who passed, where each has one trial on each side; None for metrics."""
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
    same_trials: Annotated[bool, LATER] = False
    """Whether both sides are gradings of the same trials, so that only the graders differ."""
    sensitivity: tuple[Sensitivity, ...] = ()
    warnings: tuple[Text, ...] = ()
    clusters: Annotated[PositiveInt | None, LATER] = None
    """The number of clusters of the tasks, where clusters are the sample."""
    effective_clusters: Annotated[float | None, ("minimum", 1), LATER] = None
    """How many clusters of one size would tell as much; the fewer, the less equal they are."""
    validity: Annotated[str, one_of(*Validity), LATER] = Validity.FIXED_SAMPLE.value
    """For which looks `difference` and `test` hold. `fixed_sample`: one look, at finished runs;
    `group_sequential`: all looks that were planned before the runs; `anytime`: all looks together;
    `none`: no method holds, and there is neither interval nor test. See `Validity`."""
    planned_looks: Annotated[PlannedLooks | None, LATER] = None
    """None where the runs' experiments declare no looks."""
    pass_at: Annotated[tuple[PassAt, ...], LATER] = ()
    """The differences of pass@k and pass^k, each over the tasks that have k counted trials on both
    sides. Their intervals are corrected for the family, as that of `difference` is, but not for
    several k."""
    looks: Annotated[Looks | None, LATER] = None
    """The look at its experiment; None if it is the first one and nothing is unknown."""
    chosen_by_verdict: Annotated[tuple[Text, ...], LATER] = ()
    """The runs in which slots of a side were run again despite their results. There is no interval
    and no test then, and no gate is passed."""
    family_of: Annotated[Text | None, LATER] = None
    """The family of comparisons in words, if this is one of several that could be asked for."""
    equivalence: Annotated[Equivalence | None, LATER] = None
    """Whether both sides are shown to differ by less than a limit; None where it was not asked
    for."""
    decision: Decision = Decision(Conclusion.NOTHING_PAIRED, "")
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

    run_id: Text
    """As that of `SideReport`."""
    variant_id: Text
    mean: Estimate | None
    """Over the side's own counted trials; None where it has none."""
    tasks: Count
    trials: Count
    groups: Annotated[tuple[Annotated[str, ("pattern", "^[a-z]+$")], ...], ("minItems", 1)] = ()
    """The letters of its tie groups: sides that share one are not shown to differ."""

    @property
    def side(self) -> Side:
        return Side(self.run_id, self.variant_id)


@dataclass(frozen=True, slots=True)
class GateResult:
    option: Annotated[str, one_of(*(gate.stored_name for gate in Gate))]
    """The gate, by the option of the command line, as the format `comparison_v1` names it."""
    limit: NonNegative
    b: Text
    """The side that was tested."""
    passed: bool
    text: Text


@dataclass(frozen=True, slots=True)
class RunReruns:
    """The reruns of a run whose trials are compared: which of its slots were run again, and why."""

    run_id: Text
    """The run whose agents ran."""
    reruns: Annotated[tuple[Rerun, ...], ("minItems", 1)]
    """The oldest first; never empty."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every comparison that was asked for."""

    metric: Text
    lower_is_better: bool | None
    confidence: Share
    errors: Annotated[str, one_of(*ErrorCounting)]
    seed: Count
    comparisons: tuple[Compared, ...]
    gates: tuple[GateResult, ...]
    estimand: Annotated[str, one_of(*Estimand), LATER]
    """`tasks`: tasks like these, of which those compared are a sample; `suite`: exactly these
    tasks, whose replications are the sample. See `Estimand`."""
    cluster: Annotated[str | None, LATER]
    """The field of the tasks' rows whose values were taken as the sample; None for tasks."""
    family: Annotated[PositiveInt, LATER]
    """For how many comparisons intervals, p values and gates are corrected."""
    ranking: Annotated[tuple[Standing, ...], LATER] = ()
    """The sides, the best first, where all were compared in pairs; else empty."""
    reruns: Annotated[tuple[RunReruns, ...], LATER] = ()
    """The runs that slots were run again of."""
    unfinished: Annotated[tuple[Text, ...], LATER] = ()
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
